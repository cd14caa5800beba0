"""What a frozen VM shares with its template is neither read nor stored again; harm to any of it is told."""

import datetime as dt
import errno
import fcntl
import os
import random
import re
import secrets
import shutil
import struct
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from space.disk import area, chunks, copies, frozen
from space.disk import bases as known_bases
from space.disk.chunks import CHUNK_BYTES, Known
from space.disk.frozen import Frozen, Manifest
from space.disk.settlement import settle
from space.disk.verification import fall_back, verify, verify_whole
from space.host.extents import extents
from space.host.files import reflink
from space.layout import Layout
from space.model.errors import SnapshotDamaged
from space.worker import shelf_check

MIB = 1024**2
DISK, MEMORY = 24 * MIB, 16 * MIB
TOUCHED = 7 * CHUNK_BYTES + 4096
"""A page in the middle of a chunk that the sandbox has written."""
SHARED = 21 * CHUNK_BYTES + 8192
"""One in a chunk that it has not."""
_FICLONERANGE = 0x4020940D


@pytest.fixture(scope="module")
async def layout(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Layout]:
    found = Layout(tmp_path_factory.mktemp("settle") / "data", f"g{secrets.token_hex(2)[:3]}", 0x7000_0000)
    await area.prepare(found, disk_gib=1, memory_gib=1)
    yield found
    await area.release(found)
    shutil.rmtree(found.data_dir)  # gigabytes, which pytest would keep for three runs


