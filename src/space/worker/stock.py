"""What the machines of a worker draw from beside the host: templates, spares, the way to durable storage."""

import asyncio
import dataclasses

from space.worker.settler import Settler
from space.worker.shelf import Shelf
from space.worker.warm_pool import WarmPool


@dataclasses.dataclass(frozen=True, slots=True)
class Stock:
    """The parts.

    `turns` bounds how many VMs start at once, first come first served: fifty that share two cores would all come to
    answer at the end, and none of them in time.
    """

    shelf: Shelf
    spares: WarmPool
    settler: Settler
    turns: asyncio.Semaphore
