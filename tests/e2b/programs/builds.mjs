// Templates are built from steps; a failure says what E2B's says.

import assert from 'node:assert/strict'
import { mkdirSync, writeFileSync } from 'node:fs'
import { Sandbox, Template } from 'e2b'

const run = Math.random().toString(36).slice(2, 10)
const name = `js-builds-${run}`
mkdirSync('app')
writeFileSync('app/main.txt', 'main\n')

const said = []
const options = { cpuCount: 1, memoryMB: 512, onBuildLogs: (entry) => said.push(entry.message) }
const template = Template({ fileContextPath: process.cwd() })
  .fromBaseImage()
  .setEnvs({ GREETING: 'hello' })
  .copy('app', '/srv/app')
  .setWorkdir('/srv')
  .runCmd('cat app/main.txt')
const info = await Template.build(template, `${name}:v1`, options)
assert.ok(said.some((line) => line.includes('main')), said.join('\n'))
assert.ok(await Template.exists(name))
assert.ok(!(await Template.exists(`nothing-${run}`)))
assert.deepEqual((await Template.getTags(name)).map((tag) => tag.buildId), [info.buildId])

const sandbox = await Sandbox.create(`${name}:v1`, { timeoutMs: 60_000 })
const found = await sandbox.commands.run('pwd; echo $GREETING; cat app/main.txt')
assert.equal(found.stdout, '/srv\nhello\nmain\n')
await sandbox.kill()

await assert.rejects(
  Template.build(Template().fromBaseImage().skipCache().runCmd('exit 7'), `fails-${run}`, options),
  /failed to run command 'exit 7': command failed: /,
)
