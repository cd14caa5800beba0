"""Frozen VMs on real areas: what is stored is what was, what was damaged is told, what was given up is gone."""

import asyncio
import datetime as dt
import json
import os
import secrets
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from space.disk import area, chunks, copies, frozen
from space.disk.frozen import Frozen, Manifest
from space.disk.settlement import settle
from space.disk.verification import verify
from space.layout import Layout
from space.model.errors import SnapshotDamaged
from space.worker.settler import Settler

MIB = 1024**2
CHUNK = chunks.CHUNK_BYTES


@pytest.fixture(scope="module")
async def layout(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Layout]:
    found = Layout(tmp_path_factory.mktemp("frozen") / "data", f"f{secrets.token_hex(2)[:3]}", 0x7000_0000)
    await area.prepare(found, disk_gib=1, memory_gib=1)
    yield found
    await area.release(found)
    shutil.rmtree(found.data_dir)  # gigabytes, which pytest would keep for three runs


def _sparse(path: Path, size: int) -> None:
    """A file with data here and there, as a guest's memory has it."""
    with path.open("wb") as file:
        for offset in (0, 5 * MIB + 12345, size - 100):
            file.seek(offset)
            file.write(os.urandom(100))
        file.truncate(size)


@pytest.fixture
def stored(layout: Layout) -> Frozen:
    """A committed frozen VM with memory, not settled."""
    made = Frozen(layout, f"s-{secrets.token_hex(10)}-1")
    frozen.begin(made)
    _sparse(made.disk, 64 * MIB)
    _sparse(made.hot_memory, 32 * MIB)
    made.state.write_bytes(os.urandom(60_000))
    manifest = Manifest(
        name=made.name, generation=1, template="sha256:" + "0" * 64, vcpus=1, memory_mib=32, vmm="qemu 0 tcg",
        with_memory=True, frozen_at=dt.datetime.now(dt.UTC),
    )  # fmt: skip
    frozen.commit(made, manifest)
    return made


def _read(made: Frozen) -> Manifest:
    found = frozen.read(made)
    assert found is not None
    return found


async def test_settling_stores_memory_as_it_was_and_can_be_done_again(stored: Frozen) -> None:
    settled = await settle(stored)
    assert settled.digests is not None
    assert set(settled.digests) == {"disk", "memory", "state"}
    assert stored.stored_memory.read_bytes() == stored.hot_memory.read_bytes()
    assert stored.stored_memory.stat().st_blocks * 512 < 4 * MIB, "holes were stored as zeros"
    assert await settle(stored) == settled
    await verify(stored, settled)


@pytest.mark.parametrize("part", ["disk", "memory", "state"])
@pytest.mark.parametrize("harm", ["flip", "truncate", "remove"])
async def test_harm_to_any_part_is_told(stored: Frozen, part: str, harm: str) -> None:
    settled = await settle(stored)
    path = {"disk": stored.disk, "memory": stored.stored_memory, "state": stored.state}[part]
    stored.hot_memory.unlink()
    with path.open("r+b") as file:
        if harm == "flip":
            file.seek(7)
            file.write(b"\x00\xff")
        elif harm == "truncate":
            file.truncate(path.stat().st_size - 1)
    if harm == "remove":
        path.unlink()
    with pytest.raises(SnapshotDamaged, match=part):
        await verify(stored, settled)


async def test_memory_comes_from_storage_when_the_hot_file_was_given_up(stored: Frozen, layout: Layout) -> None:
    await settle(stored)
    before = stored.hot_memory.read_bytes()
    stored.hot_memory.unlink()
    target = layout.memory_area / "again"
    await copies.clone_memory(stored, target)
    assert target.read_bytes() == before


async def test_a_copy_and_a_renamed_one_are_whole(stored: Frozen, layout: Layout) -> None:
    copy = Frozen(layout, f"f-{secrets.token_hex(10)}")
    await copies.copy(stored, copy, memory=True)
    frozen.commit(copy, _read(stored).model_copy(update={"name": copy.name}))
    settled = await settle(copy)
    target = Frozen(layout, f"t-{secrets.token_hex(10)}-1-32")
    frozen.rename(copy, target, settled)
    assert frozen.read(copy) is None
    assert _read(target).name == target.name
    await verify(target, _read(target))
    assert target.hot_memory.read_bytes() == stored.hot_memory.read_bytes()


def test_what_was_discarded_or_never_committed_does_not_exist(stored: Frozen, layout: Layout) -> None:
    frozen.discard(stored)
    frozen.discard(stored)
    assert frozen.read(stored) is None
    assert stored.name not in frozen.names(layout)
    half = Frozen(layout, f"s-{secrets.token_hex(10)}-1")
    frozen.begin(half)
    assert frozen.read(half) is None
    assert half.name in frozen.names(layout), "the janitor must find it"


