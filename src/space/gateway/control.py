"""The control API (wire/gateway.py): through it the worker, and only root, says which slots there are and what leaves.

Each call changes what is decided from then on in one step, without waiting in between, and then answers what the worker
has to make true.
"""

import asyncio
import dataclasses
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from space.gateway.asking import Asking
from space.gateway.audit import Audit
from space.gateway.certs import Certificates, Signer
from space.gateway.guests import Guest, Guests
from space.gateway.orders import Orders
from space.gateway.relay import Relay
from space.gateway.settling import settle
from space.gateway.slots import SlotMap
from space.gateway.tunnels import Tunnels
from space.model.errors import InvalidArgument
from space.model.ids import SandboxId, is_id
from space.wire import gateway as wire
from space.wire.serving import answer_with_problems, bind_unix, server

_NDJSON = "application/x-ndjson"
_GRACE_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """What the worker tells and asks about."""

    slots: SlotMap
    guests: Guests
    orders: Orders
    certificates: Certificates
    asking: Asking
    relay: Relay
    tunnels: Tunnels
    audit: Audit

    def settled(self, guest: Guest) -> wire.Settled:
        """End what this process can end itself, and return what the worker has to make true."""
        self.relay.recheck(guest)
        self.tunnels.recheck(guest)
        return settle(guest)


def _sandbox_id(text: str) -> SandboxId:
    if not is_id(text):
        raise InvalidArgument(f"{text!r} is not the id of a sandbox.")
    return SandboxId(text)


def _dial(entry: wire.SlotEntry) -> str:
    return f"{entry.address}:{entry.agent_port}"


def application(parts: Parts) -> FastAPI:
    """Return the API over these parts."""
    app = FastAPI(openapi_url=None)
    answer_with_problems(app)
    _add_slots(app, parts)
    _add_egress(app, parts)
    _add_streams(app, parts)
    return app


def _add_slots(app: FastAPI, parts: Parts) -> None:
    @app.put("/v1/slots/{sandbox}")
    async def put_slot(sandbox: str, entry: wire.SlotEntry) -> wire.Settled:
        guest = parts.guests.put(_sandbox_id(sandbox), entry)
        parts.slots.put(guest.sandbox, _dial(entry))
        return parts.settled(guest)

    @app.delete("/v1/slots/{sandbox}", status_code=204)
    async def delete_slot(sandbox: str) -> None:
        ident = _sandbox_id(sandbox)
        parts.slots.remove(ident)
        parts.guests.remove(ident)
        parts.relay.drop(ident)
        parts.tunnels.drop(ident)
        parts.audit.forget(ident)

    @app.put("/v1/slots")
    async def put_slots(wanted: wire.SlotMap) -> wire.SettledMap:
        entries = {_sandbox_id(sandbox): entry for sandbox, entry in wanted.slots.items()}
        signer = Signer(wanted.authority) if wanted.authority else None
        for sandbox in [guest.sandbox for guest in parts.guests if guest.sandbox not in entries]:
            parts.relay.drop(sandbox)
            parts.tunnels.drop(sandbox)
        guests = parts.guests.replace(entries)
        parts.guests.note_rotations(one.to_rotation() for one in wanted.rotated)
        parts.slots.replace({sandbox: _dial(entry) for sandbox, entry in entries.items()})
        if signer is not None:
            parts.certificates.use(signer)
        return wire.SettledMap(slots={str(sandbox): parts.settled(guest) for sandbox, guest in guests.items()})


def _add_egress(app: FastAPI, parts: Parts) -> None:
    @app.put("/v1/slots/{sandbox}/egress")
    async def put_egress(sandbox: str, order: wire.EgressOrder) -> wire.Settled:
        guest = parts.guests.of(_sandbox_id(sandbox))
        guest.update(order, None)
        unseen, guest.unseen = guest.unseen, False
        return parts.settled(guest).model_copy(update={"end_all": unseen})

    @app.put("/v1/slots/{sandbox}/secrets", status_code=204)
    async def put_secrets(sandbox: str, order: wire.SecretsOrder) -> None:
        parts.guests.of(_sandbox_id(sandbox)).update(None, order)

    @app.put("/v1/slots/{sandbox}/asks/{number}", status_code=204)
    async def put_ask(sandbox: str, number: int, answer: wire.AskAnswer) -> None:
        parts.asking.answer(_sandbox_id(sandbox), number, allow=answer.allow)

    @app.put("/v1/authority", status_code=204)
    async def put_authority(authority: wire.Authority) -> None:
        parts.certificates.use(Signer(authority))


def _add_streams(app: FastAPI, parts: Parts) -> None:
    @app.get("/v1/watch")
    async def watch() -> StreamingResponse:
        return StreamingResponse(parts.orders.watch(), media_type=_NDJSON)

    @app.post("/v1/done/{order}", status_code=204)
    async def done(order: int) -> None:
        parts.orders.done(order)

    @app.get("/v1/egress")
    async def egress(boot: str = "", after: int = 0) -> StreamingResponse:
        return StreamingResponse(parts.audit.since(boot, after), media_type=_NDJSON)


async def serve(path: Path, parts: Parts, stop: asyncio.Event) -> None:
    """Serve the control API on a unix socket (0600: root may always connect) until `stop` is set."""
    serving = server(application(parts), grace_s=_GRACE_S)

    async def end() -> None:
        await stop.wait()
        parts.orders.close()
        parts.audit.close()
        serving.should_exit = True

    with bind_unix(path, mode=0o600) as listener:
        async with asyncio.TaskGroup() as group:
            group.create_task(serving.serve(sockets=[listener]))
            group.create_task(end())
