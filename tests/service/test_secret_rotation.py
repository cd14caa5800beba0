"""Refresh tokens that their endpoint replaces: what the gateway is given becomes the secret's next value, or nothing.

The endpoint is a real one over TLS; gateway and control plane are theirs, put together without the worker between them
(tests/host/test_egress_credentials.py has it, and a gateway that is killed).
"""

import asyncio
import contextlib
import dataclasses
import json
import ssl
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from tests.service.test_gateway_resolve import _Server
from tests.support import control_plane, worker_socket
from tests.support.control_plane import Api
from tests.support.egress_world import make_ca, make_leaf
from tests.support.rows import insert_sandbox, insert_template
from tests.support.worker_socket import Told

from space.control import rotations, secret_values, secrets
from space.control.vault import Vault
from space.controllers.watch import watch
from space.gateway.guests import Guest, Guests
from space.gateway.oauth import GrantRefused, Tokens
from space.gateway.resolve import Resolver
from space.model.ids import SandboxId, WorkerId, new_id
from space.model.lifecycle import State
from space.model.policy_bindings import OAuthBinding, template
from space.model.rotation import Rotation, Rotations, fingerprint
from space.store.db import Database
from space.wire.gateway import Rotated, SecretsOrder, SlotEntry

FIRST = "refresh-first"


@dataclasses.dataclass
class Endpoint:
    """Gives a new refresh token for each that it takes.

    `takes` are those that it would take now, None any; `used_stay`: a used one goes on being good. `life_s` is that of
    access tokens.
    """

    port: int = 0
    life_s: float = 0
    takes: set[str] | None = None
    used_stay: bool = False
    asked: list[str] = dataclasses.field(default_factory=list)
    given: list[str] = dataclasses.field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = int(head.partition("content-length:")[2].split()[0])
            form = dict(urllib.parse.parse_qsl((await reader.readexactly(size)).decode()))
            self.asked.append(form["refresh_token"])
            status, answer = self._answer(form["refresh_token"])
            body = json.dumps(answer).encode()
            writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()

    def _answer(self, refresh: str) -> tuple[int, object]:
        if self.takes is not None:
            if refresh not in self.takes:
                return 400, {"error": "invalid_grant"}
            if not self.used_stay:
                self.takes.remove(refresh)
        self.given.append(f"refresh-{len(self.given) + 1}")
        if self.takes is not None:
            self.takes.add(self.given[-1])
        token = f"access-{len(self.given)}"
        return 200, {"access_token": token, "expires_in": self.life_s, "refresh_token": self.given[-1]}


@dataclasses.dataclass
class World:
    """An endpoint, and the control plane with the first refresh token."""

    api: Api
    endpoint: Endpoint
    resolver: Resolver
    trust: ssl.SSLContext
    secret: str

    def gateway(self) -> "Gateway":
        """Return one more gateway."""
        guests = Guests()
        guest = guests.put(SandboxId(new_id()), SlotEntry.model_validate({"address": "100.64.0.3"}))
        return Gateway(self, guests, guest, Tokens(self.resolver, self.trust, guests))

    async def stored(self) -> tuple[int, str]:
        """Return the newest version of the secret, and its value."""
        value = (await secret_values.values(self.api.plane.db, self.api.plane.vault, self.api.project, ["R"]))["R"]
        return value.version, value.value.get_secret_value()


@dataclasses.dataclass
class Gateway:
    """What a gateway process has, with one guest."""

    world: World
    guests: Guests
    guest: Guest
    tokens: Tokens
    told: int = 0

    async def push(self) -> None:
        """Tell it the secret as the control plane has it."""
        plane, self.told = self.world.api.plane, self.told + 1
        values = await secret_values.values(plane.db, plane.vault, self.world.api.project, ["R"])
        self.guest.update(None, SecretsOrder(generation=self.told, values=values))

    async def token(self) -> str:
        """Get an access token for a request."""
        binding = OAuthBinding(
            token_url=f"https://idp.test:{self.world.endpoint.port}/token",
            client_id=template("app"),
            client_secret=None,
            refresh_token=template("${secrets.R}"),
            scope="",
        )
        return await self.tokens.token(binding, self.guest.secrets, self.guest.told)

    async def store(self) -> list[bool]:
        """Have the control plane keep what it was given, and hear that it has; returns what came of each."""
        done = []
        for rotation in self.guests.rotations.unstored():
            done.append(await rotations.keep(self.world.api.plane, rotation))
            self.guests.rotations.mark_stored(rotation.secret, fingerprint(rotation.value))
        return done


