"""What the machines of a worker draw from beside the host: frozen templates, spares, and the way to durable storage."""

import dataclasses

from space.worker.settler import Settler
from space.worker.shelf import Shelf
from space.worker.warm_pool import WarmPool


@dataclasses.dataclass(frozen=True, slots=True)
class Stock:
    """The parts."""

    shelf: Shelf
    spares: WarmPool
    settler: Settler
