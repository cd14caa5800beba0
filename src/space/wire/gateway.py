"""The gateway's control API: HTTP over a unix socket that only root may dial; the worker is its only caller.

The gateway keeps no state of its own: it knows what the worker told it since it started, and refuses everything else.
The worker watches it and tells all again after a restart of either side.

    PUT    /v1/slots/{sandbox}          SlotEntry -> Settled
    DELETE /v1/slots/{sandbox}
    PUT    /v1/slots                    SlotMap -> SettledMap: the whole map at once (after a restart of either side)
    PUT    /v1/slots/{sandbox}/egress   EgressOrder -> Settled: what may leave, from this answer on
    PUT    /v1/slots/{sandbox}/secrets  SecretsOrder: the values that its policy names, from the next request on
    PUT    /v1/slots/{sandbox}/asks/{n} AskAnswer: what a human says about a request that is held
    PUT    /v1/authority                Authority: what leaf certificates are signed with
    GET    /v1/watch                    NDJSON of WatchLine, a heartbeat each second; the connection's end is the news
    POST   /v1/done/{order}             the worker carried out what a WatchLine asked for
    GET    /v1/egress?boot=&after=      NDJSON of EgressEvent: what was decided, from a bounded ring

A WatchLine with an `order` waits for its `done`: a guest gets the address of a new name only after the worker has
recorded it, so that no address ever gets a second name, whoever is killed in between. That of a rotated secret says
that the control plane has seen to it; until then it is told again and again.
"""

import dataclasses
import datetime as dt
from collections.abc import AsyncGenerator, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

import httpx2
import pydantic

from space.model.errors import Unavailable
from space.model.ids import SandboxId
from space.model.rotation import Rotation
from space.wire.problem import raise_for_problem

AGENT_PORT = 49983
AGENT_INTERNAL_PORT = 49982
AGENT_ORDERS_PORT = 49981
WORKERS_PORTS = (AGENT_ORDERS_PORT, AGENT_INTERNAL_PORT)
"""The agent's that nobody but the worker may reach: they take whatever comes from its address for its word."""

EGRESS_HTTP_PORT = 15001
"""Where the egress proxy listens in the gateway namespace; TCP to 198.18.0.0/15 is redirected here."""
EGRESS_RELAY_PORT = 15002
"""Where the gateway relays raw TCP; what `Settled.raw` lists is redirected here."""
EGRESS_TUNNEL_PORT = 15003
"""Where the gateway takes the egress proxy's connections that go on through a policy's upstream proxy."""
EGRESS_DNS_PORT = 15053
"""Where the gateway answers guests' DNS, UDP and TCP; everything to port 53 is redirected here."""

_CALL_S = 5.0


class EgressOrder(pydantic.BaseModel):
    """What may leave a sandbox: a policy document (model/policy.py) and its generation, which only rises."""

    policy: dict[str, object]
    generation: int


class SecretValue(pydantic.BaseModel):
    """A secret's value, in memory only.

    `given_version` is the version that somebody set; where `version` is higher, a provider has rotated it since.
    """

    id: str
    version: int
    given_version: int
    value: pydantic.SecretStr

    @pydantic.field_serializer("value", when_used="json")
    def _reveal(self, value: pydantic.SecretStr) -> str:
        return value.get_secret_value()


class SecretsOrder(pydantic.BaseModel):
    """All secrets that a sandbox's policy names; one that is missing here makes the requests that need it fail."""

    generation: int
    values: dict[str, SecretValue]


class Rotated(pydantic.BaseModel):
    """A secret's value that its provider gave in place of another (model/rotation.py), in memory only."""

    secret: str
    value: pydantic.SecretStr
    after: list[str]

    @pydantic.field_serializer("value", when_used="json")
    def _reveal(self, value: pydantic.SecretStr) -> str:
        return value.get_secret_value()

    @classmethod
    def of(cls, rotation: Rotation) -> Self:
        """Return a rotation as it is told."""
        return cls.model_validate(dataclasses.asdict(rotation))

    def to_rotation(self) -> Rotation:
        """Return the rotation that is told."""
        return Rotation(self.secret, self.value.get_secret_value(), tuple(self.after))


class Authority(pydantic.BaseModel):
    """The intermediate of this worker and the root that guests trust (PEM). It signs until `not_after`."""

    root: str
    certificate: str
    key: pydantic.SecretStr
    not_after: dt.datetime

    @pydantic.field_serializer("key", when_used="json")
    def _reveal(self, key: pydantic.SecretStr) -> str:
        return key.get_secret_value()


