"""The rows of the steady clock; control/clock.py says what it is."""

import dataclasses

from space.store.db import Queries

_LOCK = "SELECT shift_s FROM clock FOR UPDATE"
_WALL = "SELECT extract(epoch FROM wall_clock())::double precision AS wall_s"
_ANCHOR = "SELECT since_boot_s, steady_s FROM clock_anchors WHERE boot_id = $1"
_LATEST = "SELECT max(steady_s) AS steady_s FROM clock_anchors"
_SHIFT = "UPDATE clock SET shift_s = $1"
_SET_ANCHOR = """
INSERT INTO clock_anchors (boot_id, since_boot_s, steady_s) VALUES ($1, $2, $3)
ON CONFLICT (boot_id) DO UPDATE SET since_boot_s = excluded.since_boot_s, steady_s = excluded.steady_s"""
_FORGET = "DELETE FROM clock_anchors WHERE steady_s < $1 - 30 * 86400"


@dataclasses.dataclass(frozen=True, slots=True)
class Anchor:
    """A moment that both clocks of a host's boot have seen; seconds."""

    since_boot_s: float
    steady_s: float


async def lock_shift(tx: Queries) -> float:
    """Return the shift in seconds; other processes that ask wait until the transaction ends."""
    row = await tx.fetchrow(_LOCK)
    assert row is not None
    return float(row["shift_s"])


async def wall_s(tx: Queries) -> float:
    """Return the database's clock in seconds since 1970."""
    row = await tx.fetchrow(_WALL)
    assert row is not None
    return float(row["wall_s"])


async def anchor(tx: Queries, boot_id: str) -> Anchor | None:
    """Return the anchor of a host's present boot."""
    row = await tx.fetchrow(_ANCHOR, boot_id)
    return None if row is None else Anchor(row["since_boot_s"], row["steady_s"])


async def latest(tx: Queries) -> float | None:
    """Return the latest steady time that any host has seen; None at the very beginning."""
    row = await tx.fetchrow(_LATEST)
    found: float | None = None if row is None else row["steady_s"]
    return found


async def write(tx: Queries, boot_id: str, anchor: Anchor, shift_s: float) -> None:
    """Record both; anchors of boots that are long over are forgotten."""
    await tx.execute(_SHIFT, shift_s)
    await tx.execute(_SET_ANCHOR, boot_id, anchor.since_boot_s, anchor.steady_s)
    await tx.execute(_FORGET, anchor.steady_s)
