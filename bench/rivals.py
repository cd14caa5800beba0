"""Intercepting proxies of others, set up to do what SPACE's way out does: squid and mitmproxy.

Both end the client's TLS with a certificate minted for the name, judge each request by host, method and path, and send
it on by TLS that they verify. Neither keeps a cache or a log of requests.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Literal

from bench import far, tools
from bench.far import Far
from cryptography.hazmat.primitives import serialization
from tests.support.egress_world import make_ca

from space.host import command, daemon, netns
from space.host.daemon import User

Rival = Literal["squid", "mitmproxy"]
RIVALS: tuple[Rival, ...] = ("squid", "mitmproxy")
_UID = 65_534
"""Nobody's: both refuse to run as root, or advise against it."""
_WITHIN_S = 60
_PORTS: dict[Rival, int] = {"squid": 3129, "mitmproxy": 8080}

_SQUID = """
https_port 0.0.0.0:{port} intercept ssl-bump tls-cert={authority} generate-host-certificates=on
http_port 127.0.0.1:3128
sslcrtd_program {helper} -s {folder}/certificates -M 16MB
sslcrtd_children 2 startup=1
acl first at_step SslBump1
ssl_bump peek first
ssl_bump bump all
tls_outgoing_options cafile={roots}
acl allowed dstdomain {name}
acl connect method CONNECT
acl get method GET
acl public urlpath_regex ^/public/
http_access allow connect
http_access allow allowed get public
http_access deny all
cache deny all
access_log none
cache_log {folder}/cache.log
cache_store_log none
pid_filename none
coredump_dir {folder}
hosts_file {folder}/hosts
mime_table {mime}
icon_directory {icons}
error_directory {errors}
pinger_enable off
unlinkd_program {unlinkd}
logfile_daemon {logger}
client_persistent_connections on
server_persistent_connections on
"""

_ADDON = """
from mitmproxy import http


def request(flow):
    asked = flow.request
    if asked.pretty_host != {name!r} or asked.method != "GET" or not asked.path.startswith("/public/"):
        flow.response = http.Response.make(403)
"""


@contextlib.asynccontextmanager
async def running(rival: Rival, outside: Far, place: Path) -> AsyncGenerator[tuple[int, Path, int]]:
    """Run one in a namespace; yields the port that it intercepts TLS at, what verifies its certificates, its pid."""
    folder = outside.folder / rival
    folder.mkdir()
    authority = make_ca(f"the authority of {rival}")
    trust = folder / "trust.pem"
    trust.write_text(authority.pem)
    key = authority.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    both = folder / "mitmproxy-ca.pem"
    both.write_bytes(key + authority.pem.encode())
    port = _PORTS[rival]
    argv, env = await (_squid if rival == "squid" else _mitmproxy)(folder, both, outside, port)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, _UID, _UID)
    process = daemon.spawn(argv, log=folder / "output.log", user=User(_UID, _UID), netns=place, env=env)
    try:
        async with asyncio.timeout(_WITHIN_S):
            while not netns.tcp_listens(place, port):
                if not process.alive:
                    raise RuntimeError((folder / "output.log").read_text()[-2000:])
                await asyncio.sleep(0.05)
        yield port, trust, process.ref.pid
    finally:
        await process.stop(5)
        shutil.rmtree(folder)


async def _squid(folder: Path, authority: Path, outside: Far, port: int) -> tuple[tuple[str, ...], dict[str, str]]:
    binary, env = await tools.debian("squid-openssl", "squid")
    helper = tools.part("/usr/lib/squid/security_file_certgen")
    (folder / "hosts").write_text(f"{far.INTERCEPTED} {far.NAME}\n")
    config = folder / "squid.conf"
    config.write_text(
        _SQUID.format(
            port=port, authority=authority, folder=folder, helper=helper, roots=outside.roots, name=far.NAME,
            mime=tools.part("/usr/share/squid/mime.conf"), icons=tools.part("/usr/share/squid/icons"),
            errors=tools.part("/usr/share/squid/errors/en"), unlinkd=tools.part("/usr/lib/squid/unlinkd"),
            logger=tools.part("/usr/lib/squid/log_file_daemon"),
        )
    )  # fmt: skip
    await command.run(str(helper), "-c", "-s", str(folder / "certificates"), "-M", "16MB", env=env)
    return (str(binary), "-N", "-f", str(config)), env


async def _mitmproxy(folder: Path, _authority: Path, outside: Far, port: int) -> tuple[tuple[str, ...], dict[str, str]]:
    binary = await tools.mitmproxy()
    addon = folder / "judge.py"
    addon.write_text(_ADDON.format(name=far.NAME))
    options = (
        f"confdir={folder}", "listen_host=0.0.0.0", f"listen_port={port}",
        f"ssl_verify_upstream_trusted_ca={outside.roots}", "flow_detail=0",
        "termlog_verbosity=error", "stream_large_bodies=1m", "connection_strategy=lazy",
    )  # fmt: skip
    sets = [word for option in options for word in ("--set", option)]
    return (str(binary), "--mode", "transparent", "--scripts", str(addon), *sets), {"HOME": str(folder)}


async def version(rival: Rival) -> str:
    """Return which it is."""
    if rival == "squid":
        binary, env = await tools.debian("squid-openssl", "squid")
        said = (await command.run(str(binary), "-v", env=env)).stdout
        return said.split("Version")[1].split()[0]
    said = (await command.run(str(await tools.mitmproxy()), "--version")).stdout
    return said.split("Mitmproxy:")[1].split()[0]
