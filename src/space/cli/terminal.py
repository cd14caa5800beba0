"""The terminal and standard input of this process: raw mode, size, reading without holding up the end."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import AsyncGenerator, Callable, Generator

_CHUNK_BYTES = 64 * 1024
_QUEUE_CHUNKS = 16


def size() -> tuple[int, int]:
    """Return columns and rows of the terminal on standard output; 80 by 24 where there is none or it does not know."""
    found = shutil.get_terminal_size((80, 24))
    return found.columns, found.lines


@contextlib.contextmanager
def raw() -> Generator[None]:
    """Pass every key of the terminal on standard input through as bytes; its modes come back at the end."""
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)  # keeps what was typed already
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextlib.contextmanager
def on_signal(number: signal.Signals, action: Callable[[], None]) -> Generator[None]:
    """Call `action` in the event loop for each such signal, while inside; one that is ignored (nohup) stays ignored."""
    if signal.getsignal(number) is signal.SIG_IGN:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(number, action)
    try:
        yield
    finally:
        loop.remove_signal_handler(number)


@contextlib.contextmanager
def on_end(action: Callable[[], None]) -> Generator[None]:
    """Call `action` for each signal by which people end a program (Ctrl-C, kill, a closed terminal), while inside."""
    with contextlib.ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            stack.enter_context(on_signal(number, action))
        yield


async def stdin_chunks() -> AsyncGenerator[bytes]:
    """Yield what comes on standard input, up to its end.

    A thread of its own reads (files and devices cannot be polled), and it is a daemon: a read that never returns does
    not hold up the end of the process, as one in asyncio's pool would.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(_QUEUE_CHUNKS)

    def read() -> None:
        while True:
            room.acquire()
            try:
                chunk = os.read(0, _CHUNK_BYTES)
            except OSError:
                chunk = b""
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:  # the loop is closed: nobody listens any more
                return
            if not chunk:
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while chunk := await chunks.get():
        room.release()
        yield chunk