def _fill(path: Path, size: int) -> None:
    """Data in the first half, as a root filesystem or a memory has it, and a little at the end."""
    with path.open("wb") as file:
        file.write(os.urandom(size // 2))
        file.seek(size - 5000)
        file.write(os.urandom(5000))


def _touch(path: Path) -> None:
    """Write here and there, in data and in holes."""
    with path.open("r+b") as file:
        for offset in (TOUCHED, 13 * CHUNK_BYTES, path.stat().st_size - 3 * MIB):
            file.seek(offset)
            file.write(os.urandom(4096))


def _commit(made: Frozen) -> None:
    manifest = Manifest(
        name=made.name, generation=1, template="sha256:" + "0" * 64, vcpus=1, memory_mib=MEMORY // MIB,
        vmm="qemu 0 tcg", with_memory=True, frozen_at=dt.datetime.now(dt.UTC),
    )  # fmt: skip
    frozen.commit(made, manifest)


def _read(made: Frozen) -> Manifest:
    found = frozen.read(made)
    assert found is not None
    return found


def _blank(layout: Layout, prefix: str) -> Frozen:
    made = Frozen(layout, f"{prefix}-{secrets.token_hex(10)}-1")
    frozen.begin(made)
    made.state.write_bytes(os.urandom(60_000))
    return made


def _like(layout: Layout, parent: Frozen) -> Frozen:
    """A frozen VM that was cloned from `parent` and has written a little since; not settled."""
    made = _blank(layout, "s")
    reflink(parent.disk, made.disk)
    reflink(parent.hot_memory, made.hot_memory)
    for path in (made.disk, made.hot_memory):
        _touch(path)
    _commit(made)
    return made


@pytest.fixture
async def template(layout: Layout) -> AsyncGenerator[Frozen]:
    made = _blank(layout, "t")
    _fill(made.disk, DISK)
    _fill(made.hot_memory, MEMORY)
    _commit(made)
    await settle(made)
    yield made
    for name in frozen.names(layout):
        frozen.discard(Frozen(layout, name))


@pytest.fixture
async def suspended(layout: Layout, template: Frozen) -> Frozen:
    """A settled suspension of a clone of the template."""
    made = _like(layout, template)
    await settle(made, (template,))
    return made


def _known(of: Frozen, place: known_bases.Place) -> list[Known]:
    found = known_bases.known((of,), place)
    assert len(found) == 1
    return found


def _harm(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def _harm_below(layout: Layout, path: Path, offset: int) -> None:
    """Flip a bit of the device itself, where whatever shares the block has it; the file system is not told."""
    with path.open("rb") as file:
        shift = next(e.shift for e in extents(file.fileno()) if e.start <= offset < e.end)
    assert shift is not None
    image = layout.data_dir / "mem.img"
    os.sync()
    told = subprocess.run(
        ["btrfs-map-logical", "-l", str(offset + shift), "-b", "4096", str(image)],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    physical = re.search(r"physical (\d+)", told)
    assert physical is not None, told
    _harm(image, int(physical.group(1)))
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")


def test_only_what_is_its_own_is_read_and_stored(suspended: Frozen, template: Frozen) -> None:
    own = {TOUCHED // CHUNK_BYTES, 13, (MEMORY - 3 * MIB) // CHUNK_BYTES}
    _, read = chunks.take(suspended.hot_memory, _known(template, "hot_memory"))
    assert read == own
    with suspended.stored_memory.open("rb") as file:
        stored = chunks.unshared(extents(file.fileno()), _known(template, "stored_memory")[0], MEMORY)
    assert stored == own
    assert suspended.stored_memory.read_bytes() == suspended.hot_memory.read_bytes()


def test_its_digests_are_those_that_reading_all_of_it_gives(suspended: Frozen) -> None:
    tables = frozen.read_tables(suspended, _read(suspended))
    for path, part in ((suspended.disk, tables["disk"]), (suspended.hot_memory, tables["memory"])):
        assert chunks.take(path)[0] == part


@pytest.mark.parametrize("seed", range(12))
async def test_any_writes_are_found(layout: Layout, template: Frozen, seed: int) -> None:
    """Of any size, anywhere, zeros too, over each other, synced between or not, through a mapping or not."""
    rng = random.Random(seed)
    made = _like(layout, template)
    with made.hot_memory.open("r+b") as file:
        for _ in range(rng.randrange(1, 60)):
            file.seek(rng.randrange(MEMORY - 1))
            length = min(rng.choice((1, 100, 4096, 70_000, 300_000)), MEMORY - file.tell())
            file.write(bytes(length) if rng.random() < 0.3 else rng.randbytes(length))
            if rng.random() < 0.1:
                file.flush()
                os.fsync(file.fileno())
    settled = await settle(made, (template,))
    assert frozen.read_tables(made, settled)["memory"] == chunks.take(made.hot_memory)[0]
    assert made.stored_memory.read_bytes() == made.hot_memory.read_bytes()
    await verify(made, settled)


async def test_the_suspension_before_is_shared_too(layout: Layout, template: Frozen, suspended: Frozen) -> None:
    """What a long-lived sandbox has written once is not stored anew each time."""
    again = _like(layout, suspended)
    settled = await settle(again, (suspended, template))
    with again.stored_memory.open("rb") as file:
        stored = chunks.unshared(extents(file.fileno()), _known(suspended, "stored_memory")[0], MEMORY)
    assert len(stored) == 3
    frozen.discard(suspended)
    await verify(again, settled)
    await verify_whole(again, settled)


@pytest.mark.parametrize("offset", [TOUCHED, SHARED], ids=["own", "shared"])
@pytest.mark.parametrize("place", ["disk", "hot_memory", "stored_memory"])
async def test_a_flipped_bit_is_told(suspended: Frozen, place: known_bases.Place, offset: int) -> None:
    """Through the file: what it shared it no longer shares then."""
    path = known_bases.path(suspended, place)
    _harm(path, offset)
    if place == "stored_memory":
        suspended.hot_memory.unlink()
    with pytest.raises(SnapshotDamaged, match=known_bases.part_of(place)):
        await verify(suspended, _read(suspended))


async def test_two_chunks_that_changed_places_are_told(suspended: Frozen, template: Frozen) -> None:
    """As blocks: both are still what the template has, but elsewhere."""
    other = suspended.hot_memory.with_name("other")
    reflink(template.hot_memory, other)
    with suspended.hot_memory.open("r+b") as file, other.open("rb") as source:
        for here, there in ((20, 22), (22, 20)):
            _clone_range(source.fileno(), there * CHUNK_BYTES, file.fileno(), here * CHUNK_BYTES)
    with pytest.raises(SnapshotDamaged, match="memory"):
        await verify(suspended, _read(suspended))


def _clone_range(source: int, source_offset: int, target: int, target_offset: int) -> None:
    fcntl.ioctl(target, _FICLONERANGE, struct.pack("=qQQQ", source, source_offset, CHUNK_BYTES, target_offset))


@pytest.mark.parametrize("harm", ["shorter", "longer", "hole"])
async def test_a_length_or_a_hole_is_told(suspended: Frozen, harm: str) -> None:
    size = suspended.hot_memory.stat().st_size
    if harm == "hole":
        os.truncate(suspended.hot_memory, SHARED - SHARED % CHUNK_BYTES)
        os.truncate(suspended.hot_memory, size)
    else:
        os.truncate(suspended.hot_memory, size - 4096 if harm == "shorter" else size + 4096)
    with pytest.raises(SnapshotDamaged, match="memory"):
        await verify(suspended, _read(suspended))


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "remove", "its template's"])
async def test_a_damaged_list_of_digests_is_told(suspended: Frozen, template: Frozen, harm: str) -> None:
    path = suspended.digests_file
    whole = path.read_bytes()
    if harm == "remove":
        path.unlink()
    else:
        other = {"flip": whole[:-1] + bytes([whole[-1] ^ 1]), "cut": whole[:-40], "empty": b""}
        path.write_bytes(other.get(harm, template.digests_file.read_bytes()))
    with pytest.raises(SnapshotDamaged, match="digests"):
        await verify(suspended, _read(suspended))


@pytest.mark.parametrize("harm", ["flip", "remove", "manifest"])
async def test_a_template_that_is_not_sure_is_not_believed(suspended: Frozen, template: Frozen, harm: str) -> None:
    """Then all is read, and found whole or not."""
    if harm == "flip":
        _harm(template.digests_file, 100)
    elif harm == "remove":
        frozen.distrust(template)
    else:
        template.manifest_file.write_text("{")
    assert known_bases.known((template,), "hot_memory") == []
    await verify(suspended, _read(suspended))
    _harm(suspended.hot_memory, SHARED)
    with pytest.raises(SnapshotDamaged, match="memory"):
        await verify(suspended, _read(suspended))


async def test_damage_below_to_what_is_shared_is_found_with_the_template(
    layout: Layout, suspended: Frozen, template: Frozen
) -> None:
    """The memory area keeps no checksums. Templates are verified whole after each start of the host and once a day."""
    _harm_below(layout, template.hot_memory, SHARED)
    with pytest.raises(SnapshotDamaged, match="memory"):
        await verify_whole(template, _read(template))
    os.utime(template.digests_file, (0, 0))
    await shelf_check.look_at(template)
    await verify_whole(template, _read(template))  # its memory was taken from storage again
    # the suspension has the block still, and no longer shares it
    with pytest.raises(SnapshotDamaged, match="memory"):
        await verify(suspended, _read(suspended))
    suspended.hot_memory.unlink()
    await verify(suspended, _read(suspended))


async def test_damage_below_to_its_own_is_told(layout: Layout, suspended: Frozen) -> None:
    _harm_below(layout, suspended.hot_memory, TOUCHED)
    with pytest.raises(SnapshotDamaged, match="memory"):
        await verify(suspended, _read(suspended))


async def test_a_template_that_cannot_be_mended_is_set_aside(template: Frozen) -> None:
    _harm(template.disk, SHARED)
    os.utime(template.digests_file, (0, 0))
    await shelf_check.look_at(template)
    assert not template.digests_file.exists()
    with pytest.raises(SnapshotDamaged, match="digests"):
        await verify(template, _read(template))


async def test_a_template_is_verified_when_it_is_due(template: Frozen) -> None:
    published = template.digests_file.stat().st_mtime
    await shelf_check.look_at(template)
    assert template.digests_file.stat().st_mtime == published, "it was read just before"
    os.utime(template.digests_file, (published + 1e6, published + 1e6))
    await shelf_check.look_at(template)
    assert template.digests_file.stat().st_mtime < published + 1e6, "the clock had been wrong"


async def test_a_template_deleted_or_replaced_leaves_the_suspension_whole(
    layout: Layout, suspended: Frozen, template: Frozen
) -> None:
    frozen.discard(template)
    await verify(suspended, _read(suspended))
    frozen.begin(template)
    template.state.write_bytes(os.urandom(60_000))
    _fill(template.disk, DISK)
    _fill(template.hot_memory, MEMORY)
    _commit(template)
    await settle(template)
    await verify(suspended, _read(suspended))
    before = suspended.hot_memory.read_bytes()
    suspended.hot_memory.unlink()
    target = layout.memory_area / f"again-{secrets.token_hex(3)}"
    await copies.clone_memory(suspended, target)
    assert target.read_bytes() == before


async def test_a_memory_that_was_given_up_comes_back_sharing_its_templates(
    layout: Layout, suspended: Frozen, template: Frozen
) -> None:
    before = suspended.hot_memory.read_bytes()
    suspended.hot_memory.unlink()
    target = layout.memory_area / f"back-{secrets.token_hex(3)}"
    await copies.clone_memory(suspended, target)
    assert target.read_bytes() == before
    _, own = chunks.take(target, _known(template, "hot_memory"))
    assert len(own) == 3


async def test_the_hot_memory_of_a_template_is_made_again(template: Frozen) -> None:
    """The memory area may have been made anew."""
    before = template.hot_memory.read_bytes()
    template.hot_memory.unlink()
    await shelf_check.look_at(template)
    assert template.hot_memory.read_bytes() == before


async def test_a_damaged_hot_memory_gives_way_to_a_whole_stored_one(suspended: Frozen) -> None:
    manifest = _read(suspended)
    assert not await fall_back(suspended, manifest), "nothing is damaged"
    _harm(suspended.hot_memory, TOUCHED)
    assert await fall_back(suspended, manifest)
    await verify(suspended, manifest)


async def test_two_damaged_memories_stay_where_they_are(suspended: Frozen) -> None:
    manifest = _read(suspended)
    _harm(suspended.hot_memory, TOUCHED)
    _harm(suspended.stored_memory, TOUCHED)
    assert not await fall_back(suspended, manifest)
    assert suspended.hot_memory.exists()


@pytest.mark.parametrize("part", ["disk", "memory", "state"])
async def test_what_the_host_could_not_write_is_never_called_good(
    layout: Layout, template: Frozen, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """The kernel tells a failed write once, at the next fsync; after that the file seems whole."""
    made = _like(layout, template)
    path = {"disk": made.disk, "memory": made.hot_memory, "state": made.state}[part]
    sync = os.fsync

    def fails_once(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == path:
            monkeypatch.undo()
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fails_once)
    for attempt in range(2):
        with pytest.raises(SnapshotDamaged, match=part):
            await settle(made, (template,))
        assert _read(made).digests is None, attempt
    with pytest.raises(SnapshotDamaged, match=part):
        await verify(made, _read(made))


async def test_the_list_of_another_is_told(layout: Layout, template: Frozen, suspended: Frozen) -> None:
    """All that it has is its template's, byte for byte, and the list speaks of something else."""
    made = _blank(layout, "s")
    reflink(template.disk, made.disk)
    reflink(template.hot_memory, made.hot_memory)
    reflink(suspended.state, made.state.with_name("other"))
    made.state.with_name("other").replace(made.state)
    _commit(made)
    settled = await settle(made, (template,))
    made.digests_file.write_bytes(suspended.digests_file.read_bytes())
    other = settled.model_copy(update={"digests": _read(suspended).digests})
    frozen.commit(made, other)
    with pytest.raises(SnapshotDamaged, match="not what was written"):
        await verify(made, other)


async def test_what_did_not_reach_the_disk_as_it_was_is_not_durable(
    layout: Layout, template: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _like(layout, template)
    copy_chunks = chunks.copy

    def spoil(source: Path, target: int, numbers: set[int]) -> None:
        copy_chunks(source, target, numbers)
        os.pwrite(target, b"\0\1", min(numbers) * CHUNK_BYTES + 99)

    monkeypatch.setattr(chunks, "copy", spoil)
    with pytest.raises(SnapshotDamaged, match="did not reach the disk"):
        await settle(made, (template,))
    assert _read(made).digests is None