@pytest.fixture
async def world(api: Api, tmp_path: Path) -> AsyncGenerator[World]:
    """All of it, without a gateway yet."""
    ca = make_ca("the world's authority")
    (tmp_path / "roots.pem").write_text(ca.pem)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(make_leaf(ca, "idp.test", tmp_path / "leaf.pem"))
    trust = ssl.create_default_context(cafile=str(tmp_path / "roots.pem"))
    endpoint = Endpoint()
    transport, names = await asyncio.get_running_loop().create_datagram_endpoint(_Server, local_addr=("127.0.0.1", 0))
    names.table["idp.test"] = ["127.0.0.1"]
    resolver = Resolver([IPv4Address("127.0.0.1")], ())
    resolver._asks.port = transport.get_extra_info("sockname")[1]
    await api.http.post("/v1/secrets", json={"name": "R", "value": FIRST})
    secret = (await secrets.find(api.plane, api.project, "R")).id
    with contextlib.closing(transport):
        async with await asyncio.start_server(endpoint.serve, "127.0.0.1", 0, ssl=serving) as server:
            endpoint.port = server.sockets[0].getsockname()[1]
            yield World(api, endpoint, resolver, trust, secret)


async def test_a_rotated_token_becomes_the_next_version_and_the_access_token_stays(world: World) -> None:
    """It came with the access token, so it is no reason to ask for another one, which would rotate it again."""
    world.endpoint.life_s, world.endpoint.takes = 3600, {FIRST}
    gateway, other = world.gateway(), world.gateway()
    await gateway.push()
    assert await gateway.token() == "access-1"
    assert await gateway.store() == [True]
    assert await world.stored() == (2, "refresh-1")
    await gateway.push()
    assert await gateway.token() == "access-1"
    await other.push()
    assert await other.token() == "access-2", "another gateway goes on from there"
    assert await other.store() == [True]
    await gateway.push()
    assert await gateway.token() == "access-1"
    assert world.endpoint.asked == [FIRST, "refresh-1"]
    # what somebody sets counts from the next request on
    world.endpoint.takes = {"set-by-hand"}
    await world.api.http.post("/v1/secrets", json={"name": "R", "value": "set-by-hand"})
    await gateway.push()
    assert await gateway.token() == "access-3"
    former = [FIRST, "refresh-1", "refresh-2", "set-by-hand"]
    assert list(gateway.guest.former_secrets) == former, "answers are searched for them still"


async def test_a_gateway_that_was_refused_since_another_was_quicker_goes_on_with_its_token(world: World) -> None:
    """Two of them use one refresh token at once, and the endpoint takes it once."""
    world.endpoint.takes = {FIRST}
    one, two = world.gateway(), world.gateway()
    await one.push()
    await two.push()
    outcomes: list[str] = []

    async def ask(gateway: Gateway) -> None:
        try:
            outcomes.append(await gateway.token())
        except GrantRefused:
            outcomes.append("refused")

    async with asyncio.TaskGroup() as group:
        group.create_task(ask(one))
        group.create_task(ask(two))
    assert sorted(outcomes) == ["access-1", "refused"]
    assert [*await one.store(), *await two.store()] == [True]
    await one.push()
    await two.push()
    assert await two.token() == "access-2"
    assert await two.store() == [True]
    assert await world.stored() == (3, "refresh-2")
    await one.push()
    assert await one.token() == "access-3"


async def test_of_two_that_were_given_one_the_other_is_not_lost(world: World) -> None:
    """The endpoint took the same token twice, and then only the later answer: the one that was not stored."""
    world.endpoint.takes, world.endpoint.used_stay = {FIRST}, True
    one, two = world.gateway(), world.gateway()
    await one.push()
    await two.push()
    assert (await one.token(), await two.token()) == ("access-1", "access-2")
    assert [*await one.store(), *await two.store()] == [True, False], "the first one stands"
    assert await world.stored() == (2, "refresh-1")
    world.endpoint.takes, world.endpoint.used_stay = {"refresh-2"}, False
    await two.push()
    assert await two.token() == "access-3"
    assert world.endpoint.asked[-2:] == ["refresh-1", "refresh-2"]
    assert await two.store() == [True]
    assert await world.stored() == (3, "refresh-3")


async def test_while_the_control_plane_is_away_the_newest_is_used_and_told_later(world: World) -> None:
    world.endpoint.takes = {FIRST}
    gateway, successor = world.gateway(), world.gateway()
    await gateway.push()
    for number in (1, 2, 3):
        assert await gateway.token() == f"access-{number}"
    assert world.endpoint.asked == [FIRST, "refresh-1", "refresh-2"]
    # told of the old value once more: a worker that was restarted
    await gateway.push()
    assert gateway.guest.secrets == {"R": "refresh-3"}
    # the next process knows it from the worker
    await successor.push()
    successor.guests.note_rotations(gateway.guests.rotations.known())
    assert await successor.token() == "access-4"
    assert await successor.store() == [True]
    assert await world.stored() == (2, "refresh-4")
    assert await gateway.store() == [False], "told late, it overwrites nothing"
    assert await world.stored() == (2, "refresh-4")


