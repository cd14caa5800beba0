"""The identity of an instance: made with its data folder, kept in it, and claimed on the host while it is used.

`DATA/instance.json` holds the 4-character id and the first user id of its range. A claim under /run/space keeps two
data folders from using the same id or range; `DATA/lock` keeps two `space up` from using one data folder.
"""

import contextlib
import fcntl
import os
import secrets
import string
from collections.abc import Generator
from pathlib import Path

import pydantic

from space.host.files import make_dir, write_atomic
from space.layout import RUN_ROOT, UID_RANGE_FIRST, UID_RANGE_SIZE, Layout
from space.model.errors import Conflict, InvalidArgument

_RANGES = 4096
"""Ranges of user ids to choose from; the last ends below 2^31, which some tools still take for the end."""

_CLAIMS = "claims"


class Identity(pydantic.BaseModel):
    """What `instance.json` holds."""

    instance: str = pydantic.Field(pattern=r"^[a-z0-9]{4}$")
    uid_base: int = pydantic.Field(ge=UID_RANGE_FIRST, lt=UID_RANGE_FIRST + _RANGES * UID_RANGE_SIZE)


class Claim(pydantic.BaseModel):
    """Who uses an id and a range on this host since it booted."""

    data_dir: Path
    identity: Identity


def read(data_dir: Path) -> Layout | None:
    """Return the layout of the instance in `data_dir`; None where there is none yet."""
    try:
        text = (data_dir / "instance.json").read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        identity = Identity.model_validate_json(text)
    except pydantic.ValidationError as error:
        raise InvalidArgument(f"{data_dir / 'instance.json'} is damaged; restore it from a backup.") from error
    return Layout(data_dir, identity.instance, identity.uid_base)


def claim(data_dir: Path) -> Layout:
    """Return the instance of `data_dir`, made on the first call, with its id and range claimed on this host.

    Raises Conflict where another data folder has them (a folder was copied).
    """
    make_dir(RUN_ROOT, mode=0o711)
    claims = RUN_ROOT / _CLAIMS
    make_dir(claims, mode=0o700)
    with _locked(claims / "lock"):
        others = [other for other in _claims(claims) if other.data_dir != data_dir]
        layout = read(data_dir)
        if layout is None:
            identity = _unused(others)
            write_atomic(data_dir / "instance.json", identity.model_dump_json() + "\n", mode=0o644)
            layout = Layout(data_dir, identity.instance, identity.uid_base)
        identity = Identity(instance=layout.instance, uid_base=layout.uid_base)
        for other in others:
            if identity.instance == other.identity.instance or identity.uid_base == other.identity.uid_base:
                raise Conflict(
                    f"{data_dir} and {other.data_dir} have the same identity; one is a copy. "
                    f"Delete instance.json of the copy that has no sandboxes."
                )
        mine = Claim(data_dir=data_dir, identity=identity)
        write_atomic(claims / f"{identity.instance}.json", mine.model_dump_json() + "\n")
    return layout


@contextlib.contextmanager
def only_one(data_dir: Path) -> Generator[None]:
    """Hold the data folder for this process; raises Conflict, naming the pid, where another has it."""
    path = data_dir / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = path.read_text().strip() or "unknown"
            raise Conflict(
                f"SPACE already runs on {data_dir} (pid {pid}). Stop it with: space down --data {data_dir}"
            ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def holder(data_dir: Path) -> int | None:
    """Return the pid of the `space up` that holds the data folder; None where none does."""
    try:
        descriptor = os.open(data_dir / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = (data_dir / "lock").read_text().strip()
        return int(text) if text.isdigit() else None
    else:
        return None
    finally:
        os.close(descriptor)


def lost_claims() -> list[Claim]:
    """Return the claims on this host whose data folder is gone, or another instance's, and that nobody holds."""
    claims = RUN_ROOT / _CLAIMS
    return [one for one in _read_claims(claims) if not _stands(one) and holder(one.data_dir) is None]


def _claims(folder: Path) -> list[Claim]:
    """Return the claims whose data folder still says the same; one that was moved or deleted claims nothing."""
    return [claimed for claimed in _read_claims(folder) if _stands(claimed)]


def _read_claims(folder: Path) -> list[Claim]:
    return [Claim.model_validate_json(path.read_text()) for path in sorted(folder.glob("*.json"))]


def _stands(claimed: Claim) -> bool:
    there = read(claimed.data_dir)
    mine = claimed.identity
    return there is not None and (there.instance, there.uid_base) == (mine.instance, mine.uid_base)


def _unused(others: list[Claim]) -> Identity:
    """Draw an id and a range; both are random, so that folders not in use now are unlikely to collide later."""
    ids = {other.identity.instance for other in others}
    bases = {other.identity.uid_base for other in others}
    while True:
        instance = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(4))
        uid_base = UID_RANGE_FIRST + secrets.randbelow(_RANGES) * UID_RANGE_SIZE
        if instance not in ids and uid_base not in bases:
            return Identity(instance=instance, uid_base=uid_base)


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
