// The JavaScript kernel: the main thread runs the user's cells, a thread of its own talks to the server.
//
//   node kernel.mjs DESCRIPTOR        a socket; one JSON object a line, both ways
//   server: {op: "run", code, types, env} · {op: "interrupt"} · {op: "renew"}
//   kernel: {op: "ready"} · {op: "told", line} · {op: "shown", forms, main} · {op: "done"}
//
// Cells are evaluated through V8's inspector in its REPL mode, as browsers' consoles do: await at the top, `const` and
// `let` may be said again. The other thread can stop a cell that never ends, and the state of this one stays.
import { createRequire } from 'node:module';
import { openSync, readSync } from 'node:fs';
import { Session } from 'node:inspector';
import { inspect } from 'node:util';
import { pathToFileURL } from 'node:url';
import { SHARE_ENV, Worker } from 'node:worker_threads';

const here = () => pathToFileURL(`${process.cwd()}/`).href;
const DISPLAY = Symbol.for('Jupyter.display'); // Deno's name for an object's own forms, by MIME type

const formsOf = async (value) => {
  const own = value?.[DISPLAY];
  return { 'text/plain': inspect(value), ...(typeof own === 'function' ? await own.call(value) : {}) };
};

const faultOf = (error) => {
  if (!(error instanceof Error || typeof error?.stack === 'string')) {
    return { name: 'Error', value: inspect(error), traceback: `Uncaught ${inspect(error)}` };
  }
  const frames = String(error.stack).split('\n');
  const ours = frames.findIndex((frame) => frame.includes('node:inspector'));
  return { name: error.name ?? 'Error', value: String(error.message), traceback: frames.slice(0, ours < 0 ? undefined : ours).join('\n') };
};

// Math.random of a machine's copy: V8's generator was copied too, and cannot be seeded.
const randomOfKernel = () => {
  const numbers = new BigUint64Array(4096);
  const urandom = openSync('/dev/urandom');
  let left = 0;
  return () => {
    if (left === 0) {
      readSync(urandom, numbers);
      left = numbers.length;
    }
    left -= 1;
    return Number(numbers[left] >> 11n) / 2 ** 53;
  };
};

const { setImmediate } = globalThis; // whatever a cell makes of the global one
const session = new Session();
session.connect();
const ask = (method, parameters) => new Promise((resolve, reject) => {
  session.post(method, parameters, (error, answer) => (error ? reject(error) : resolve(answer)));
});

// valueOf returns what the inspector only tells of, by having it call a function of ours.
let taken;
globalThis.take = (value) => { taken = value; };
const take = (await ask('Runtime.evaluate', { expression: 'take' })).result.objectId;
delete globalThis.take;
const valueOf = async ({ objectId, unserializableValue, value }) => {
  const given = objectId ? { objectId } : unserializableValue ? { unserializableValue } : { value };
  await ask('Runtime.callFunctionOn', { functionDeclaration: 'function (value) { this(value); }', objectId: take, arguments: [given] });
  const found = taken;
  taken = undefined;
  return found;
};

const hidden = (name, value) => Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
hidden('require', createRequire(here()));
hidden('__import', (name, options) => import(import.meta.resolve(name, here()), options));
hidden('display', async (value) => say({ op: 'shown', forms: await formsOf(value), main: false }));

// What a timer or a promise throws later is told, and ends nothing.
for (const event of ['uncaughtException', 'unhandledRejection']) {
  process.on(event, (error) => process.stderr.write(`Uncaught ${error?.stack ?? inspect(error)}\n`));
}

const talker = new Worker(new URL('./talker.mjs', import.meta.url), { argv: process.argv.slice(2), env: SHARE_ENV });
const say = (message) => talker.postMessage(message);
const INTERRUPTED = { name: 'Interrupted', value: 'The cell was interrupted', traceback: '' };
let stop = () => {}; // ends the wait for the running cell

const run = async (expression) => {
  const stopped = new Promise((resolve) => { stop = () => resolve({ stopped: true }); });
  const evaluated = ask('Runtime.evaluate', { expression, replMode: true, awaitPromise: true, userGesture: true });
  const { result, exceptionDetails, stopped: early } = await Promise.race([evaluated, stopped]);
  if (early) return { type: 'error', ...INTERRUPTED };
  if (exceptionDetails) {
    const { exception, text } = exceptionDetails;
    return { type: 'error', ...faultOf(exception ? await valueOf(exception) : new Error(text)) };
  }
  const value = await valueOf(result);
  if (value !== undefined) say({ op: 'shown', forms: await formsOf(value), main: true });
  return null;
};

const handle = async ({ op, expression }) => {
  if (op === 'turn') setImmediate(say, { op: 'turned' }); // a cell that keeps the thread to itself lets nobody answer
  else if (op === 'stop') stop();
  else if (op === 'renew') Math.random = randomOfKernel();
  else if (op === 'run') {
    // a cell that was stopped by force is an error of the inspector
    const line = await run(expression).catch((error) => ({ type: 'error', ...(/terminated/.test(error.message) ? INTERRUPTED : faultOf(error)) }));
    say({ op: 'ran', line });
  }
};
talker.on('message', (message) => void handle(message));
talker.on('error', (error) => { throw error; });
talker.on('exit', () => process.exit(0)); // the server has gone
