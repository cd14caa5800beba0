"""The initramfs format: what GNU cpio reads back, and equal bytes from equal entries."""

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.image import cpio, initramfs

_NAMES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="/"), min_size=1, max_size=40)


def _listed(archive: bytes, *options: str) -> list[str]:
    if shutil.which("cpio") is None:
        pytest.skip("cpio is not installed")
    done = subprocess.run(["cpio", "--quiet", *options], input=archive, capture_output=True, check=True)
    return done.stdout.decode().splitlines()


def test_cpio_lists_what_an_initramfs_holds() -> None:
    archive = initramfs.contents(b"\x7fELF", [("virtio.ko", b"one"), ("virtio_blk.ko", b"three")])
    assert _listed(archive, "-t") == [
        "dev", "dev/console", "modules", "modules/virtio.ko", "modules/virtio_blk.ko", "modules/order", "init",
    ]  # fmt: skip
    lines = {line.split()[-1]: line for line in _listed(archive, "-tvn")}
    assert lines["init"].startswith("-rwxr-xr-x   1 0        0               4 ")
    assert lines["dev/console"].startswith("crw-------   1 0        0          5,   1 ")


def test_order_names_the_modules_as_they_are_to_be_loaded() -> None:
    archive = initramfs.contents(b"", [("z.ko", b""), ("a.ko", b"")])
    assert b"z.ko\na.ko\n" in archive


def test_equal_entries_give_equal_bytes() -> None:
    entries = [cpio.folder("d"), cpio.file("d/f", b"content", 0o640)]
    assert cpio.archive(entries) == cpio.archive(entries)


@given(st.dictionaries(_NAMES, st.binary(max_size=64), max_size=8))
def test_every_part_is_aligned_and_found_again(files: dict[str, bytes]) -> None:
    archive = cpio.archive(cpio.file(name, content) for name, content in files.items())
    found, at = {}, 0
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        size, name_size = fields[6], fields[11]
        name = archive[at + 110 : at + 110 + name_size - 1].decode()
        body = (at + 110 + name_size + 3) // 4 * 4
        at = (body + size + 3) // 4 * 4
        if name == "TRAILER!!!":
            break
        found[name] = archive[body : body + size]
    assert at == len(archive)
    assert found == files


@pytest.mark.parametrize("name", ["", "/etc/passwd", "a\0b", "ä"])
def test_a_name_that_the_kernel_would_put_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        cpio.archive([cpio.file(name, b"")])
