"""Ways out for tests: SOCKS5 servers and a name server over TCP, `-m tests.support.way_server FACTS` in a namespace.

    {"dns": {name: [address...]}, "resolver": address, "tls": pem file, "log": file}

SOCKS5 on every address: 1080 wants the username `team` and the password, 1081 the same over TLS, 1082 neither; 1083
refuses every connection, and 1084 takes connections and says nothing. What it is asked for is logged as `socks`. The
name server answers A questions over TCP on port 53, and logs them as `dns_tcp`.
"""

import asyncio
import json
import socket
import ssl
import sys
from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import dns.message
import dns.rcode
import dns.rrset

USERNAME = "team"
PLAIN, TLS, OPEN, REFUSING, SILENT = 1080, 1081, 1082, 1083, 1084

FACTS: dict[str, Any] = {}


def _log(**facts: object) -> None:
    with Path(FACTS["log"]).open("a") as log:
        log.write(json.dumps(facts) + "\n")


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()


async def _authenticated(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str | None:
    """Take username and password (RFC 1929); return who it is."""
    writer.write(b"\x05\x02")
    await reader.readexactly(1)
    username = await reader.readexactly((await reader.readexactly(1))[0])
    password = await reader.readexactly((await reader.readexactly(1))[0])
    good = (username.decode(), password.decode()) == (USERNAME, FACTS["password"])
    writer.write(b"\x01" + (b"\x00" if good else b"\x01"))
    return username.decode() if good else None


def _serve(port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _socks(port, reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    return serve


async def _socks(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    methods = await reader.readexactly((await reader.readexactly(2))[1])
    if port == SILENT:
        await reader.read()
        return
    user: str | None = ""
    if port in (PLAIN, TLS):
        user = await _authenticated(reader, writer) if 2 in methods else None
        if user is None:
            if 2 not in methods:
                writer.write(b"\x05\xff")
            await writer.drain()
            return
    else:
        writer.write(b"\x05\x00")
    _, command, _, kind = await reader.readexactly(4)
    if kind == 1:
        host = str(IPv4Address(await reader.readexactly(4)))
    else:
        host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
    target = int.from_bytes(await reader.readexactly(2))
    _log(kind="socks", proxy=port, user=user, command=command, type=kind, host=host, port=target)
    if port == REFUSING:
        writer.write(b"\x05\x02\x00\x01" + bytes(6))
        await writer.drain()
        return
    there, back = await asyncio.open_connection(host, target)
    try:
        writer.write(b"\x05\x00\x00\x01" + bytes(6))
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(reader, back))
            group.create_task(_copy(there, writer))
    except* OSError:
        pass
    finally:
        back.close()


async def _name_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        query = dns.message.from_wire(await reader.readexactly(int.from_bytes(await reader.readexactly(2))))
        name = query.question[0].name
        _log(kind="dns_tcp", name=name.to_text(omit_final_dot=True))
        reply = dns.message.make_response(query)
        if found := FACTS["dns"].get(name.to_text(omit_final_dot=True)):
            reply.answer.append(dns.rrset.from_text(name, 30, "IN", "A", *found))
        else:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        wire = reply.to_wire()
        writer.write(len(wire).to_bytes(2) + wire)
        await writer.drain()
    finally:
        writer.close()


async def _main() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(FACTS["tls"])
    for port in (PLAIN, TLS, OPEN, REFUSING, SILENT):
        tls = context if port == TLS else None
        await asyncio.start_server(_serve(port), "0.0.0.0", port, ssl=tls, family=socket.AF_INET)
    await asyncio.start_server(_name_server, FACTS["resolver"], 53)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    FACTS.update(json.loads(Path(sys.argv[1]).read_text()))
    asyncio.run(_main())
