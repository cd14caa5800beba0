// A stream that is open when its sandbox is killed ends at once, and its reader is told that the sandbox is gone.
import assert from 'node:assert/strict'
import { Sandbox, TimeoutError } from 'e2b'

const sandbox = await Sandbox.create('base', { timeoutMs: 120_000 })
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
