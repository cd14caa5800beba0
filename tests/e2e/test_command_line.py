"""The command line as people and scripts use it: pipes, Ctrl-C, terminals, and processes that die meanwhile."""

import asyncio
import contextlib
import hashlib
import os
import pty
import signal
from collections.abc import AsyncIterator

import pytest
from tests.support.deployment import SPACE, Deployment, eventually, vmm_pids


async def _start(
    space: Deployment, *arguments: str, stdin: int = asyncio.subprocess.DEVNULL
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        SPACE,
        *arguments,
        env=space.environment,
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def _line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    async with asyncio.timeout(60):
        return await process.stdout.readline()


async def _end(process: asyncio.subprocess.Process) -> tuple[int, bytes, bytes]:
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out, err


async def _ids(space: Deployment) -> set[str]:
    found = (await space.http.get("/v1/sandboxes")).json()["sandboxes"]
    return {one["id"] for one in found}


@pytest.mark.parametrize(
    ("options", "command", "status", "said"),
    [
        ((), ("sh", "-c", "exit 7"), 7, ""),
        ((), ("sh", "-c", "kill -TERM $$"), 128 + signal.SIGTERM, ""),
        ((), ("no-such-program",), 127, "no-such-program"),
        ((), ("/etc/passwd",), 126, "/etc/passwd"),
        (("--user", "nobody-here"), ("true",), 125, "nobody-here"),
        (("--timeout", "0.5"), ("sleep", "600"), 124, "--timeout"),
    ],
)
async def test_the_exit_status_tells_whose_it_is(
    space: Deployment, sandbox: str, options: tuple[str, ...], command: tuple[str, ...], status: int, said: str
) -> None:
    found, _, err = await space.cli("sandbox", "exec", *options, sandbox, "--", *command)
    assert (found, bool(err)) == (status, bool(said))
    assert said in err


async def test_a_shell_without_a_terminal_says_what_to_do(space: Deployment, sandbox: str) -> None:
    """It once said to leave out -t, an option that it does not have."""
    status, _, err = await space.cli("sandbox", "shell", sandbox)
    assert (status, "-t" in err.split()) == (125, False)
    assert f"exec -i {sandbox}" in err


async def test_labels_are_listed(space: Deployment) -> None:
    _, out, _ = await space.cli("sandbox", "create", "base", "-l", "task=42")
    try:
        assert "task=42" in (await space.cli("sandbox", "ls", "--label", "task=42"))[1]
    finally:
        await space.delete(out.strip())


async def test_ctrl_c_goes_to_the_command(space: Deployment, sandbox: str) -> None:
    script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done"
    process = await _start(space, "sandbox", "exec", sandbox, "--", "sh", "-c", script)
    assert await _line(process) == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert await _end(process) == (9, b"caught\n", b"")


async def test_ctrl_c_twice_gives_up_on_a_stubborn_command(space: Deployment, sandbox: str) -> None:
    script = "trap 'echo no' INT; echo ready; while :; do sleep 0.1; done"
    process = await _start(space, "sandbox", "exec", sandbox, "--", "sh", "-c", script)
    assert await _line(process) == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert await _line(process) == b"no\n"
    process.send_signal(signal.SIGINT)
    assert (await _end(process))[0] == 130


async def test_ctrl_c_while_creating_leaves_no_sandbox(space: Deployment) -> None:
    before = await _ids(space)
    process = await _start(space, "run", "base", "--", "sleep", "600")

    async def more() -> bool:
        return await _ids(space) > before

    await eventually(more, within_s=20, what="the sandbox is being made")
    process.send_signal(signal.SIGINT)
    assert (await _end(process))[0] == 130
    assert await _ids(space) == before


async def test_a_sandbox_that_does_not_start_is_not_left(space: Deployment, sandbox: str) -> None:
    """`run` left it, `failed`, for somebody to find."""
    made = await space.order(sandbox, "snapshots", name="e2e-no-start", memory=False)
    known = set(vmm_pids(space.data))
    ended = asyncio.Event()

    async def kill() -> None:
        """Kill each VM that comes up: it is tried twice."""
        while not ended.is_set():
            for pid in set(vmm_pids(space.data)) - known:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        group.create_task(kill())
        status, _, error = await space.cli("run", "e2e-no-start", "--", "true")
        ended.set()
    assert status == 125
    assert "did not come up" in error
    listed = (await space.http.get("/v1/sandboxes")).json()["sandboxes"]
    assert [one["id"] for one in listed] == [sandbox]
    assert (await space.http.delete(f"/v1/snapshots/{made['digest']}")).is_success


async def test_a_reader_that_leaves_ends_it_quietly_and_deletes_the_sandbox(space: Deployment) -> None:
    before = await _ids(space)
    reading, writing = os.pipe()
    process = await asyncio.create_subprocess_exec(
        SPACE, "run", "base", "--", "yes", env=space.environment,
        stdin=asyncio.subprocess.DEVNULL, stdout=writing, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    os.close(writing)
    assert await asyncio.to_thread(os.read, reading, 2) == b"y\n"
    os.close(reading)
    assert (await _end(process))[::2] == (141, b"")
    assert await _ids(space) == before


async def test_standard_input_reaches_the_command_to_its_end(space: Deployment, sandbox: str) -> None:
    data = os.urandom(3 * 1024 * 1024)
    status, out, _ = await space.cli("sandbox", "exec", "-i", sandbox, "--", "sha256sum", stdin=data)
    assert (status, out.split()[0]) == (0, hashlib.sha256(data).hexdigest())


async def test_bulk_output_is_exact(space: Deployment, sandbox: str) -> None:
    script = "head -c 5000000 /dev/urandom > /tmp/bulk; sha256sum < /tmp/bulk >&2; cat /tmp/bulk"
    process = await _start(space, "sandbox", "exec", sandbox, "--", "sh", "-c", script)
    status, out, err = await _end(process)
    assert status == 0
    assert hashlib.sha256(out).hexdigest() == err.decode().split()[0]


@pytest.mark.parametrize("name", ["edge", "ingress", "egress", "worker"])
async def test_a_process_that_dies_costs_no_output(space: Deployment, sandbox: str, name: str) -> None:
    script = "echo 1; while [ ! -e /tmp/go-$0 ]; do sleep 0.05; done; seq 2 1000"
    process = await _start(space, "sandbox", "exec", sandbox, "--", "sh", "-c", script, name)
    assert await _line(process) == b"1\n"
    pid = space.daemon_pid(name)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: space.daemon_ready(name, pid), within_s=30, what=f"{name} is back")

    async def told() -> bool:
        path = f"/v1/sandboxes/{sandbox}/files"
        return (await space.http.put(path, params={"path": f"/tmp/go-{name}"})).is_success

    await eventually(told, within_s=30, what="the guest takes a file again")
    status, out, _ = await _end(process)
    assert (status, out.decode().split()) == (0, [str(n) for n in range(2, 1001)])


async def test_a_shell_is_a_terminal_and_gives_its_status(space: Deployment, sandbox: str) -> None:
    ours, theirs = pty.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            SPACE, "sandbox", "shell", sandbox, env=space.environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        os.write(ours, b"test -t 0 && echo is-a-$((1+1))-tty\n")  # typed ahead, before the shell is there
        seen = b""
        async with asyncio.timeout(60):
            async for piece in _read(ours):
                seen += piece
                if b"is-a-2-tty" in seen:
                    break
        os.write(ours, b"exit 5\n")
        async with asyncio.timeout(60):
            async for _ in _read(ours):
                pass
            assert await process.wait() == 5
    finally:
        os.close(ours)


async def _read(terminal: int) -> AsyncIterator[bytes]:
    """Yield what a terminal says, up to its end (EIO: nobody has the other side open)."""
    while True:
        try:
            piece = await asyncio.to_thread(os.read, terminal, 4096)
        except OSError:
            return
        yield piece
