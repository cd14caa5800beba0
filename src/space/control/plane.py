"""What the use cases work with: the store, its notices, the workers, and the leases that this process holds."""

import dataclasses
from collections import Counter

from space.control.activity import Activity
from space.control.clock import Clock
from space.control.vault import Vault
from space.control.workers import Workers
from space.model.ids import SandboxId, new_id
from space.model.image_names import ImageMap, read_image_map
from space.store.db import Database
from space.store.notices import Notices
from space.store.sandboxes import Lease

LEASE_TTL_S = 5.0
"""After a process died, its half-done work waits this long for another to take it over."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plane:
    """One per process. `held` maps each sandbox being reconciled here to the epoch of its lease."""

    db: Database
    notices: Notices
    workers: Workers
    vault: Vault
    images: ImageMap = dataclasses.field(default_factory=lambda: read_image_map(()))
    """Which images for containers stand for templates."""

    clock: Clock = dataclasses.field(default_factory=Clock)
    owner: str = dataclasses.field(default_factory=new_id)
    held: dict[SandboxId, int] = dataclasses.field(default_factory=dict)
    egress_counts: Counter[str] = dataclasses.field(default_factory=Counter)
    """Events about sandboxes' traffic that this process has stored, by what they say."""
    activity: Activity = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "activity", Activity(self.clock))

    @property
    def lease(self) -> Lease:
        """The lease that this process takes."""
        return Lease(self.owner, LEASE_TTL_S)
