"""The internet of the tests: nginx with many TLS names, a name server, sinks, bad certificates, git, a package index.

It plays in two namespaces (internet_ns.py). Everything that arrives is on record: requests (nginx's and the
application's), questions to the name server, bytes at the sinks, and packets at the uplink. Those records are what
attacks are judged by, never what a guest says.
"""

import asyncio
import contextlib
import dataclasses
import json
import shutil
import sys
import zipfile
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any

from tests.support import internet_ns
from tests.support.egress_world import Ca, make_ca, make_leaf
from tests.support.internet_ns import Outside

from space.host import command, netns

_HERE = Path(__file__).parent
CDN, BOUND, EVIL = "203.0.113.20", "203.0.113.21", "203.0.113.66"
TABLE = {
    "allowed.test": CDN,
    "denied.test": CDN,  # the twin: another name on the same address
    "*.wild.allowed.test": CDN,
    "bound.test": BOUND,
    "echo.bound.test": BOUND,
    "evil.test": EVIL,
    "git.test": "203.0.113.40",
    "pypi.test": "203.0.113.41",
    "tls13.test": "203.0.113.42",
    "raw.test": "203.0.113.43",
    "expired.bound.test": "203.0.113.30",
    "self.bound.test": "203.0.113.31",
    "wrong.bound.test": "203.0.113.32",
    "untrusted.bound.test": "203.0.113.33",
    "meta.test": internet_ns.METADATA,
    "intranet.test": "10.99.0.5",
    "zero.test": "0.0.0.0",
    "loop.test": "127.0.0.1",
    "slot.test": "100.64.0.3",
    "hosts.test": internet_ns.HOST_PUBLIC,
    "nobody.test": "203.0.113.200",
}
"""Names and their addresses."""
SCRIPTS = {"rebind.test": [CDN, internet_ns.METADATA]}
"""Names whose address changes with the second question."""
WEB = [
    "allowed.test", "denied.test", "bound.test", "echo.bound.test", "evil.test", "git.test", "pypi.test", "rebind.test",
    "intranet.test", "hosts.test",
]  # fmt: skip
"""Names with a good certificate and TLS 1.2 and 1.3."""

_NGINX = """
user root;
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log;
events {{ worker_connections 8192; }}
http {{
 log_format facts escape=json
  '{{"kind":"web","sni":"$ssl_server_name","local":"$server_addr","port":$server_port,"method":"$request_method",'
  '"path":"$request_uri","host":"$http_host","authorization":"$http_authorization","version":"$server_protocol"}}';
 access_log {folder}/internet.log facts;
 default_type application/octet-stream;
 server_tokens off;
 client_max_body_size 0;
 keepalive_requests 100000;
 http2_max_concurrent_streams 1024;
 client_body_temp_path {folder}/body;
 proxy_temp_path {folder}/proxy;
 fastcgi_temp_path {folder}/fastcgi;
 uwsgi_temp_path {folder}/uwsgi;
 scgi_temp_path {folder}/scgi;
 proxy_http_version 1.1;
 proxy_buffering off;
 proxy_request_buffering off;
 proxy_read_timeout 600s;
 proxy_set_header Host $http_host;
 proxy_set_header X-Name $ssl_server_name;
 proxy_set_header X-Local $server_addr;
 map $http_upgrade $connection_to_app {{ default upgrade; '' ''; }}
 proxy_set_header Upgrade $http_upgrade;
 proxy_set_header Connection $connection_to_app;
{servers}
}}
"""
_SERVER = """
 server {{
  listen {listen}443 ssl http2;
  listen {listen}8443 ssl http2;
  {plain}
  server_name {name};
  ssl_certificate {certificate};
  ssl_certificate_key {certificate};
  ssl_protocols {protocols};
  location /files/ {{ alias {folder}/files/; }}
  location /simple/ {{ alias {folder}/index/; autoindex on; }}
  location /echo.Echo/ {{ grpc_pass grpc://127.0.0.1:9001; }}
  location / {{ proxy_pass http://127.0.0.1:9000; }}
 }}
"""


@dataclasses.dataclass
class Internet:
    """The running world. `roots` is the file that a deployment trusts servers by."""

    beyond: Outside
    folder: Path
    roots: Path

    @property
    def settings(self) -> dict[str, str]:
        """What `space up` is told, so that its sandboxes' way out leads here."""
        return {
            "SPACE_UPLINK": self.beyond.host,
            "SPACE_RESOLVERS": str(internet_ns.RESOLVER),
            "SPACE_NEVER_EXCEPT": str(internet_ns.NETWORK),
            "SPACE_UPSTREAM_CA": str(self.roots),
        }

    def _lines(self, name: str) -> Iterable[dict[str, Any]]:
        for text in (self.folder / name).read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):  # a line that is being written
                yield json.loads(text)

    def seen(self, kind: str) -> list[dict[str, Any]]:
        """Return what arrived so far: `web` and `request`, `dns`, `sink`, `raw`, `ended`, `token`."""
        return [line for line in self._lines("internet.log") if line["kind"] == kind]

    def packets(self, **facts: object) -> list[dict[str, Any]]:
        """Return the packets with these facts that came out of the gateway namespace (see packet_log.py)."""
        found = [line for line in self._lines("packets.log") if line["way"] == "in"]
        return [line for line in found if all(line.get(name) == value for name, value in facts.items())]

    def canaries(self, text: str) -> dict[str, int]:
        """Return how often a text arrived, by the record that has it."""
        records = ("internet.log",)
        return {name: (self.folder / name).read_text(errors="replace").count(text) for name in records}


