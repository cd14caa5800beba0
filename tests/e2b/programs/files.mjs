// Files, links and watching through the JavaScript SDK.
import assert from 'node:assert'
import { FilesystemEventType, NotFoundError, Sandbox } from 'e2b'

const sandbox = await Sandbox.create({ timeoutMs: 120_000 })
try {
  const files = sandbox.files
  const made = await files.write('notes/a.txt', 'hello')
  assert.equal(made.path, '/home/user/notes/a.txt')
  assert.equal(await files.read('notes/a.txt'), 'hello')
  const several = await files.write([{ path: 'several/1', data: 'one' }, { path: 'several/2', data: new Blob(['two']) }])
  assert.deepEqual(several.map((entry) => entry.name), ['1', '2'])
  assert.equal(await files.read('several/2'), 'two')
  const bytes = new Uint8Array(1 << 20).map((_, index) => index * 31)
  await files.write('binary', bytes.buffer)
  assert.deepEqual(await files.read('binary', { format: 'bytes' }), bytes)
  const info = await files.getInfo('notes/a.txt')
  assert.equal(`${info.size} ${info.permissions} ${info.owner}`, '5 -rw-r--r-- user')
  assert.equal(await files.makeDir('folder'), true)
  assert.equal(await files.makeDir('folder'), false)
  await files.rename('notes/a.txt', 'folder/b.txt')
  assert.deepEqual((await files.list('folder')).map((entry) => entry.path), ['/home/user/folder/b.txt'])
  await files.remove('folder')
  assert.equal(await files.exists('folder'), false)
  await assert.rejects(files.read('nowhere'), NotFoundError)

  const answer = await fetch(await sandbox.downloadUrl('several/1'))
  assert.equal(await answer.text(), 'one')

  const events = []
  const enough = Promise.withResolvers()
  await files.makeDir('watched')
  const watcher = await files.watchDir('watched', (event) => {
    events.push(`${event.name} ${event.type}`)
    if (events.length === 3) enough.resolve()
  })
  await files.write('watched/new.txt', 'x')
  const late = setTimeout(() => enough.reject(new Error(`only ${events}`)), 60_000)
  await enough.promise
  clearTimeout(late)
  const { CREATE, CHMOD, WRITE } = FilesystemEventType
  assert.deepEqual(events, [CREATE, CHMOD, WRITE].map((kind) => `new.txt ${kind}`))
  await watcher.stop()
} finally {
  await sandbox.kill()
}