class SlotEntry(pydantic.BaseModel):
    """A sandbox's place: where its agent is reached from the gateway namespace, and what its guest may reach.

    `egress` None refuses everything. `names` are the synthetic addresses that the sandbox, or the one it was forked
    from, has been given: address to name.
    """

    address: pydantic.IPvAnyAddress
    agent_port: int = AGENT_PORT
    egress: EgressOrder | None = None
    secrets: SecretsOrder | None = None
    names: dict[str, str] = {}


class SlotMap(pydantic.BaseModel):
    """All slots of a worker, by sandbox id, what leaf certificates are signed with, and what came of their secrets."""

    slots: dict[str, SlotEntry]
    authority: Authority | None = None
    rotated: list[Rotated] = []


class RawTarget(pydantic.BaseModel):
    """TCP from a slot to these addresses and ports goes to the relay. `cidr` may be one address (`198.18.0.7/32`)."""

    model_config = pydantic.ConfigDict(frozen=True)

    cidr: pydantic.IPvAnyNetwork
    first_port: int
    last_port: int


class Settled(pydantic.BaseModel):
    """What the worker has to make true for a slot, after the gateway has begun to decide by the new state.

    `raw` replaces the slot's redirects to the relay; `private` are the networks and ports in which rules expect the
    hosts that they allow, to be opened for both proxies' dialling where packets are refused in general. `end` are the
    guest's ports (as the gateway namespace sees them) of connections to EGRESS_HTTP_PORT that carry what is no longer
    allowed; `end_all`: all of the slot's, since this gateway did not see them begin.
    """

    raw: list[RawTarget] = []
    private: list[RawTarget] = []
    end: list[int] = []
    end_all: bool = False


class SettledMap(pydantic.BaseModel):
    """The same for all slots."""

    slots: dict[str, Settled]


class AskAnswer(pydantic.BaseModel):
    """Whether a held request may go."""

    allow: bool


class Heartbeat(pydantic.BaseModel):
    """The gateway lives."""

    type: Literal["heartbeat"] = "heartbeat"


class NameGiven(pydantic.BaseModel):
    """A guest is about to be given an address: record it and add the redirects, then say done."""

    type: Literal["name"] = "name"
    order: int
    sandbox: str
    address: str
    name: str
    raw: list[RawTarget] = []


class EndConnections(pydantic.BaseModel):
    """End these connections of a slot's address to EGRESS_HTTP_PORT, as in Settled.end, then say done."""

    type: Literal["end"] = "end"
    order: int
    sandbox: str
    address: str
    ports: list[int]


class SecretRotated(Rotated):
    """Tell the control plane, and say done once it has seen to it."""

    type: Literal["rotated"] = "rotated"
    order: int


class Mute(pydantic.BaseModel):
    """Refuse new TCP connections of a sandbox's guest for so many seconds, then say done. What is open goes on."""

    type: Literal["mute"] = "mute"
    order: int
    sandbox: str
    seconds: float = pydantic.Field(gt=0, le=60)


Order = NameGiven | EndConnections | SecretRotated | Mute
AnyLine = Heartbeat | Order
WatchLine = Annotated[AnyLine, pydantic.Field(discriminator="type")]
_WATCH_LINE: pydantic.TypeAdapter[AnyLine] = pydantic.TypeAdapter(WatchLine)


class EgressEvent(pydantic.BaseModel):
    """One line of what happened to a sandbox's traffic.

    - `verdict`: a request, connection (raw) or lookup (dns) was judged; `rule` is the deciding rule's index or None.
      `observed`: let through only in order to learn; `of`: the ask that it answers; `via`: through this upstream proxy.
    - `traffic`: one that was allowed (`of` is the verdict's seq) ended.
    - `ask`: a request is held until somebody answers it (`of` is what to answer to) or `wait_s` is over.
    - `alarm`: a pattern worth a look; `why` says which.
    - `refused`: the proxy itself refused a request before it could be judged (malformed, too large, too many).
    - `rotated`: a provider gave a new value for a secret of its policy; `why` says which.
    - a `verdict` that is not `allowed` and has an `address`: what was allowed found no way through the upstream proxy.
    - `gap`: events before this one fell out of the ring; `count` of them.

    `seq` rises by one from event to event of one gateway process; `boot` names that process.
    """

    type: Literal["verdict", "traffic", "ask", "alarm", "refused", "rotated", "gap"]
    boot: str
    seq: int
    time: dt.datetime
    sandbox: str = ""
    generation: int = 0
    protocol: Literal["https", "http", "tcp", "dns", ""] = ""
    name: str = ""
    port: int = 0
    address: str = ""
    via: str = ""
    method: str = ""
    path: str = ""
    allowed: bool | None = None
    observed: bool | None = None
    rule: int | None = None
    why: str = ""
    of: int | None = None
    status: int | None = None
    sent_bytes: int | None = None
    received_bytes: int | None = None
    ms: float | None = None
    wait_s: float | None = None
    count: int | None = None


