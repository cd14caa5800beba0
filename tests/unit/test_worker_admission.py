"""What gives way when the memory area is full: memory that is stored as well, what nobody uses first."""

import datetime as dt
import itertools
import os
import time
from pathlib import Path

import pytest

from space.disk import frozen as storage
from space.disk.frozen import Frozen, Manifest
from space.layout import Layout
from space.model.errors import NoCapacity
from space.worker import admission
from space.worker.admission import Admission


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout(tmp_path, "admi", 0x7000_0000)
    for area in (found.disk_area, found.memory_area):
        area.mkdir()
    return found


def frozen(layout: Layout, name: str, *, settled: bool = True, used_s_ago: float = 1000) -> Frozen:
    made = Frozen(layout, name)
    storage.begin(made)
    made.hot_memory.write_bytes(b"memory")
    then = time.time() - used_s_ago
    os.utime(made.hot_memory, (then, then))
    manifest = Manifest(
        form=storage.FORM,
        name=name, generation=0, template="t", vcpus=1, memory_mib=1, vmm="v", with_memory=True,
        frozen_at=dt.datetime.now(dt.UTC),
        digests={"disk": "a" * 64, "memory": "b" * 64, "state": "c" * 64} if settled else None,
    )  # fmt: skip
    storage.commit(made, manifest)
    return made


async def evict(_: int) -> None:
    """There are no spares here."""


async def test_stored_memory_gives_way_in_turn(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    suspended = frozen(layout, "s-one-1", used_s_ago=100)
    older, newer = frozen(layout, "t-older-1-512", used_s_ago=900), frozen(layout, "t-newer-1-512", used_s_ago=800)
    just_used = frozen(layout, "t-used-1-512", used_s_ago=1)
    unsettled = frozen(layout, "t-fresh-1-512", settled=False)
    order: list[list[str]] = []

    def free(_: Path) -> int:
        order.append(sorted(path.name for path in (layout.memory_area / "frozen").iterdir()))
        return 0

    monkeypatch.setattr(admission, "free_bytes", free)
    full = Admission(layout, 1024, entries=list, spares=list, evict=evict)
    with pytest.raises(NoCapacity, match="memory area"):
        await full.check(0)
    given_up = [gone for before, after in itertools.pairwise(order) for gone in set(before) - set(after)]
    assert given_up == [suspended.name, older.name, newer.name]
    assert just_used.hot_memory.exists()
    assert unsettled.hot_memory.exists()


async def test_a_machine_that_is_no_sandboxs_is_counted_while_it_is_there(layout: Layout) -> None:
    counted = Admission(layout, 1024, entries=list, spares=list, evict=evict)
    before = counted.free_mib
    async with counted.reserved("build", 512):
        assert counted.free_mib == before - 512 - admission.OVERHEAD_MIB
        with pytest.raises(NoCapacity):
            async with counted.reserved("other", 512):
                raise AssertionError("there is no room for two")
    assert counted.free_mib == before
