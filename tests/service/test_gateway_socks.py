"""Connections through upstream proxies: what the proxy does wrong, and both ends of TLS ending on their own."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Callable
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from tests.support.egress_world import make_ca, make_leaf

from space.gateway import socks
from space.gateway.resolve import Resolver
from space.gateway.socks import Dialer, UpstreamProxyFailed
from space.gateway.streams import Plain, Tls, carry
from space.model.policy_upstream import UpstreamProxy

TARGET = IPv4Address("203.0.113.20"), 443
DIALER = Dialer(Resolver([], []), ssl.create_default_context())
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


@contextlib.asynccontextmanager
async def _proxy(said: bytes, *, hang_up: bool) -> AsyncGenerator[UpstreamProxy]:
    """A server that says this, whatever it is asked, and then says that it says no more, or does not."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        if hang_up:
            writer.write_eof()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield UpstreamProxy("127.0.0.1", server.sockets[0].getsockname()[1])


@pytest.mark.parametrize(
    ("said", "hang_up", "words"),
    [
        (b"", True, "it hung up"),
        (b"", False, "gave no connection within"),
        (b"\x05", False, "gave no connection within"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", True, "Unexpected SOCKS version"),
        (b"\x05\x02", True, "refused: Unexpected SOCKS authentication method"),
        (b"\x05\x00\x05\x05\x00", True, "refused: Connection refused by destination"),
        (b"\x05\x00\x05\x63\x00", True, "refused: Invalid reply code"),
        (b"\x05\x00\x05\x00\x00\x07", True, "refused: Invalid address type"),
        (b"\x05\x00\x05\x00\x00\x03\x02\xff\xfe\x00\x00", True, "does not speak SOCKS5"),
    ],
)
async def test_whatever_a_proxy_says_wrong_is_no_connection(
    monkeypatch: pytest.MonkeyPatch,
    said: bytes,
    hang_up: bool,
    words: str,
) -> None:
    monkeypatch.setattr(socks, "_DIAL_S", 0.3)
    async with _proxy(said, hang_up=hang_up) as proxy:
        with pytest.raises(UpstreamProxyFailed, match=words):
            async with DIALER.dialled(proxy, (), {}, TARGET):
                pass


async def test_what_a_server_says_first_is_not_taken_for_the_proxys() -> None:
    async with (
        _proxy(b"\x05\x00\x05\x00\x00\x01" + bytes(6) + b"220 ready", hang_up=False) as proxy,
        DIALER.dialled(proxy, (), {}, TARGET) as stream,
    ):
        buffer = bytearray(99)
        assert buffer[: await stream.receive_into(memoryview(buffer))] == b"220 ready"


def _serve_tls(listener: socket.socket, context: ssl.SSLContext, received: list[bytes], size: int) -> None:
    """Say much, then take everything up to the client's end, and only then say as much again."""
    with listener, context.wrap_socket(listener.accept()[0], server_side=True) as connection:
        connection.sendall(bytes(size))
        while data := connection.recv(65536):
            received.append(data)
        connection.sendall(bytes(size))
        with contextlib.suppress(OSError):
            connection.unwrap()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_an_end_in_one_direction_passes_tls(tmp_path: Path, version: ssl.TLSVersion) -> None:
    """RFC 8446 section 6.1: the client's end arrives; what was on its way then, and what comes later, arrives whole."""
    ca = make_ca("the proxy's")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.maximum_version = version
    server.load_cert_chain(make_leaf(ca, "proxy.test", tmp_path / "leaf.pem"))
    listener = socket.create_server(("127.0.0.1", 0))
    received: list[bytes] = []
    size = 3_000_000
    thread = threading.Thread(target=_serve_tls, args=(listener, server, received, size))
    thread.start()
    loop = asyncio.get_running_loop()
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    with near, far, socket.socket() as below:
        below.setblocking(False)
        await loop.sock_connect(below, listener.getsockname())
        tls = Tls(below, ssl.create_default_context(cadata=ca.pem), "proxy.test")
        await tls.handshake()
        seen = {True: 0, False: 0}

        def count(sends: bool, size: int) -> None:
            seen[sends] += size

        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            group.create_task(carry(Plain(far), tls, count))
            await loop.sock_sendall(near, b"hello" * 1000)
            near.shutdown(socket.SHUT_WR)
            answer = 0
            while data := await loop.sock_recv(near, 65536):
                answer += len(data)
    await asyncio.to_thread(thread.join)
    assert b"".join(received) == b"hello" * 1000
    assert answer == 2 * size
    assert seen == {True: 5000, False: 2 * size}


async def test_another_certificate_is_refused(tmp_path: Path) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(make_leaf(make_ca("another"), "proxy.test", tmp_path / "leaf.pem"))
    async with await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0, ssl=server) as listening:
        with socket.socket() as below:
            below.setblocking(False)
            await asyncio.get_running_loop().sock_connect(below, listening.sockets[0].getsockname())
            with pytest.raises(ssl.SSLCertVerificationError):
                await Tls(below, ssl.create_default_context(), "proxy.test").handshake()
