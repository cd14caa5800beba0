// The thread that talks to the server and stops the main thread's cells: see kernel.mjs.
import { Session } from 'node:inspector/promises';
import { stripTypeScriptTypes } from 'node:module';
import { readFileSync } from 'node:fs';
import { Socket } from 'node:net';
import { parentPort } from 'node:worker_threads';
import { runnable } from './cell.mjs';

const BOOT_ID = '/proc/sys/kernel/random/boot_id';
const ENVIRONMENT = '/run/space/environment';
// How long the main thread's event loop may take to turn before a cell counts as one that keeps it.
const TURN_MS = 300;

const socket = new Socket({ fd: Number(process.argv[2]), readable: true, writable: true });
const say = (message) => socket.write(`${JSON.stringify(message)}\n`);
const tell = (line) => say({ op: 'told', line });
const ask = (message) => parentPort.postMessage(message);
const session = new Session();
session.connectToMainThread();

const textOf = (path) => {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
};
const sandboxEnvironment = () => {
  const entries = textOf(ENVIRONMENT).split('\0').filter((entry) => entry.includes('='));
  return Object.fromEntries(entries.map((entry) => [entry.slice(0, entry.indexOf('=')), entry.slice(entry.indexOf('=') + 1)]));
};

const known = { boot: textOf(BOOT_ID), names: Object.keys(sandboxEnvironment()) };
// A copy of the machine takes on its own variables and random numbers.
const renewIfCopied = () => {
  const boot = textOf(BOOT_ID);
  if (boot === known.boot) return;
  known.boot = boot;
  const environment = sandboxEnvironment();
  for (const name of known.names) if (!(name in environment)) delete process.env[name];
  Object.assign(process.env, environment);
  known.names = Object.keys(environment);
  ask({ op: 'renew' });
};

let count = 0;
let before = {}; // the variables that a run has in another value, as they were

const run = ({ code, types, env }) => {
  renewIfCopied();
  count += 1;
  tell({ type: 'number_of_executions', execution_count: count });
  let text;
  try {
    text = runnable(types ? stripTypeScriptTypes(code, { mode: 'transform' }) : code);
  } catch (error) {
    tell({ type: 'error', name: error.name, value: error.message, traceback: String(error) });
    say({ op: 'done' });
    return;
  }
  before = Object.fromEntries(Object.keys(env).map((name) => [name, process.env[name]]));
  Object.assign(process.env, env);
  ask({ op: 'run', expression: `${text}\n//# sourceURL=cell_${count}` });
};

const ran = (line) => {
  for (const [name, value] of Object.entries(before)) {
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  }
  before = {};
  if (line) tell(line);
  say({ op: 'done' });
};

let turned = () => {};
const interrupt = async () => {
  const answered = new Promise((resolve) => { turned = () => resolve(true); });
  const busy = new Promise((resolve) => { setTimeout(resolve, TURN_MS, false); });
  ask({ op: 'turn' });
  // A cell that waits for a promise is left to wait; a termination would hit what runs next.
  if (await Promise.race([answered, busy])) ask({ op: 'stop' });
  else await session.post('Runtime.terminateExecution').catch(() => {});
};

parentPort.on('message', (message) => {
  if (message.op === 'ran') ran(message.line);
  else if (message.op === 'turned') turned();
  else say(message);
});

let rest = '';
socket.setEncoding('utf8');
socket.on('data', (piece) => {
  const lines = (rest + piece).split('\n');
  rest = lines.pop();
  for (const line of lines) {
    const message = JSON.parse(line);
    if (message.op === 'run') run(message);
    else if (message.op === 'interrupt') void interrupt();
    else if (message.op === 'renew') renewIfCopied();
  }
});
socket.on('close', () => process.exit(0));
socket.on('error', () => process.exit(0));
say({ op: 'ready' });
