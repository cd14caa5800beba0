"""Layers and uploads of builds on a real disk area: whole or not at all, bounded, and by reflink."""

import asyncio
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from space.disk import area, layers, uploads
from space.disk.layers import Layers
from space.layout import Layout
from space.model.errors import InvalidArgument, NotFound, StorageFull, TooLarge

MIB = 1024**2
SCOPE = "s" * 20


@pytest.fixture(scope="module")
async def layout(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Layout]:
    found = Layout(tmp_path_factory.mktemp("layers") / "data", f"y{secrets.token_hex(2)[:3]}", 0x7000_0000)
    await area.prepare(found, disk_gib=2, memory_gib=1)
    yield found
    await area.release(found)
    shutil.rmtree(found.data_dir)


@pytest.fixture
def kept(layout: Layout) -> Layers:
    found = Layers(layout)
    shutil.rmtree(found.folder, ignore_errors=True)
    shutil.rmtree(layout.disk_area / "uploads", ignore_errors=True)
    return found


def key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def disk(layout: Layout, size_bytes: int = MIB) -> Path:
    made = layout.disk_area / f"disk-{secrets.token_hex(4)}"
    made.write_bytes(os.urandom(size_bytes))
    return made


async def test_a_layer_is_taken_by_reflink_and_a_newer_one_takes_its_place(layout: Layout, kept: Layers) -> None:
    first, second = disk(layout), disk(layout)
    content = [first.read_bytes(), second.read_bytes()]
    assert not kept.has_disk(key("a"))
    await kept.keep(key("a"), first, own_bytes=MIB)
    assert not first.exists(), "it was moved, not copied"
    target = layout.disk_area / "clone"
    await kept.take(key("a"), target)
    assert target.read_bytes() == content[0]
    await kept.keep(key("a"), second, own_bytes=MIB)
    await kept.take(key("a"), target)
    assert target.read_bytes() == content[1]
    await kept.note(key("b"), "sha256:1")
    found = kept.facts(key("b"))
    assert found is not None
    assert found.template == "sha256:1"
    assert not kept.has_disk(key("b"))
    assert not list(layout.disk_area.glob(f"{layers.HALF_MADE}*"))


async def test_the_least_recently_used_go_first(layout: Layout, kept: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(4):
        await kept.keep(key(str(n)), disk(layout, 4096), own_bytes=4096)
        os.utime(kept.folder / key(str(n)), (n, n))
    assert kept.has_disk(key("0")), "used just now"
    monkeypatch.setattr(layers, "MAX_LAYERS", 2)
    await kept.trim()
    assert {path.name for path in kept.folder.iterdir()} == {key("0"), key("3")}
    monkeypatch.setattr(layers, "SHARE_PERCENT", 0)
    await kept.trim()
    assert [path.name for path in kept.folder.iterdir()] == [key("0")], "what a build is about to go on from stays"


async def test_a_damaged_layer_counts_as_none_and_goes(layout: Layout, kept: Layers) -> None:
    await kept.keep(key("a"), disk(layout), own_bytes=MIB)
    (kept.folder / key("a") / "layer.json").write_text("{")
    assert not kept.has_disk(key("a"))
    await kept.trim()
    assert not list(kept.folder.iterdir())
    for odd in ("..", "A" * 64, "a" * 63):
        with pytest.raises(ValueError, match="no key"):
            await kept.keep(odd, disk(layout), own_bytes=0)


async def body(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def test_an_upload_is_kept_whole_with_its_digest(layout: Layout, kept: Layers) -> None:
    with pytest.raises(NotFound):
        uploads.find(layout, SCOPE, "name")
    stored = await uploads.keep(layout, SCOPE, "name", body(b"one", b"two"))
    assert (stored.sha256, stored.size_bytes) == (hashlib.sha256(b"onetwo").hexdigest(), 6)
    path, found = uploads.find(layout, SCOPE, "name")
    assert (path.read_bytes(), found) == (b"onetwo", stored)
    with pytest.raises(NotFound):
        uploads.find(layout, "t" * 20, "name")
    await uploads.keep(layout, SCOPE, "name", body(b"three"))
    assert uploads.find(layout, SCOPE, "name")[0].read_bytes() == b"three"


async def test_an_upload_that_breaks_off_or_is_another_leaves_what_was_there(layout: Layout, kept: Layers) -> None:
    await uploads.keep(layout, SCOPE, "name", body(b"old"))

    async def broken() -> AsyncIterator[bytes]:
        yield b"new"
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await uploads.keep(layout, SCOPE, "name", broken())
    with pytest.raises(InvalidArgument):
        await uploads.keep(layout, SCOPE, "name", body(b"new"), sha256="0" * 64)
    assert uploads.find(layout, SCOPE, "name")[0].read_bytes() == b"old"
    assert not list(layout.disk_area.glob(f"{layers.HALF_MADE}*"))


async def test_uploads_are_bounded(layout: Layout, kept: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_FILES_BYTES", 10)
    with pytest.raises(TooLarge):
        await uploads.keep(layout, SCOPE, "large", body(b"x" * 6, b"x" * 6))
    monkeypatch.setattr(uploads, "_ROOM_BYTES", 1 << 50)
    with pytest.raises(StorageFull):
        await uploads.keep(layout, SCOPE, "full", body(b"x"))
    monkeypatch.undo()
    for name in ("a", "b", "c"):
        await uploads.keep(layout, SCOPE, name, body(b"x" * 100))
    for name, age_s in (("a", 8 * 86400), ("b", 60)):
        os.utime(layout.disk_area / "uploads" / SCOPE / name, (time.time() - age_s,) * 2)
    monkeypatch.setattr(uploads, "MAX_BYTES", 150)
    await uploads.keep(layout, SCOPE, "d", body(b"x"))
    left = {path.name for path in (layout.disk_area / "uploads" / SCOPE).glob("[a-z]")}
    assert left == {"c", "d"}, "an old one is gone, and the least recently used of what is too much"


@pytest.mark.parametrize(
    ("scope", "name"), [("..", "a"), (SCOPE, ".."), (SCOPE, "a/b"), (SCOPE, "a.json"), (SCOPE, "")]
)
async def test_no_name_leads_elsewhere(layout: Layout, scope: str, name: str) -> None:
    with pytest.raises(NotFound):
        uploads.find(layout, scope, name)
    with pytest.raises(NotFound):
        await uploads.keep(layout, scope, name, body(b"x"))


async def test_what_a_killed_worker_left_is_swept(layout: Layout, kept: Layers) -> None:
    left = layout.disk_area / f"{layers.HALF_MADE}x"
    left.mkdir()
    (left / "disk").write_bytes(b"x")
    await asyncio.to_thread(layers.remove_half_made, layout)
    assert not left.exists()
