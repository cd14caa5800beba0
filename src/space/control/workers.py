"""The workers that the control plane knows: who they are, whether they answer, and which one takes a new sandbox.

A worker is dialled at an address; its id is learned from it, and its link is kept up to date by the watch loop.
"""

import dataclasses
from collections.abc import Sequence

from space.model.errors import Unavailable
from space.model.ids import WorkerId
from space.wire.worker_client import WorkerClient

_NONE = "No worker answers; it may be restarting. Try again."


@dataclasses.dataclass(slots=True)
class WorkerLink:
    """One worker as seen from here. `id` is None until it first answered; `connected` while its watch is held."""

    client: WorkerClient
    id: WorkerId | None = None
    connected: bool = False
    memory_free_mib: int = 0


class Workers:
    """The registry. Only the watch loop changes the links."""

    def __init__(self, links: Sequence[WorkerLink]) -> None:
        self.links = tuple(links)

    def client(self, worker: WorkerId) -> WorkerClient:
        """Return the client for a worker; raises Unavailable for one that this process has not met yet."""
        for link in self.links:
            if link.id == worker:
                return link.client
        raise Unavailable(_NONE)

    def place(self) -> WorkerId:
        """Return the worker for a new sandbox: of those that answer, the one with most memory left.

        Whether it fits is the worker's to say: its figure here may be a second old. Raises Unavailable where none
        answers.
        """
        ready = [link for link in self.links if link.connected and link.id is not None]
        if not ready:
            raise Unavailable(_NONE)
        best = max(ready, key=lambda link: link.memory_free_mib)
        assert best.id is not None
        return best.id

    @property
    def connected(self) -> int:
        """How many answer."""
        return sum(link.connected for link in self.links)
