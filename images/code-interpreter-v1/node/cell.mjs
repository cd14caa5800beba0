// A cell as V8 can evaluate it as a script: what only a module may say (import, export) is said in another way.
// The parser is the one that Node.js itself has inside, for its own console (--expose-internals).
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const { parse } = require('internal/deps/acorn/acorn/dist/acorn');
const { full } = require('internal/deps/acorn/acorn-walk/dist/walk');

const OPTIONS = {
  ecmaVersion: 'latest', sourceType: 'script', allowAwaitOutsideFunction: true, allowImportExportEverywhere: true,
  allowHashBang: true,
};

const nameOf = (node) => (node.type === 'Literal' ? node.raw : node.name);

const declaration = (node, code) => {
  const attributes = node.attributes?.length
    ? `, { with: { ${node.attributes.map((one) => code.slice(one.start, one.end)).join(', ')} } }`
    : '';
  const loaded = `await __import(${node.source.raw}${attributes})`;
  const names = [];
  const statements = [];
  for (const one of node.specifiers) {
    if (one.type === 'ImportNamespaceSpecifier') statements.push(`const ${one.local.name} = ${loaded};`);
    else if (one.type === 'ImportDefaultSpecifier') names.push(`default: ${one.local.name}`);
    else names.push(`${nameOf(one.imported)}: ${one.local.name}`);
  }
  if (names.length) statements.push(`const { ${names.join(', ')} } = ${loaded};`);
  return statements.length ? statements.join(' ') : `${loaded};`;
};

// runnable returns code with its imports as calls; what cannot be parsed stays as it is, and V8 says what is wrong.
export const runnable = (code) => {
  let tree;
  try {
    tree = parse(code, OPTIONS);
  } catch {
    return code;
  }
  const changes = [];
  full(tree, (node) => {
    if (node.type === 'ImportDeclaration') changes.push([node.start, node.end, declaration(node, code)]);
    else if (node.type === 'ImportExpression') changes.push([node.start, node.start + 'import'.length, '__import']);
    else if (node.type === 'ExportNamedDeclaration' && node.declaration) changes.push([node.start, node.declaration.start, '']);
    else if (node.type === 'ExportNamedDeclaration') changes.push([node.start, node.end, '']);
    else if (node.type === 'ExportDefaultDeclaration') changes.push([node.start, node.declaration.start, '']);
  });
  changes.sort((one, other) => other[0] - one[0]);
  return changes.reduce((text, [start, end, instead]) => text.slice(0, start) + instead + text.slice(end), code);
};
