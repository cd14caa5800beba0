"""A sandbox from its creation to its end: info, timeout, pause and connect, kill, and calls to what is gone."""

import datetime

from e2b.exceptions import NotFoundException

from e2b import Sandbox

sandbox = Sandbox.create("base", timeout=120, metadata={"ünïcode:key": "a b&c=d"}, envs={"GREETING": "hello"})
assert sandbox.is_running()
assert sandbox.commands.run("echo $GREETING").stdout == "hello\n"

info = sandbox.get_info()
assert info.sandbox_id == sandbox.sandbox_id
assert info.metadata == {"ünïcode:key": "a b&c=d"}
assert (info.cpu_count, info.memory_mb, info.state.value) == (1, 512, "running")
now = datetime.datetime.now(datetime.UTC)
assert now - datetime.timedelta(seconds=120) < info.started_at < now
assert 0 < (info.end_at - now).total_seconds() <= 120

Sandbox.connect(sandbox.sandbox_id, timeout=10)
assert sandbox.get_info().end_at == info.end_at, "connecting shortens nothing"
Sandbox.connect(sandbox.sandbox_id, timeout=600)
assert sandbox.get_info().end_at > info.end_at
sandbox.set_timeout(60)
assert sandbox.get_info().end_at < info.end_at + datetime.timedelta(seconds=60)

sandbox.files.write("/home/user/kept.txt", "kept")
assert sandbox.pause()
assert not sandbox.pause(), "paused already"
assert sandbox.get_info().state.value == "paused"
again = Sandbox.connect(sandbox.sandbox_id, timeout=90)
assert again.sandbox_id == sandbox.sandbox_id
assert again.files.read("/home/user/kept.txt") == "kept"
assert sandbox.is_running(), "the handle from before goes on: the token is the same"

assert sandbox.kill()
assert not sandbox.kill()
assert not sandbox.is_running()
for call in (sandbox.get_info, lambda: Sandbox.connect(sandbox.sandbox_id), lambda: sandbox.set_timeout(5)):
    try:
        call()
    except NotFoundException:
        continue
    raise AssertionError(call)