def test_a_manifest_that_makes_no_sense_is_damage(stored: Frozen) -> None:
    stored.manifest_file.write_text('{"name": ')
    with pytest.raises(SnapshotDamaged, match="manifest"):
        frozen.read(stored)


@given(st.lists(st.tuples(st.integers(0, 5 * CHUNK), st.binary(min_size=1, max_size=300)), max_size=6))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_digest_tells_content_and_nothing_else(layout: Layout, writes: list[tuple[int, bytes]]) -> None:
    """Holes and written zeros are the same; one other byte is not."""
    holes, zeros = layout.disk_area / "holes", layout.disk_area / "zeros"
    size = 6 * CHUNK
    zeros.write_bytes(bytes(size))
    holes.write_bytes(b"")
    os.truncate(holes, size)
    for path in (holes, zeros):
        with path.open("r+b") as file:
            for offset, data in writes:
                file.seek(offset)
                file.write(data)
    assert _digest(holes) == _digest(zeros)
    with zeros.open("r+b") as file:
        file.seek(3 * CHUNK)
        byte = file.read(1)
        file.seek(3 * CHUNK)
        file.write(bytes([byte[0] ^ 1]))
    assert _digest(holes) != _digest(zeros)


def _digest(path: Path) -> str:
    table, _ = chunks.take(path)
    assert not chunks.damaged(path, table)
    assert chunks.decode(b"xyz" + table.encode(), 3) == (table, 3 + len(table.encode()))
    return table.digest


async def test_one_that_cannot_be_settled_holds_up_no_other(stored: Frozen, layout: Layout) -> None:
    """A full disk or a lost file: the error came as a group, which nobody caught, and the whole worker ended."""
    broken = Frozen(layout, f"s-{secrets.token_hex(10)}-1")
    frozen.begin(broken)
    frozen.commit(broken, _read(stored).model_copy(update={"name": broken.name}))
    settled = asyncio.Event()
    settler = Settler()
    settler.add(broken, (), pytest.fail)
    settler.add(stored, (), settled.set)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        works = group.create_task(settler.run())
        await settled.wait()
        works.cancel()
    assert _read(stored).digests is not None


async def test_what_could_not_be_settled_is_tried_again(stored: Frozen) -> None:
    """It was not before the worker was started anew."""
    away = stored.hot_memory.with_name("away")
    stored.hot_memory.rename(away)
    settled = asyncio.Event()
    settler = Settler(first_retry_s=0.01)
    settler.add(stored, (), settled.set)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        works = group.create_task(settler.run())
        while settler.failures < 2:
            await asyncio.sleep(0.01)
        away.rename(stored.hot_memory)
        await settled.wait()
        works.cancel()
    await verify(stored, _read(stored))


async def test_what_was_dropped_after_a_failure_is_not_tried_again(stored: Frozen) -> None:
    stored.hot_memory.unlink()
    settler = Settler(first_retry_s=0.01)
    settler.add(stored, (), pytest.fail)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        works = group.create_task(settler.run())
        while settler.failures < 2:
            await asyncio.sleep(0.01)
        await settler.drop(stored)
        assert settler.empty
        works.cancel()
    assert frozen.is_gone(stored)


def test_one_of_an_older_form_counts_as_not_settled(stored: Frozen) -> None:
    """Digests of whole files, as they were before tables: it is settled again, and stays what it is."""
    older = _read(stored).model_dump(mode="json") | {"digests": {"disk": "0" * 64}}
    del older["form"]
    stored.manifest_file.write_text(json.dumps(older))
    assert _read(stored).digests is None


async def test_one_that_the_host_went_down_under_is_not_relied_on(stored: Frozen, layout: Layout) -> None:
    """Its files may be anything. It was started from them, and settling them would have called them good."""
    frozen.commit(stored, _read(stored).model_copy(update={"boot": "an earlier one"}))
    for attempt in (verify(stored, _read(stored)), settle(stored)):
        with pytest.raises(SnapshotDamaged, match="restarted"):
            await attempt
    assert _read(stored).digests is None


async def test_a_settled_one_outlives_the_host(stored: Frozen) -> None:
    settled = await settle(stored)
    frozen.commit(stored, settled.model_copy(update={"boot": "an earlier one"}))
    await verify(stored, _read(stored))


async def test_a_worker_that_stops_settles_first(stored: Frozen) -> None:
    settler = Settler()
    settler.add(stored, (), lambda: None)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        works = group.create_task(settler.run())
        await settler.finish(20)
        works.cancel()
    assert _read(stored).digests is not None