class GatewayClient:
    """Talks to the gateway beside the worker."""

    def __init__(self, socket: Path) -> None:
        self._http = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(uds=str(socket)),
            base_url="http://gateway",
            timeout=httpx2.Timeout(_CALL_S),
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def _call(self, method: str, path: str, body: str | None = None) -> bytes:
        try:
            response = await self._http.request(
                method, path, content=body, headers={"content-type": "application/json"}
            )
        except httpx2.TransportError as error:
            raise Unavailable("The gateway does not answer; it may be restarting. Try again.") from error
        raise_for_problem(response)
        return response.content

    async def put_slot(self, sandbox: SandboxId, entry: SlotEntry) -> Settled:
        """Let requests for `sandbox` through to its slot, and its guest's out by its policy."""
        return Settled.model_validate_json(await self._call("PUT", f"/v1/slots/{sandbox}", entry.model_dump_json()))

    async def delete_slot(self, sandbox: SandboxId) -> None:
        """Refuse requests for and of `sandbox` from now on, and forget its secrets."""
        await self._call("DELETE", f"/v1/slots/{sandbox}")

    async def put_slots(
        self,
        entries: Mapping[SandboxId, SlotEntry],
        authority: Authority | None = None,
        rotations: Iterable[Rotation] = (),
    ) -> dict[SandboxId, Settled]:
        """Replace the whole map; rotations are added to those that it knows."""
        wanted = SlotMap(
            slots={str(sandbox): entry for sandbox, entry in entries.items()},
            authority=authority,
            rotated=[Rotated.of(one) for one in rotations],
        )
        answer = SettledMap.model_validate_json(await self._call("PUT", "/v1/slots", wanted.model_dump_json()))
        return {SandboxId(sandbox): settled for sandbox, settled in answer.slots.items()}

    async def put_egress(self, sandbox: SandboxId, order: EgressOrder) -> Settled:
        """Decide by this policy from now on; raises NotFound for a slot it does not know, InvalidPolicy, Stale."""
        path = f"/v1/slots/{sandbox}/egress"
        return Settled.model_validate_json(await self._call("PUT", path, order.model_dump_json()))

    async def put_secrets(self, sandbox: SandboxId, order: SecretsOrder) -> None:
        """Use these values from the next request on; raises NotFound for a slot it does not know, Stale."""
        await self._call("PUT", f"/v1/slots/{sandbox}/secrets", order.model_dump_json())

    async def put_authority(self, authority: Authority) -> None:
        """Sign with this from now on; raises InvalidArgument where key and certificates do not belong together."""
        await self._call("PUT", "/v1/authority", authority.model_dump_json())

    async def answer_ask(self, sandbox: SandboxId, ask: int, answer: AskAnswer) -> None:
        """Answer for a held request; raises NotFound when it is not held any more."""
        await self._call("PUT", f"/v1/slots/{sandbox}/asks/{ask}", answer.model_dump_json())

    async def done(self, order: int) -> None:
        """Say that a WatchLine's order was carried out; fine for one that nobody waits for any more."""
        await self._call("POST", f"/v1/done/{order}")

    async def watch(self) -> AsyncGenerator[AnyLine]:
        """Yield what it says, at least once a second while the same process lives; raises Unavailable when it is gone.

        Only the newest watch is told; an older one ends.
        """
        try:
            async with self._http.stream("GET", "/v1/watch", timeout=httpx2.Timeout(5)) as response:
                raise_for_problem(response)
                async for line in response.aiter_lines():
                    yield _WATCH_LINE.validate_json(line)
        except httpx2.TransportError as error:
            raise Unavailable("The gateway went away.") from error
        raise Unavailable("The gateway went away.")

    async def events(self, boot: str = "", after: int = 0) -> AsyncGenerator[EgressEvent]:
        """Yield events after `after` of the gateway process `boot`, or from its oldest where that is another.

        Silent for as long as nothing happens; raises Unavailable when the gateway is gone.
        """
        query = f"/v1/egress?boot={boot}&after={after}"
        try:
            async with self._http.stream("GET", query, timeout=httpx2.Timeout(_CALL_S, read=None)) as response:
                raise_for_problem(response)
                async for line in response.aiter_lines():
                    yield EgressEvent.model_validate_json(line)
        except httpx2.TransportError as error:
            raise Unavailable("The gateway went away.") from error
        raise Unavailable("The gateway went away.")
