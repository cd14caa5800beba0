# sdk: newest
"""Forks: running copies with ids of their own; the original goes on."""

from e2b.exceptions import SandboxNotFoundException

from e2b import Sandbox

BEATS = """
rm -f /tmp/beat
for n in $(seq 200); do test -e /tmp/beat && break; sleep 0.1; done
cat /tmp/beat && echo $A beats
"""

sandbox = Sandbox.create("base", timeout=120, envs={"A": "1"})
sandbox.files.write("/home/user/state.txt", "before")
process = sandbox.commands.run("while sleep 0.1; do touch /tmp/beat; done", background=True)
forks = sandbox.fork(count=2, timeout=60)
assert len({sandbox.sandbox_id, *(fork.sandbox_id for fork in forks)}) == 3
assert sandbox.is_running()
for fork in forks:
    assert fork.files.read("/home/user/state.txt") == "before"
    assert fork.commands.run(BEATS).stdout == "1 beats\n", "its processes run on"
    fork.files.write("/home/user/state.txt", "its own")
    assert fork.kill()
assert sandbox.files.read("/home/user/state.txt") == "before"
assert sandbox.kill()
try:
    sandbox.fork()
except SandboxNotFoundException:
    pass
else:
    raise AssertionError("a fork of what is gone")
