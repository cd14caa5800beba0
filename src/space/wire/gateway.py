"""The gateway's control API: HTTP over a unix socket that only root may dial; the worker is its only caller.

The gateway keeps no state of its own: it knows the slots that the worker told it since it started, and refuses every
other. The worker watches it and tells all again after a restart.

    PUT    /v1/slots/{sandbox}   {address, agent_port}
    DELETE /v1/slots/{sandbox}
    PUT    /v1/slots             the whole map at once (after a restart of either side)
    GET    /v1/watch             NDJSON, a line each second; the connection's end is the news
"""

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import httpx2
import pydantic

from space.model.errors import Unavailable
from space.model.ids import SandboxId
from space.wire.problem import raise_for_problem

AGENT_PORT = 49983
AGENT_INTERNAL_PORT = 49982


class SlotEntry(pydantic.BaseModel):
    """Where a sandbox's agent is reached from the gateway namespace."""

    address: pydantic.IPvAnyAddress
    agent_port: int = AGENT_PORT


class SlotMap(pydantic.BaseModel):
    """All slots of a worker, by sandbox id."""

    slots: dict[str, SlotEntry]


class GatewayClient:
    """Talks to the gateway beside the worker."""

    def __init__(self, socket: Path) -> None:
        self._http = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(uds=str(socket)), base_url="http://gateway", timeout=httpx2.Timeout(5)
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def _call(self, method: str, path: str, body: str | None = None) -> None:
        try:
            response = await self._http.request(
                method, path, content=body, headers={"content-type": "application/json"}
            )
        except httpx2.TransportError as error:
            raise Unavailable("The gateway does not answer; it may be restarting. Try again.") from error
        raise_for_problem(response)

    async def put_slot(self, sandbox: SandboxId, address: str) -> None:
        """Let requests for `sandbox` through to the slot with this address."""
        entry = SlotEntry.model_validate({"address": address})
        await self._call("PUT", f"/v1/slots/{sandbox}", entry.model_dump_json())

    async def delete_slot(self, sandbox: SandboxId) -> None:
        """Refuse requests for `sandbox` from now on."""
        await self._call("DELETE", f"/v1/slots/{sandbox}")

    async def put_slots(self, addresses: Mapping[SandboxId, str]) -> None:
        """Replace the whole map."""
        slots = {str(sandbox): {"address": address} for sandbox, address in addresses.items()}
        await self._call("PUT", "/v1/slots", SlotMap.model_validate({"slots": slots}).model_dump_json())

    async def watch(self) -> AsyncGenerator[None]:
        """Yield once a second while the same gateway process lives; raises Unavailable when it is gone."""
        try:
            async with self._http.stream("GET", "/v1/watch", timeout=httpx2.Timeout(5)) as response:
                raise_for_problem(response)
                async for _ in response.aiter_lines():
                    yield None
        except httpx2.TransportError as error:
            raise Unavailable("The gateway went away.") from error
        raise Unavailable("The gateway went away.")