async def test_what_somebody_set_meanwhile_stands(world: World) -> None:
    gateway = world.gateway()
    await gateway.push()
    await gateway.token()
    await world.api.http.post("/v1/secrets", json={"name": "R", "value": "set-by-hand"})
    assert await gateway.store() == [False]
    assert await world.stored() == (2, "set-by-hand")
    await gateway.push()
    assert gateway.guest.secrets == {"R": "set-by-hand"}
    await world.api.http.delete("/v1/secrets/R")
    assert not await rotations.keep(world.api.plane, Rotation(world.secret, "x", (fingerprint("set-by-hand"),)))


async def test_a_rotation_is_sealed_and_opens_as_nothing_else(world: World) -> None:
    from tests.service.test_egress_secrets import dump

    rotation = Rotation(world.secret, "canary-5b1e9a77", (fingerprint(FIRST),))
    assert await rotations.keep(world.api.plane, rotation)
    assert not await rotations.keep(world.api.plane, rotation), "told twice, kept once"
    assert await world.stored() == (2, "canary-5b1e9a77")
    stored = await dump(world.api.plane.db)
    assert "canary-5b1e9a77" not in stored
    assert b"canary-5b1e9a77".hex() not in stored
    assert not await rotations.keep(world.api.plane, Rotation(world.secret, "a\nb", (fingerprint("canary-5b1e9a77"),)))
    assert await world.stored() == (2, "canary-5b1e9a77")


async def test_many_rotations_are_kept_apart_by_what_they_replace() -> None:
    held = Rotations()
    for number in range(1000):
        held.rotate("s", f"v{number}", f"v{number + 1}")
    (rotation,) = held.unstored()
    assert held.newest("s", "v0") == held.newest("s", "v999") == "v1000"
    assert (held.newest("s", "else"), held.newest("t", "v0")) == ("else", "v0")
    assert len(rotation.after) < 300
    assert not held.note(Rotation("s", "v999", (fingerprint("v998"),))), "an older one comes late"
    held.mark_stored("s", fingerprint("v999"))
    assert held.unstored() == [rotation], "that was not the newest"
    held.mark_stored("s", fingerprint("v1000"))
    held.forget_used([("s", "v0")])
    assert held.newest("s", "v0") == "v1000", "somebody has still to be told"
    held.forget_used([("s", "v1000")])
    assert held.known() == []


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[Told]:
    """A worker's socket."""
    async with worker_socket.listening(tmp_path / "worker.sock") as found:
        yield found


async def test_a_worker_tells_of_a_rotation_and_hears_that_it_is_stored(
    db: Database, told: Told, tmp_path: Path
) -> None:
    """Where the stored value cannot be opened it hears nothing, and tells it again."""
    async with control_plane.api_over(db, tmp_path / "worker.sock") as api:
        await insert_template(db, api.project)
        await api.http.post("/v1/secrets", json={"name": "R", "value": FIRST})
        secret = (await secrets.find(api.plane, api.project, "R")).id
        made = await insert_sandbox(db, api.project, state=State.RUNNING, worker="w1")
        await db.execute("UPDATE sandboxes SET policy_secrets = '{R}' WHERE id = $1", made.id)
        told.facts = [{"type": "sandbox", "id": made.id, "state": "running", "epoch": 1, "secrets_generation": 1}]
        rotation = Rotation(secret, "refresh-1", (fingerprint(FIRST),))
        fact = json.loads(Rotated.of(rotation).model_dump_json()) | {"type": "rotated"}
        stored = f"/v1/rotations/{secret}/stored?value={fingerprint('refresh-1')}"
        pushed = f"/v1/sandboxes/{made.id}/secrets"
        blind = dataclasses.replace(api.plane, vault=Vault([bytes(range(32))]))
        for plane in (blind, api.plane):
            async with asyncio.timeout(30), asyncio.TaskGroup() as group:
                watching = group.create_task(watch(plane, plane.workers.links[0]))
                told.watch.put_nowait(fact)  # before `synced`, at which the worker is told what it lacks
                while not told.watch.empty() or (plane is api.plane and not told.to(pushed)):
                    await asyncio.sleep(0.02)
                watching.cancel()
            told.watch.put_nowait(None)
        (order,) = told.to(pushed)
        told_value = {"id": secret, "version": 2, "given_version": 1, "value": "refresh-1"}
        assert order == {"generation": 2, "values": {"R": told_value}}
        assert len(told.to(stored)) == 1
        value = (await secret_values.values(db, api.plane.vault, api.project, ["R"]))["R"]
        assert (value.version, value.given_version, value.value.get_secret_value()) == (2, 1, "refresh-1")
        assert plane.workers.links[0].id == WorkerId("w1")
