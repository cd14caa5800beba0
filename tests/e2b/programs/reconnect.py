"""Hold on to a command that prints for a while, lose the connection twice, miss nothing and get its exit code.

    reconnect.py [LINES [SECONDS_BETWEEN]]

The first time the client leaves, the second time its connection is cut. In between the command prints on; it ends
while nobody is connected.
"""

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

from e2b import CommandExitException, Sandbox, SandboxException

LINES, PAUSE_S = int((sys.argv[1:] or ["6"])[0]), float((sys.argv[2:] or ["2"])[0])
EXIT_CODE = 7


class Relay:
    """Carries connections to an address, until they are cut."""

    def __init__(self, url: str) -> None:
        """Listen on a free port."""
        there = urlsplit(url)
        self._there = (there.hostname, there.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """End all connections of now."""
        while self._open:
            with contextlib.suppress(OSError):  # that one has ended
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(self._there)
            self._open += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):  # cut
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


relay = Relay(os.environ["E2B_SANDBOX_URL"])  # noqa: TID251 - what a user of the SDK sets


def read(handle: Iterator[tuple[str | None, str | None, bytes | None]], lines: int) -> str:
    """Read until so many lines have come."""
    text = ""
    while text.count("\n") < lines:
        text += next(handle)[0] or ""
    return text


with Sandbox.create(timeout=int(LINES * PAUSE_S) + 300, sandbox_url=relay.url) as sandbox:
    script = f"for i in $(seq {LINES}); do echo $i; echo $i >progress; sleep {PAUSE_S}; done; exit {EXIT_CODE}"
    third = LINES // 3

    handle = sandbox.commands.run(script, background=True, timeout=0)
    reader = iter(handle)
    printed = read(reader, third)
    reader.close()
    handle.disconnect()
    while int(sandbox.files.read("progress") or 0) <= third:
        pass

    handle = sandbox.commands.connect(handle.pid, timeout=0)
    printed += read(iter(handle), third)
    relay.cut()
    try:
        handle.wait()
        raise AssertionError("the connection was cut")
    except SandboxException as lost:
        assert not isinstance(lost, CommandExitException), lost
    while any(process.pid == handle.pid for process in sandbox.commands.list()):
        pass

    rest: list[str] = []
    try:
        sandbox.commands.connect(handle.pid, timeout=0).wait(on_stdout=rest.append)
        raise AssertionError("it ended well")
    except CommandExitException as ended:
        assert ended.exit_code == EXIT_CODE, ended
    printed += "".join(rest)
    assert printed.split() == [str(i + 1) for i in range(LINES)], printed
