"""The api in the test's own process, over a real database: no edge, and a worker socket that nobody listens on."""

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx2

from space.apiserver.assembly import assemble
from space.control import keys
from space.control.access import Access
from space.control.plane import Plane
from space.control.vault import Vault
from space.control.workers import WorkerLink, Workers
from space.model.ids import ProjectId
from space.store import projects
from space.store.db import Database
from space.store.notices import Notices
from space.wire.worker_client import WorkerClient


@dataclasses.dataclass(frozen=True, slots=True)
class Api:
    """A client of the application with a valid key, and what is behind it."""

    http: httpx2.AsyncClient
    plane: Plane
    access: Access
    project: ProjectId
    key: str

    def anonymous(self, headers: Mapping[str, str] | None = None) -> httpx2.AsyncClient:
        """Return a client without the key. Nothing is held open by it."""
        return httpx2.AsyncClient(transport=self.http._transport, base_url="http://space", headers=headers)


@contextlib.asynccontextmanager
async def api_over(db: Database, worker_sock: Path, domain: str | None = None) -> AsyncIterator[Api]:
    """Put an api together the way the process does, without its loops."""
    client = WorkerClient(worker_sock)
    plane = Plane(db, Notices(db), Workers([WorkerLink(client)]), Vault([bytes(32)]))
    access = Access(plane)
    project = await projects.ensure(db, keys.DEFAULT_PROJECT)
    _, key = await keys.create(db, project, "test")
    transport = httpx2.ASGITransport(app=assemble(plane, access, domain))
    try:
        with access.following():
            async with httpx2.AsyncClient(
                transport=transport, base_url="http://space", headers={"x-api-key": key}
            ) as http:
                yield Api(http, plane, access, project, key)
    finally:
        await client.close()
