"""A sandbox from its creation to its end: info, timeout, pause and connect, what it uses, kill, and what is gone."""

import datetime
import threading

from e2b.exceptions import NotFoundException

from e2b import Sandbox, TimeoutException

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

# what it uses: real figures, and a history that grows
found = sandbox.get_metrics()
last = found[-1]
assert last.cpu_count == 1
assert 0 <= last.cpu_used_pct <= 100
assert 300 * 2**20 < last.mem_total <= 512 * 2**20
assert 0 < last.mem_used < last.mem_total
assert 0 < last.disk_used < last.disk_total
sandbox.commands.run("head -c 50000000 /dev/urandom > /home/user/blob; sync; sleep 1")
later = sandbox.get_metrics()
assert len(later) > len(found)
assert later[-1].disk_used > last.disk_used + 40_000_000
assert sandbox.get_metrics(start=later[-1].timestamp)[0].timestamp >= found[0].timestamp

# a stream that is open when its sandbox is killed ends at once, and its reader is told that the sandbox is gone
reading = threading.Event()
ended: list[BaseException | None] = []


def read() -> None:
    """Read what a command prints, until it ends."""
    try:
        handle = sandbox.commands.run("while true; do echo tick; sleep 0.1; done", background=True)
        handle.wait(on_stdout=lambda _: reading.set())
        ended.append(None)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at below
        ended.append(error)


reader = threading.Thread(target=read)
reader.start()
assert reading.wait(60)
assert sandbox.kill()
assert not sandbox.kill()
assert not sandbox.is_running()
reader.join(30)
assert not reader.is_alive(), "it still reads"
(error,) = ended
assert isinstance(error, TimeoutException), repr(error)
assert "sandbox" in str(error), str(error)

try:
    sandbox.commands.run("true")
except TimeoutException as error:
    assert "The sandbox was not found" in str(error), str(error)
else:
    raise AssertionError("a command ran in a sandbox that was killed")
for call in (sandbox.get_info, lambda: Sandbox.connect(sandbox.sandbox_id), lambda: sandbox.set_timeout(5)):
    try:
        call()
    except NotFoundException:
        continue
    raise AssertionError(call)
