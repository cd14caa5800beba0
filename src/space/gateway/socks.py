"""Connections through a policy's upstream proxy (SOCKS5, RFC 1928 and 1929).

The proxy is asked for an address, never for a name: names are resolved and screened here (resolve.py), so that what a
policy or the host's rules refuse is not reached through a proxy either. The proxy's own address is screened likewise.
What the proxy does with a connection is its owner's business; whoever is reached by https is verified by the egress
proxy as always. There is no other way when this one fails.
"""

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from ipaddress import IPv4Address
from typing import cast

from python_socks import ProxyError, ProxyType
from python_socks.async_.asyncio.v2 import Proxy

from space.gateway.resolve import Resolver
from space.gateway.streams import Plain, Stream, Tls
from space.model.errors import SpaceError
from space.model.policy_bindings import Template
from space.model.policy_upstream import MAX_CREDENTIAL, UpstreamProxy

_DIAL_S = 5.0
"""From looking up the proxy to its answer; the egress proxy waits as long for a connection (proxy/egress.py)."""


class UpstreamProxyFailed(SpaceError):
    """The proxy gave no connection, so there is none."""

    code, status, title = "upstream_proxy_failed", 502, "Upstream proxy failed"


class Dialer:
    """Makes connections through proxies."""

    def __init__(self, resolver: Resolver, trust: ssl.SSLContext) -> None:
        """`trust` verifies proxies whose policy names no authority of their own."""
        self._resolver, self._trust = resolver, trust

    @contextlib.asynccontextmanager
    async def dialled(
        self,
        proxy: UpstreamProxy,
        servers: tuple[IPv4Address, ...],
        secrets: Mapping[str, str],
        target: tuple[IPv4Address, int],
    ) -> AsyncGenerator[Stream]:
        """A connection to `target` through `proxy`, for as long as the context lasts.

        `servers` are asked for the proxy's name, as in Resolver.pick. Raises UpstreamProxyFailed, and UnresolvedSecret.
        """
        username, password = _filled(proxy.username, secrets), _filled(proxy.password, secrets)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
            try:
                async with asyncio.timeout(_DIAL_S):
                    stream = await self._connected(connection, proxy, servers)
                    way = Proxy(
                        ProxyType.SOCKS5,
                        proxy.host,
                        proxy.port,
                        username,
                        password,
                        forward=cast("Proxy", _Way(stream)),
                    )
                    await way.connect(str(target[0]), target[1])
            except (ProxyError, OSError, SpaceError, ValueError) as error:
                raise UpstreamProxyFailed(f"The upstream proxy {proxy} {_why(error)}.") from error
            yield stream

    async def _connected(
        self, connection: socket.socket, proxy: UpstreamProxy, servers: tuple[IPv4Address, ...]
    ) -> Stream:
        """Connect to the proxy itself."""
        if proxy.network is None:
            address = await self._resolver.pick(proxy.host, lambda _: True, None, 0, servers)
        else:
            address = proxy.network.network_address
        await asyncio.get_running_loop().sock_connect(connection, (str(address), proxy.port))
        if proxy.tls is None:
            return Plain(connection)
        context = self._trust if proxy.tls.ca is None else _trusting(proxy.tls.ca)
        stream = Tls(connection, context, proxy.tls.server_name or proxy.host)
        await stream.handshake()
        return stream


@functools.lru_cache(maxsize=256)
def _trusting(ca: str) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=ca)


def _filled(part: Template | None, secrets: Mapping[str, str]) -> str | None:
    """Return a username or password; raises UnresolvedSecret, UpstreamProxyFailed."""
    if part is None:
        return None
    value = part.render(secrets)
    if not value.isascii() or not 0 < len(value) <= MAX_CREDENTIAL:
        raise UpstreamProxyFailed(f"A proxy takes a username and password of 1 to {MAX_CREDENTIAL} ASCII characters.")
    return value


def _why(error: Exception) -> str:
    """Return what went wrong, in words that follow the proxy's name."""
    match error:
        case ProxyError():
            return f"refused: {error}"
        case TimeoutError():
            return f"gave no connection within {_DIAL_S:.0f} s"
        case ssl.SSLCertVerificationError():  # before ValueError and OSError, which it is too
            return f"has no valid certificate: {error.verify_message}"
        case ssl.SSLError():
            return "does not speak TLS as it should"
        case OSError():
            return f"cannot be reached: {error.strerror or 'it hung up'}"
        case SpaceError():  # its name has no address
            return f"cannot be reached: {str(error).removesuffix('.')}"
        case _:
            return "does not speak SOCKS5 as it should"


class _Way:
    """What the library speaks SOCKS over: a stream that is there already, in place of a connection of its own."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def connect(self, dest_host: str, dest_port: int) -> "_Way":
        """Return itself."""
        return self

    async def write(self, data: bytes) -> None:
        """Write all of it."""
        await self._stream.send(memoryview(data))

    async def read_exactly(self, n: int) -> bytes:
        """Read so many bytes; ConnectionError where it ends before."""
        data = bytearray(n)
        at = 0
        while at < n:
            count = await self._stream.receive_into(memoryview(data)[at:])
            if not count:
                raise ConnectionError
            at += count
        return bytes(data)

    async def close(self) -> None:
        """Leave that to whoever connected it."""
