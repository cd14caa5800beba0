// sdk: newest
// The code interpreter as its JavaScript SDK uses it.
import assert from 'node:assert/strict';
import { Sandbox } from '@e2b/code-interpreter';

const sandbox = await Sandbox.create({ timeoutMs: 300_000, envs: { GIVEN: 'to the sandbox' } });
try {
  const told = [];
  const execution = await sandbox.runCode("import os\nprint(os.environ['GIVEN'])\n6 * 7", {
    onStdout: (message) => told.push(message.line),
  });
  assert.equal(execution.text, '42');
  assert.deepEqual(told, ['to the sandbox\n']);

  const failed = await sandbox.runCode('1 / 0');
  assert.equal(failed.error.name, 'ZeroDivisionError');

  const plot = await sandbox.runCode('import matplotlib.pyplot as plt\nplt.scatter([1, 2], [3, 4], label="points")\nplt.show()');
  assert.ok(plot.results[0].png);
  assert.equal(plot.results[0].chart.type, 'scatter');
  assert.deepEqual(plot.results[0].chart.elements[0].points, [[1, 3], [2, 4]]);

  const script = await sandbox.runCode('const n: number = 41; n + 1', { language: 'typescript' });
  assert.equal(script.text, '42');

  const contexts = await sandbox.listCodeContexts();
  const context = contexts.find((one) => one.language === 'python');
  assert.equal((await sandbox.runCode('6 * 9', { context })).text, '54');

  await assert.rejects(sandbox.runCode('while True: pass', { timeoutMs: 3_000 }));
  assert.equal((await sandbox.runCode('2 + 3')).text, '5');
} finally {
  await sandbox.kill();
}
