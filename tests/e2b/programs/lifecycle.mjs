// A sandbox from its creation to its end, with JavaScript's client.
import assert from 'node:assert/strict'
import { Sandbox, NotFoundError } from 'e2b'

const sandbox = await Sandbox.create('base', { timeoutMs: 120_000, metadata: { mark: 'js', 'a b': 'c&d=e' } })
assert.ok(await sandbox.isRunning())
assert.equal((await sandbox.commands.run('echo hello')).stdout, 'hello\n')
const info = await sandbox.getInfo()
assert.equal(info.sandboxId, sandbox.sandboxId)
assert.deepEqual(info.metadata, { mark: 'js', 'a b': 'c&d=e' })
assert.ok(info.endAt > new Date())

await sandbox.setTimeout(600_000)
assert.ok((await sandbox.getInfo()).endAt > info.endAt)
const listed = await Sandbox.list({ query: { metadata: { 'a b': 'c&d=e' } } }).nextItems()
assert.ok(listed.some((one) => one.sandboxId === sandbox.sandboxId))

await sandbox.files.write('/home/user/kept.txt', 'kept')
assert.ok(await sandbox.pause())
assert.equal(await sandbox.pause(), false)
assert.equal((await sandbox.getInfo()).state, 'paused')
const again = await Sandbox.connect(sandbox.sandboxId)
assert.equal(await again.files.read('/home/user/kept.txt'), 'kept')

assert.ok(await sandbox.kill())
assert.equal(await sandbox.kill(), false)
await assert.rejects(sandbox.getInfo(), NotFoundError)
