// What the other programs leave out, in one sandbox and two copies of it: what it uses, URLs that are signed, a terminal
// that outlives its client, a tree that is watched as it grows, git, the network, a snapshot, a fork, and a stream that
// is open when its sandbox is killed.
import assert from 'node:assert/strict'
import { Sandbox, TimeoutError } from 'e2b'

const REPO = '/home/user/repo'
const sandbox = await Sandbox.create('base', { timeoutMs: 180_000, network: { allowPublicTraffic: false } })
assert.ok(sandbox.trafficAccessToken)

async function usage() {
  const [first] = await sandbox.getMetrics()
  assert.equal(first.cpuCount, 1)
  assert.ok(0 < first.memUsed && first.memUsed < first.memTotal && first.memTotal <= 512 * 2 ** 20)
  assert.ok(0 < first.diskUsed && first.diskUsed < first.diskTotal)
}

async function signedUrls() {
  const path = '/home/user/a file&.txt'
  const form = new FormData()
  form.append('file', new Blob(['data']))
  const up = await sandbox.uploadUrl(path, { useSignatureExpiration: 60 })
  assert.equal((await fetch(up, { method: 'POST', body: form })).status, 200)
  for (const options of [{}, { useSignatureExpiration: 60 }, { user: 'user', useSignatureExpiration: 60 }]) {
    const url = await sandbox.downloadUrl(path, options)
    assert.equal(await (await fetch(url)).text(), 'data')
    assert.equal((await fetch(url.replace('signature=v1_', 'signature=v1_x'))).status, 401)
  }
  const expired = await fetch(await sandbox.downloadUrl(path, { useSignatureExpiration: -120 }))
  assert.deepEqual(await expired.json(), { code: 401, message: 'signature is already expired' })
}

async function terminal() {
  let printed = ''
  const decoder = new TextDecoder()
  const onData = (data) => { printed += decoder.decode(data, { stream: true }) }
  const size = { cols: 100, rows: 30 }
  const first = await sandbox.pty.create({ ...size, onData, envs: { MARK: 'here' }, cwd: '/tmp' })
  await first.disconnect()
  const again = await sandbox.pty.connect(first.pid, { onData })
  await sandbox.pty.resize(first.pid, { cols: 90, rows: 20 })
  const typed = 'stty -echo; echo "$(stty size), $MARK, $PWD"; exit 7\n'
  await sandbox.pty.sendInput(first.pid, new TextEncoder().encode(typed))
  await assert.rejects(again.wait(), (error) => error.exitCode === 7)
  assert.match(printed, /20 90, here, \/tmp/)
  const other = await sandbox.pty.create({ ...size, onData })
  assert.equal(await sandbox.pty.kill(other.pid), true)
  assert.equal(await sandbox.pty.kill(other.pid), false)
}

async function watching() {
  const { files } = sandbox
  const seen = []
  let told = () => {}
  await files.makeDir('watched/inner')
  const watcher = await files.watchDir('watched', (event) => {
    seen.push(`${event.name} ${event.type}`)
    told()
  }, { recursive: true })
  const until = (last) => new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`only ${seen}`)), 60_000)
    told = () => {
      if (!seen.includes(last)) return
      told = () => {}
      clearTimeout(late)
      resolve(seen.splice(0))
    }
    told()
  })
  await files.write('watched/inner/a.txt', 'x')
  const written = await until('inner/a.txt write')
  assert.deepEqual(written, ['create', 'chmod', 'write'].map((kind) => `inner/a.txt ${kind}`))
  await files.makeDir('watched/new')
  await files.rename('watched/inner/a.txt', 'watched/new/b.txt')
  await files.remove('watched/new/b.txt')
  const moved = (await until('new/b.txt remove')).filter((event) => event !== 'new chmod')
  assert.deepEqual(moved, ['new create', 'inner/a.txt rename', 'new/b.txt create', 'new/b.txt remove'])
  await watcher.stop()
}

async function git() {
  await sandbox.git.init(REPO, { initialBranch: 'main' })
  await sandbox.git.configureUser('Somebody', 'somebody@example.test')
  await sandbox.files.write(`${REPO}/a.txt`, 'a')
  assert.deepEqual((await sandbox.git.status(REPO)).fileStatus.map((file) => file.name), ['a.txt'])
  await sandbox.git.add(REPO)
  await sandbox.git.commit(REPO, 'The first')
  const status = await sandbox.git.status(REPO)
  assert.ok(status.isClean)
  assert.equal(status.currentBranch, 'main')
}

async function answers(where, name) {
  const { stdout } = await where.commands.run(`getent ahostsv4 ${name} >/dev/null && echo yes || echo no`)
  return stdout === 'yes\n'
}

async function network() {
  assert.ok(await answers(sandbox, 'other.test'), 'everything may leave where nothing is said')
  await sandbox.updateNetwork({ denyOut: ['0.0.0.0/0'], allowOut: ['example.test'] })
  assert.ok(await answers(sandbox, 'example.test'), 'what is allowed goes before what is denied')
  assert.ok(!(await answers(sandbox, 'other.test')))
  await assert.rejects(sandbox.updateNetwork({ allowOut: ['example.test'] }), /ALL_TRAFFIC/)
}

async function copies() {
  const taken = await sandbox.createSnapshot()
  await sandbox.git.createBranch(REPO, 'later')
  const listed = await Sandbox.listSnapshots({ sandboxId: sandbox.sandboxId }).nextItems()
  assert.deepEqual(listed.map((one) => one.snapshotId), [taken.snapshotId])
  const old = await Sandbox.create(taken.snapshotId, { timeoutMs: 60_000 })
  assert.equal((await old.git.status(REPO)).currentBranch, 'main')
  await old.kill()
  assert.equal(await Sandbox.deleteSnapshot(taken.snapshotId), true)
  assert.equal(await Sandbox.deleteSnapshot(taken.snapshotId), false)

  const [fork] = await sandbox.fork({ count: 1, timeoutMs: 60_000 })
  assert.notEqual(fork.sandboxId, sandbox.sandboxId)
  assert.equal((await fork.git.status(REPO)).currentBranch, 'later')
  assert.ok(!(await answers(fork, 'other.test')), 'it may reach what the original may')
  await fork.kill()
}

async function killed() {
  let began
  const reading = new Promise((resolve) => { began = resolve })
  const command = await sandbox.commands.run('while true; do echo tick; sleep 0.1; done', {
    background: true,
    onStdout: () => began(),
  })
  const ended = command.wait().then(() => null, (error) => error)
  await reading
  assert.equal(await sandbox.isRunning(), true)
  assert.equal(await sandbox.kill(), true)
  const error = await ended
  assert.ok(error instanceof TimeoutError, String(error))
  assert.match(error.message, /The sandbox was killed or reached its end of life/)
  assert.equal(await sandbox.isRunning(), false)
}

const parts = [usage, signedUrls, terminal, watching, git, network, copies, killed]
try {
  for (const part of parts) await part()
} finally {
  await sandbox.kill()
}
