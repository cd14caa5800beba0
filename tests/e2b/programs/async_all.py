"""The same through the asynchronous SDK, many things at a time."""

import asyncio

from e2b import AsyncSandbox, CommandExitException, FilesystemEventType, PtySize


async def main() -> None:
    """Use one sandbox for all of it."""
    sandbox = await AsyncSandbox.create(timeout=120)
    try:
        await commands(sandbox)
        await watching(sandbox)
        await terminal(sandbox)
    finally:
        await sandbox.kill()


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


asyncio.run(main())
