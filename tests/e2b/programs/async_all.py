"""The same through the asynchronous SDK, many things at a time."""

import asyncio

import httpx

from e2b import AsyncSandbox, CommandExitException, FilesystemEventType, PtySize

REPO = "/home/user/repo"


async def main() -> None:
    """Use one sandbox for all of it, and two copies of it."""
    sandbox = await AsyncSandbox.create(timeout=180)
    try:
        await commands(sandbox)
        await watching(sandbox)
        await terminal(sandbox)
        await usage(sandbox)
        await signed_urls(sandbox)
        await git(sandbox)
        await network(sandbox)
        await copies(sandbox)
        await sleeping(sandbox)
    finally:
        await sandbox.kill()
    assert not await sandbox.kill()
    assert not await sandbox.is_running()


async def commands(sandbox: AsyncSandbox) -> None:
    """Run several at a time, and one that is written to."""
    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(sandbox.commands.run(f"sleep 0.{n % 3}; echo {n}; exit 0")) for n in range(8)]
    assert [run.result().stdout for run in runs] == [f"{n}\n" for n in range(8)]

    async def failing(code: int) -> int:
        try:
            await sandbox.commands.run(f"exit {code}")
        except CommandExitException as error:
            return error.exit_code
        return 0

    async with asyncio.TaskGroup() as group:
        ends = [group.create_task(failing(code)) for code in (1, 2, 77)]
    assert [end.result() for end in ends] == [1, 2, 77]

    parts: list[str] = []
    handle = await sandbox.commands.run("cat", background=True, stdin=True, on_stdout=parts.append)
    await sandbox.commands.send_stdin(handle.pid, "typed\n")
    await sandbox.commands.close_stdin(handle.pid)
    assert (await handle.wait()).stdout == "typed\n"
    assert parts == ["typed\n"]
    await sandbox.files.write("a.txt", "hello")
    assert await sandbox.files.read("a.txt") == "hello"
    assert [entry.name for entry in await sandbox.files.list(".") if entry.name == "a.txt"]


async def watching(sandbox: AsyncSandbox) -> None:
    """Be told of changes as they come."""
    events: asyncio.Queue[tuple[str, FilesystemEventType]] = asyncio.Queue()
    await sandbox.files.make_dir("watched")
    watcher = await sandbox.files.watch_dir(
        "watched", on_event=lambda event: events.put_nowait((event.name, event.type))
    )
    await sandbox.files.write("watched/a.txt", "x")
    async with asyncio.timeout(60):
        told = [await events.get() for _ in range(3)]
    kinds = [FilesystemEventType.CREATE, FilesystemEventType.CHMOD, FilesystemEventType.WRITE]
    assert told == [("a.txt", kind) for kind in kinds], told
    await watcher.stop()


async def terminal(sandbox: AsyncSandbox) -> None:
    """Type into one."""
    printed = bytearray()
    handle = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=printed.extend)
    await sandbox.pty.send_stdin(handle.pid, b"echo $((40 + 2)); exit\n")
    assert (await handle.wait()).exit_code == 0
    assert b"\r42\r\n" in bytes(printed), printed


async def usage(sandbox: AsyncSandbox) -> None:
    """Be told what it uses."""
    last = (await sandbox.get_metrics())[-1]
    assert last.cpu_count == 1
    assert 0 < last.mem_used < last.mem_total <= 512 * 2**20
    assert 0 < last.disk_used < last.disk_total


async def signed_urls(sandbox: AsyncSandbox) -> None:
    """Read and write without a key."""
    path = "/home/user/a file&.txt"
    async with httpx.AsyncClient() as http:
        up = await http.post(sandbox.upload_url(path, use_signature_expiration=60), files={"file": b"data"})
        assert up.status_code == 200, up.text
        url = sandbox.download_url(path, use_signature_expiration=60)
        assert (await http.get(url)).text == "data"
        assert (await http.get(url + "0")).status_code == 401
        expired = await http.get(sandbox.download_url(path, use_signature_expiration=-120))
        assert expired.status_code == 401, expired.text


async def git(sandbox: AsyncSandbox) -> None:
    """Commit."""
    await sandbox.git.init(REPO, initial_branch="main")
    await sandbox.git.configure_user("Somebody", "somebody@example.test")
    await sandbox.files.write(f"{REPO}/a.txt", "a")
    assert [file.name for file in (await sandbox.git.status(REPO)).file_status] == ["a.txt"]
    await sandbox.git.add(REPO)
    await sandbox.git.commit(REPO, "The first")
    status = await sandbox.git.status(REPO)
    assert (status.is_clean, status.current_branch) == (True, "main"), status


async def answers(sandbox: AsyncSandbox, name: str) -> bool:
    """Tell whether a name has an address inside: one that may not be reached has none."""
    found = await sandbox.commands.run(f"getent ahostsv4 {name} >/dev/null && echo yes || echo no")
    return found.stdout == "yes\n"


async def network(sandbox: AsyncSandbox) -> None:
    """Allow one name of all that are denied."""
    assert await answers(sandbox, "other.test"), "everything may leave where nothing is said"
    await sandbox.update_network({"deny_out": ["0.0.0.0/0"], "allow_out": ["example.test"]})
    assert await answers(sandbox, "example.test"), "what is allowed goes before what is denied"
    assert not await answers(sandbox, "other.test")


async def copies(sandbox: AsyncSandbox) -> None:
    """Start from a snapshot, and fork."""
    taken = await sandbox.create_snapshot()
    await sandbox.git.create_branch(REPO, "later")
    listed = await sandbox.list_snapshots().next_items()
    assert [one.snapshot_id for one in listed] == [taken.snapshot_id]
    old = await AsyncSandbox.create(taken.snapshot_id, timeout=60)
    assert (await old.git.status(REPO)).current_branch == "main"
    assert await old.kill()
    assert await AsyncSandbox.delete_snapshot(taken.snapshot_id)
    assert not await AsyncSandbox.delete_snapshot(taken.snapshot_id)

    (fork,) = await sandbox.fork(count=1, timeout=60)
    assert isinstance(fork, AsyncSandbox), fork
    assert fork.sandbox_id != sandbox.sandbox_id
    assert (await fork.git.status(REPO)).current_branch == "later"
    assert not await answers(fork, "other.test"), "it may reach what the original may"
    assert await fork.kill()


async def sleeping(sandbox: AsyncSandbox) -> None:
    """Pause it, and go on."""
    assert await sandbox.pause()
    assert not await sandbox.pause()
    assert (await sandbox.get_info()).state.value == "paused"
    await sandbox.connect(timeout=60)
    assert await sandbox.is_running()
    assert (await sandbox.git.status(REPO)).current_branch == "later"


asyncio.run(main())
