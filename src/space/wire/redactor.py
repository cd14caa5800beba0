"""What the redactor asks the gateway: HTTP over a unix socket of this pair.

GET /v1/needles/{ident}   Needles: the secrets that answers under this identifier must not show
"""

from pathlib import Path

import httpx2
import pydantic

from space.model.errors import Unavailable
from space.wire.problem import raise_for_problem


class Needles(pydantic.BaseModel):
    """Secrets, in clear: both ends hold them in memory only."""

    secrets: list[str]


class NeedlesClient:
    """Asks the gateway."""

    def __init__(self, socket: Path) -> None:
        self._http = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(uds=str(socket)), base_url="http://gateway", timeout=httpx2.Timeout(2)
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def secrets(self, ident: str) -> tuple[str, ...]:
        """Return the secrets of an identifier; raises NotFound, or Unavailable where the gateway does not answer."""
        try:
            response = await self._http.get(f"/v1/needles/{ident}")
        except httpx2.TransportError as error:
            raise Unavailable("The gateway does not answer; it may be restarting. Try again.") from error
        raise_for_problem(response)
        return tuple(Needles.model_validate_json(response.content).secrets)
