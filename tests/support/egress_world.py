"""Everything between a guest and the world, for tests: slots, gateway, egress proxy, an internet, the worker.

The worker's part is the real link (worker/gateway_link.py) with a ledger in memory. Guests are namespaces behind real
slots (node_world.py), the internet is one process in a namespace (far_server.py).
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import json
import signal
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pydantic
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.support import internet_ns, node_world
from tests.support.internet_ns import Outside
from tests.support.node_world import Guest

from space.host import command, netns
from space.host.process import Watched
from space.layout import Layout
from space.model.ids import SandboxId
from space.model.rotation import Rotation
from space.net.openings import Openings
from space.wire.gateway import Authority, EgressEvent, EgressOrder, GatewayClient, SecretsOrder, SlotEntry
from space.worker.gateway_link import GatewayLink

_HERE = Path(__file__).parent
FAR, TWIN, EVIL = "203.0.113.20", "203.0.113.20", "203.0.113.66"
DNS = {
    "allowed.test": [FAR],
    "bound.test": [FAR],
    "denied.test": [TWIN],  # on the same address as the allowed one
    "evil.test": [EVIL],
    "*.wild.test": [FAR],
    "idp.test": [FAR],
    "metadata.test": ["169.254.169.254"],
    "private.test": ["10.99.0.5"],
    "slot.test": ["100.64.0.5"],
    "mixed.test": ["127.0.0.1", FAR],
    "wrong.test": [FAR],  # its certificate is another's
    "expired.test": [FAR],
    "self.test": [FAR],
    "down.test": ["203.0.113.200"],
    "proxy.test": ["203.0.113.30"],
}
CANARY = "CANARY-6f0c9d-secret"


@dataclasses.dataclass
class Ca:
    """A certificate authority of the test's."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> str:
        """Its certificate."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()


def make_ca(name: str, issuer: Ca | None = None) -> Ca:
    """Make a root, or an authority below one."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Ca(builder.sign(issuer.key if issuer else key, hashes.SHA256()), key)


def make_leaf(ca: Ca | None, name: str, file: Path, *, expired: bool = False) -> Path:
    """Write a certificate and its key; `ca` None signs it by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.certificate.subject if ca else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=2))
        .not_valid_after(now + dt.timedelta(days=-1 if expired else 1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(ca.key if ca else key, hashes.SHA256())
    )
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + _key_pem(key).encode())
    return file


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption()).decode()


def make_authority(root: Ca) -> Authority:
    """Make a worker's intermediate below SPACE's root."""
    below = make_ca("a worker", root)
    return Authority(
        root=root.pem,
        certificate=below.pem,
        key=pydantic.SecretStr(_key_pem(below.key)),
        not_after=dt.datetime.now(dt.UTC) + dt.timedelta(hours=12),
    )


@dataclasses.dataclass
class World:
    """All of it. `log` is what the servers outside saw, `rotated` what the control plane would have been told."""

    layout: Layout
    one: Guest
    two: Guest
    beyond: Outside
    link: GatewayLink
    client: GatewayClient
    root: Ca
    ca_file: Path
    roots_file: Path
    log: Path
    gateway: Watched
    proxy: Watched
    redactor: Watched
    named: list[tuple[SandboxId, str, str]]
    rotated: list[Rotation]
    stack: contextlib.AsyncExitStack
    generations: dict[SandboxId, int] = dataclasses.field(default_factory=dict)

    async def allow(self, guest: Guest, policy: Mapping[str, object]) -> None:
        """Set a guest's policy, as the control plane does."""
        generation = self.generations[guest.sandbox] = self.generations.get(guest.sandbox, 0) + 1
        await self.link.put_egress(guest.sandbox, EgressOrder(policy=dict(policy), generation=generation))

    async def give(self, guest: Guest, **secrets: str) -> None:
        """Set all secrets of a guest; those of one name are the same secret for all."""
        generation = self.generations[guest.sandbox] = self.generations.get(guest.sandbox, 0) + 1
        values = {
            name: {"id": f"id-of-{name}", "version": generation, "given_version": generation, "value": value}
            for name, value in secrets.items()
        }
        order = SecretsOrder.model_validate({"generation": generation, "values": values})
        await self.link.put_secrets(guest.sandbox, order)

    async def restart_gateway(self) -> None:
        """Kill the gateway and start another one; it may not be told everything yet."""
        self.gateway.send(signal.SIGKILL)
        await self.gateway.wait()
        settings = gateway_settings(self.roots_file)
        self.gateway = await self.stack.enter_async_context(node_world.gateway(self.layout, **settings))

    def _program(self, lines: str) -> str:
        return (
            f"import sys; sys.path.insert(0, {str(_HERE)!r}); sys.dont_write_bytecode = True\n"
            f"import guest_client; from guest_client import *; guest_client.CA = {str(self.ca_file)!r}\n{lines}"
        )

    async def run(self, guest: Guest, lines: str) -> Any:
        """Run lines in a guest, with guest_client.py before them; return what they show."""
        argv = ("/usr/bin/python3", "-c", self._program(lines))
        done = await command.run(*argv, netns=netns.path(guest.netns), timeout_s=60)
        return json.loads(done.stdout.strip().splitlines()[-1])

    async def fetch(self, guest: Guest, name: str, path: str = "/", **more: object) -> Any:
        """Make one request from a guest; see guest_client.fetch."""
        arguments = ", ".join([repr(name), repr(path), *(f"{key}={value!r}" for key, value in more.items())])
        return await self.run(guest, f"show(fetch({arguments}))")

    @contextlib.asynccontextmanager
    async def running(self, guest: Guest, lines: str) -> AsyncGenerator[asyncio.StreamReader]:
        """Run lines in a guest beside the test; yields what they print."""
        argv = command.in_netns(netns.path(guest.netns), ("/usr/bin/python3", "-u", "-c", self._program(lines)))
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
        try:
            assert process.stdout is not None
            yield process.stdout
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def seen(self, kind: str = "request") -> list[dict[str, Any]]:
        """Return what arrived outside so far."""
        return [line for text in self.log.read_text().splitlines() if (line := json.loads(text))["kind"] == kind]

    async def events(self, **facts: object) -> EgressEvent:
        """Return the first event with these facts, waiting for it if need be."""
        async with asyncio.timeout(node_world.DEADLINE_S), contextlib.aclosing(self.client.events()) as events:
            async for event in events:
                if all(getattr(event, name) == value for name, value in facts.items()):
                    return event
        raise AssertionError("the stream ended")


