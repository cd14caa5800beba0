"""Write a cpio archive in the kernel's initramfs format (newc), as a pure function of its entries.

Format: the kernel's Documentation/driver-api/early-userspace/buffer-format.rst. Everything is root's and dated 0, so
equal entries give equal bytes.
"""

import dataclasses
import stat
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One name in the archive. `mode` includes the file type; `device` is (major, minor) of a device node."""

    name: str
    mode: int
    content: bytes = b""
    device: tuple[int, int] = (0, 0)


def folder(name: str, permissions: int = 0o755) -> Entry:
    """Return a folder's entry."""
    return Entry(name, stat.S_IFDIR | permissions)


def file(name: str, content: bytes, permissions: int = 0o644) -> Entry:
    """Return a plain file's entry."""
    return Entry(name, stat.S_IFREG | permissions, content)


def character_device(name: str, major: int, minor: int) -> Entry:
    """Return a device node's entry, readable and writable for root."""
    return Entry(name, stat.S_IFCHR | 0o600, device=(major, minor))


def archive(entries: Iterable[Entry]) -> bytes:
    """Return the archive of `entries` in their order; a folder must come before what is in it.

    Raises ValueError for a name that is empty, absolute, not ASCII or has a NUL: the kernel would unpack it elsewhere
    or not at all.
    """
    out = bytearray()
    for number, entry in enumerate(entries, start=1):
        if not entry.name or entry.name.startswith("/") or "\0" in entry.name or not entry.name.isascii():
            raise ValueError(f"not a name for an initramfs: {entry.name!r}")
        _append(out, number, entry)
    _append(out, 0, Entry("TRAILER!!!", 0))
    return bytes(out)


def _append(out: bytearray, number: int, entry: Entry) -> None:
    name = entry.name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    # inode, mode, uid, gid, links, time, size, device of the file system (2), device node (2), length of name, checksum
    fields = (number, entry.mode, 0, 0, links, 0, len(entry.content), 0, 0, *entry.device, len(name), 0)
    out += b"070701" + b"".join(b"%08X" % field for field in fields) + name
    out += bytes(-len(out) % 4)
    out += entry.content
    out += bytes(-len(out) % 4)
