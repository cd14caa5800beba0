"""The image of a root filesystem: made from a tar without mounting anything, and checked by its superblock.

Only images that we made ourselves are read here, never one that a guest has written.
Layout of a superblock: the kernel's Documentation/filesystems/ext4/super.rst.
"""

import asyncio
import dataclasses
import struct
import tempfile
import uuid
from pathlib import Path

from space.image.rootfs import Tarball, sha256
from space.image.work import Log, stream
from space.model.errors import BuildFailed

_JOURNAL_MIB = 64
_FEATURES = (
    "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,"
    "dir_nlink,extra_isize,metadata_csum"
)
"""All that the guest's kernel (5.10 or later) knows, spelt out: the host's /etc/mke2fs.conf may differ."""

_TOOL_TIMEOUT_S = 300
_OFFSET = 1024
_MAGIC = 0xEF53
_HAS_JOURNAL = 0x4
_STATE_CLEAN = 0x1


async def make_image(tar: Tarball, work: Path, image: Path, *, disk_mib: int, seed: uuid.UUID, log: Log) -> None:
    """Write `image`: ext4 with a journal, `disk_mib` large, sparse, holding what is in `tar`.

    `seed` becomes the file system's UUID and the hash seed of its folders. Inode tables and journal count as zeroed,
    which they are in a new sparse file: a guest would otherwise spend its first minutes writing zeros into its clone.
    Raises CommandError, OSError or BuildFailed.
    """
    if await asyncio.to_thread(sha256, tar.path) != tar.digest:
        tar.path.unlink()
        raise BuildFailed("The cached root filesystem was damaged and is deleted now; build again.")
    with tempfile.TemporaryDirectory(dir=work, prefix="tree-") as tree:
        await stream(
            log,
            "tar", "--extract", f"--file={tar.path}", f"--directory={tree}", "--numeric-owner",
            "--preserve-permissions", "--xattrs", "--xattrs-include=*",
            timeout_s=_TOOL_TIMEOUT_S,
        )  # fmt: skip
        await stream(log, *make_argv(tree, str(image), disk_mib=disk_mib, seed=seed), timeout_s=_TOOL_TIMEOUT_S)
    image.chmod(0o600)
    found = await asyncio.to_thread(read_superblock, image)
    if found != Superblock(uuid=seed, clean=True, journal=True, size_bytes=disk_mib * 1024**2):
        raise BuildFailed(f"The new image is not what was asked for ({found}); build again.")


def make_argv(tree: str, image: str, *, disk_mib: int, seed: uuid.UUID) -> tuple[str, ...]:
    """Return the command that makes `image` of a tree; see make_image."""
    return (
        "mke2fs", "-q", "-t", "ext4", "-O", _FEATURES, "-b", "4096", "-I", "256", "-m", "0",
        "-L", "space-root", "-U", str(seed), "-J", f"size={_JOURNAL_MIB}",
        "-E", f"hash_seed={seed},assume_storage_prezeroed=1,root_owner=0:0", "-d", tree, image, f"{disk_mib}M",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Superblock:
    """What it says: identity, whether it was left clean, whether it has a journal, and the whole size in bytes."""

    uuid: uuid.UUID
    clean: bool
    journal: bool
    size_bytes: int


def read_superblock(image: Path) -> Superblock:
    """Return the superblock of `image`; raises ValueError where there is none."""
    with image.open("rb") as file:
        file.seek(_OFFSET)
        block = file.read(1024)
    if len(block) < 1024 or struct.unpack_from("<H", block, 0x38)[0] != _MAGIC:
        raise ValueError(f"{image} is not an ext4 image")
    (blocks,) = struct.unpack_from("<I", block, 0x04)
    (log_block_size,) = struct.unpack_from("<I", block, 0x18)
    (state,) = struct.unpack_from("<H", block, 0x3A)
    (compat,) = struct.unpack_from("<I", block, 0x5C)
    return Superblock(
        uuid=uuid.UUID(bytes=block[0x68:0x78]),
        clean=state == _STATE_CLEAN,
        journal=bool(compat & _HAS_JOURNAL),
        size_bytes=blocks * (1024 << log_block_size),
    )
