"""The server that benches of the way out send requests to: nginx and a name server, in namespaces of our own."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncGenerator
from pathlib import Path

from bench import tools
from tests.support import internet_ns
from tests.support.egress_world import Ca, make_ca, make_leaf
from tests.support.internet_ns import Outside

from space.host import daemon, netns

NAME, ADDRESS = "allowed.test", "203.0.113.20"
INTERCEPTED = "203.0.113.21"
"""Another address of the server, at which a proxy in between intercepts."""
SMALL, BIG = "/public/small", "/public/big"
BIG_MIB = 1024
_CHECKOUT = Path(__file__).parents[1]
_WITHIN_S = 20

_NGINX = """
user root;
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log;
events {{ worker_connections 4096; }}
http {{
 access_log off;
 default_type application/octet-stream;
 sendfile on;
 keepalive_requests 100000000;
 client_body_temp_path {folder}/body;
 proxy_temp_path {folder}/proxy;
 fastcgi_temp_path {folder}/fastcgi;
 uwsgi_temp_path {folder}/uwsgi;
 scgi_temp_path {folder}/scgi;
 server {{
  listen 443 ssl http2;
  server_name {name};
  ssl_certificate {certificate};
  ssl_certificate_key {certificate};
  ssl_protocols TLSv1.2 TLSv1.3;
  location = {small} {{ return 200 "a small answer\\n"; }}
  location = {big} {{ alias {folder}/big; }}
 }}
}}
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Far:
    """Where it is, and `roots`, the file that its certificate is verified by."""

    beyond: Outside
    folder: Path
    roots: Path
    trusted: Ca


@contextlib.asynccontextmanager
async def far(folder: Path) -> AsyncGenerator[Far]:
    """Make it, with its files in `folder`, which anybody must be able to read."""
    trusted = make_ca("the bench's web authority")
    roots = folder / "roots.pem"
    roots.write_text(trusted.pem)
    certificate = make_leaf(trusted, NAME, folder / "server.pem")
    (folder / "nginx.conf").write_text(
        _NGINX.format(folder=folder, name=NAME, certificate=certificate, small=SMALL, big=BIG)
    )
    with (folder / "big").open("wb") as file:
        file.truncate(BIG_MIB * 2**20)
    facts = {
        "dns": {NAME: [ADDRESS]},
        "scripts": {},
        "resolver": str(internet_ns.RESOLVER),
        "log": "/dev/null",
        "repositories": str(folder),
        "certs": {},
        "default_cert": "",
    }
    (folder / "facts.json").write_text(json.dumps(facts))
    async with internet_ns.outside() as beyond, contextlib.AsyncExitStack() as stack:
        place = beyond.internet_path
        nginx, env = await tools.debian("nginx-light", "nginx")
        for argv in (
            (str(nginx), "-p", str(folder), "-c", str(folder / "nginx.conf")),
            ("/usr/bin/python3", "-m", "tests.support.internet_app", str(folder / "facts.json")),
        ):
            process = daemon.spawn(argv, log=folder / "far.log", netns=place, cwd=_CHECKOUT, env=env)
            stack.push_async_callback(process.stop, 3)
        async with asyncio.timeout(_WITHIN_S):
            while not (netns.tcp_listens(place, 443) and netns.tcp_listens(place, 9000)):
                await asyncio.sleep(0.02)
        yield Far(beyond, folder, roots, trusted)