@contextlib.asynccontextmanager
async def internet(folder: Path) -> AsyncGenerator[Internet]:
    """Make it, with its files in `folder`; all gone at the end but the files."""
    async with contextlib.AsyncExitStack() as stack:
        beyond = await stack.enter_async_context(internet_ns.outside())
        trusted = make_ca("the tests' web authority")
        roots = folder / "roots.pem"
        roots.write_text(trusted.pem)
        for log in ("internet.log", "packets.log"):
            (folder / log).write_text("")
        await _make_files(folder)
        (folder / "nginx.conf").write_text(_nginx(folder, trusted))
        facts = {
            "dns": {name: [address] for name, address in TABLE.items()},
            "scripts": SCRIPTS,
            "resolver": str(internet_ns.RESOLVER),
            "log": str(folder / "internet.log"),
            "repositories": str(folder / "repositories"),
            "certs": {},
            "default_cert": "",
        }
        (folder / "facts.json").write_text(json.dumps(facts))
        far = beyond.internet_path
        await _divert(far)
        app = ("/usr/bin/python3", "-m", "tests.support.internet_app", str(folder / "facts.json"))
        await stack.enter_async_context(_process(far, *app))
        await stack.enter_async_context(_process(far, sys.executable, str(_HERE / "internet_grpc.py"), "9001"))
        sniffer = ("/usr/bin/python3", str(_HERE / "packet_log.py"), "spaceup-", str(folder / "packets.log"))
        await stack.enter_async_context(_process(beyond.host_path, *sniffer))
        nginx = ("/usr/sbin/nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"))
        await stack.enter_async_context(_process(far, *nginx, ready=False))
        for port in (80, 443):
            async with asyncio.timeout(20):
                while not netns.tcp_listens(far, port):
                    await asyncio.sleep(0.02)
        yield Internet(beyond, folder, roots)


def _nginx(folder: Path, trusted: Ca) -> str:
    certificates = {name: make_leaf(trusted, name, folder / f"{name}.pem") for name in WEB}
    certificates["*.wild.allowed.test"] = make_leaf(trusted, "*.wild.allowed.test", folder / "wild.pem")
    certificates["expired.bound.test"] = make_leaf(trusted, "expired.bound.test", folder / "expired.pem", expired=True)
    certificates["self.bound.test"] = make_leaf(None, "self.bound.test", folder / "self.pem")
    certificates["wrong.bound.test"] = certificates["evil.test"]
    nobody = make_ca("nobody trusts this one")
    certificates["untrusted.bound.test"] = make_leaf(nobody, "untrusted.bound.test", folder / "untrusted.pem")
    both = "TLSv1.2 TLSv1.3"
    servers = [_server(folder, name, file, both) for name, file in certificates.items()]
    # of one address the versions are its first server's, so this name has its own
    newest = make_leaf(trusted, "tls13.test", folder / "tls13.pem")
    servers.append(_server(folder, "tls13.test", newest, "TLSv1.3", f"{TABLE['tls13.test']}:"))
    return _NGINX.format(folder=folder, servers="".join(servers))


def _server(folder: Path, name: str, certificate: Path, protocols: str, listen: str = "") -> str:
    plain = f"listen {listen}80;"
    return _SERVER.format(
        folder=folder, name=name, certificate=certificate, protocols=protocols, listen=listen, plain=plain
    )


async def _make_files(folder: Path) -> None:
    """Make what is served: files, a repository, a package index of one package."""
    files, index = folder / "files", folder / "index" / "greeting"
    files.mkdir()
    index.mkdir(parents=True)
    (files / "small").write_text("a small file\n")
    with (files / "big").open("wb") as big:
        big.truncate(64 * 2**20)
    wheel = index / "greeting-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("greeting.py", "HELLO = 'hello from the index'\n")
        info = "greeting-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"greeting.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    repositories = folder / "repositories"
    work = folder / "work"
    await command.run("git", "init", "--quiet", "--initial-branch=main", str(work))
    (work / "hello.txt").write_text("hello from git\n")
    named = ("-c", "user.name=t", "-c", "user.email=t@example.test", "-C", str(work))
    await command.run("git", *named, "add", "hello.txt")
    await command.run("git", *named, "commit", "--quiet", "--message=First")
    repositories.mkdir()
    await command.run("git", "clone", "--quiet", "--bare", str(work), str(repositories / "repo.git"))
    shutil.rmtree(work)


async def _divert(place: Path) -> None:
    """Send every TCP port of the evil address that no server has to the sink."""
    rules = (
        "table ip world {\n chain sink {\n  type nat hook prerouting priority dstnat;\n"
        f"  ip daddr {EVIL} tcp dport != {{ 80, 443, 8443 }} redirect to :9999\n }}\n}}\n"
    )
    await command.run("nft", "-f", "-", stdin=rules.encode(), netns=place)


@contextlib.asynccontextmanager
async def _process(place: Path, *argv: str, ready: bool = True) -> AsyncGenerator[None]:
    """One server in a namespace; `ready` waits until it says so."""
    process = await asyncio.create_subprocess_exec(
        *command.in_netns(place, argv), stdout=asyncio.subprocess.PIPE, start_new_session=True, cwd=_HERE.parents[1]
    )
    try:
        if ready:
            assert process.stdout
            async with asyncio.timeout(20):
                assert await process.stdout.readline() == b"ready\n", argv
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
