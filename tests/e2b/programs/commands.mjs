// Commands and a terminal through the JavaScript SDK.
import assert from 'node:assert'
import { CommandExitError, Sandbox, TimeoutError } from 'e2b'

async function onlyRuns(pid) {
  const deadline = Date.now() + 30_000
  for (;;) {
    const pids = (await sandbox.commands.list()).map((info) => info.pid)
    assert.ok(pids.includes(pid))
    if (pids.length === 1) return
    assert.ok(Date.now() < deadline, `still runs: ${pids}`)
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
}

const sandbox = await Sandbox.create({ timeoutMs: 120_000, envs: { GLOBAL: 'sandbox' } })
try {
  const done = await sandbox.commands.run('echo out; echo err >&2; echo $GLOBAL $MINE; pwd', { envs: { MINE: 'command' } })
  assert.equal(done.stdout, 'out\nsandbox command\n/home/user\n')
  assert.equal(done.stderr, 'err\n')
  assert.equal(done.exitCode, 0)
  await assert.rejects(sandbox.commands.run('exit 3'), (error) => error instanceof CommandExitError && error.exitCode === 3)
  await assert.rejects(sandbox.commands.run('sleep 1000', { timeoutMs: 1000 }), TimeoutError)
  await assert.rejects(sandbox.commands.run('true', { cwd: '/nowhere' }), /cwd '\/nowhere' does not exist/)
  await assert.rejects(sandbox.commands.run('true', { user: 'ghost' }), /invalid username: 'ghost'/)

  const handle = await sandbox.commands.run('cat; exit 4', { background: true, stdin: true })
  await onlyRuns(handle.pid) // what ran into its timeout is killed, and goes
  await handle.disconnect()
  const again = await sandbox.commands.connect(handle.pid)
  await sandbox.commands.sendStdin(handle.pid, 'typed\n')
  await sandbox.commands.closeStdin(handle.pid)
  await assert.rejects(again.wait(), (error) => error.exitCode === 4 && error.stdout === 'typed\n')

  const sleeper = await sandbox.commands.run('sleep 1000', { background: true })
  assert.equal(await sandbox.commands.kill(sleeper.pid), true)
  assert.equal(await sandbox.commands.kill(sleeper.pid), false)

  let printed = ''
  const decoder = new TextDecoder()
  const terminal = await sandbox.pty.create({
    cols: 100, rows: 30, onData: (data) => { printed += decoder.decode(data) },
  })
  await sandbox.pty.resize(terminal.pid, { cols: 90, rows: 20 })
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit\n'))
  await terminal.wait()
  assert.match(printed, /20 90/)
} finally {
  await sandbox.kill()
}