@contextlib.asynccontextmanager
async def _internet(beyond: Outside, folder: Path, trusted: Ca) -> AsyncGenerator[Path]:
    """The servers outside; yields their log."""
    other, names = make_ca("nobody trusts this"), ["allowed.test", "bound.test", "denied.test", "evil.test", "idp.test"]
    certs = {name: str(make_leaf(trusted, name, folder / f"{name}.pem")) for name in (*names, "x.wild.test")}
    certs["wrong.test"] = certs["evil.test"]
    certs["expired.test"] = str(make_leaf(trusted, "expired.test", folder / "expired.pem", expired=True))
    certs["self.test"] = str(make_leaf(None, "self.test", folder / "self.pem"))
    certs["private.test"] = str(make_leaf(trusted, "private.test", folder / "private.pem"))
    certs["mixed.test"] = str(make_leaf(trusted, "mixed.test", folder / "mixed.pem"))
    log = folder / "far.log"
    log.write_text("")
    facts = {
        "dns": DNS,
        "resolver": str(internet_ns.RESOLVER),
        "certs": certs,
        "default_cert": str(make_leaf(other, "other.test", folder / "other.pem")),
        "log": str(log),
    }
    file = folder / "far.json"
    file.write_text(json.dumps(facts))
    argv = ("/usr/bin/python3", str(_HERE / "far_server.py"), str(file))
    process = await asyncio.create_subprocess_exec(
        *command.in_netns(beyond.internet_path, argv), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout
        async with asyncio.timeout(20):
            assert await process.stdout.readline() == b"ready\n"
        yield log
    finally:
        process.kill()
        await process.wait()


def gateway_settings(world_roots: Path) -> dict[str, object]:
    """Return the gateway's settings beside the instance's."""
    return {"resolvers": [internet_ns.RESOLVER], "never_except": [internet_ns.NETWORK], "roots": world_roots}


@contextlib.asynccontextmanager
async def world() -> AsyncGenerator[World]:
    """All of it, with two guests that may do nothing yet."""
    async with contextlib.AsyncExitStack() as stack:
        layout = stack.enter_context(node_world.instance())
        beyond = await stack.enter_async_context(internet_ns.outside())
        first, second = await stack.enter_async_context(
            node_world.slots(layout, 2, beyond.host, [internet_ns.RESOLVER], [internet_ns.NETWORK])
        )
        one = await stack.enter_async_context(node_world.guest(layout, first))
        two = await stack.enter_async_context(node_world.guest(layout, second))
        trusted, root = make_ca("the world's authority"), make_ca("SPACE of this test")
        ca_file, roots_file = layout.data_dir / "root.pem", layout.data_dir / "roots.pem"
        ca_file.write_text(root.pem)
        roots_file.write_text(trusted.pem)
        log = await stack.enter_async_context(_internet(beyond, layout.data_dir, trusted))
        gateway = await stack.enter_async_context(node_world.gateway(layout, **gateway_settings(roots_file)))
        redactor = await stack.enter_async_context(node_world.redactor(layout))
        proxy = await stack.enter_async_context(node_world.egress_proxy(layout, roots_file))
        client = GatewayClient(layout.gateway_control_sock)
        stack.push_async_callback(client.close)
        openings = Openings(netns.path(layout.gateway_netns))
        link = GatewayLink(layout, client, openings, {})
        named: list[tuple[SandboxId, str, str]] = []
        rotated: list[Rotation] = []

        def note(sandbox: SandboxId, address: str, name: str) -> None:
            named.append((sandbox, address, name))

        async with asyncio.TaskGroup() as group:
            running = group.create_task(link.run(note, rotated.append))
            await link.put_authority(make_authority(root))
            for guest in (one, two):
                entry = SlotEntry.model_validate({"address": guest.slot.address})
                await link.admit(guest.sandbox, entry)
            yield World(
                layout, one, two, beyond, link, client, root, ca_file, roots_file, log, gateway, proxy, redactor,
                named, rotated, stack,
            )  # fmt: skip
            running.cancel()
