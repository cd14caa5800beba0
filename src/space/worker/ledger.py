"""What this host must not forget of a sandbox: one JSON file each, replaced atomically before and after each step.

The ledger is what a new worker process reads after the old one was killed. It names everything that a half-done step
may have left (the VM's record), so that the step can be finished or undone. It holds no secret: environment and token
of a sandbox are in its guest only.

A process that is killed loses nothing that was written; a host that loses power loses every VM anyway. So only what is
to outlive that, a suspended sandbox, is synced.
"""

import dataclasses
from pathlib import Path
from typing import Generic, TypeVar

import pydantic

from space.host.files import remove_cut_off, write_atomic, write_fleeting
from space.model.ids import is_id
from space.telemetry import logger

log = logger()
R = TypeVar("R", bound=pydantic.BaseModel)
DAMAGED = ".damaged"
"""What the name of a record that was set aside ends in."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ledger(Generic[R]):
    """A folder of records of one kind, each under an id of ours."""

    folder: Path
    kind: type[R]

    def open(self) -> None:
        """Make the folder where it is missing, root's alone; what a write left that was cut off by a kill goes.

        Only for the one process that writes here.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        remove_cut_off(self.folder)

    def read(self) -> list[R]:
        """Return all records. One that cannot be read is set aside under `.damaged` and logged, never dropped."""
        found: list[R] = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                found.append(self.kind.model_validate_json(path.read_bytes()))
            except (pydantic.ValidationError, OSError):
                log.exception("ledger_entry_damaged", file=path.name)
                path.rename(path.with_suffix(DAMAGED))
        return found

    def damaged(self) -> list[str]:
        """Return the ids whose records were set aside, now or earlier, and have no other since."""
        aside = (path.stem for path in self.folder.glob(f"*{DAMAGED}"))
        return sorted(ident for ident in aside if is_id(ident) and not self._path(ident).exists())

    def went_with_the_host(self, ident: str) -> bool:
        """Tell whether what was set aside is empty, as a fleeting record can be after the host went down."""
        return self._path(ident).with_suffix(DAMAGED).stat().st_size == 0

    def write(self, ident: str, record: R, *, synced: bool = False, fleeting: bool = False) -> None:
        """Replace a record; `synced` waits until it would survive a loss of power (some milliseconds).

        One that is `fleeting`, as was the one before it, is of what a loss of power ends, and is written quickly.
        """
        if fleeting and not synced:
            write_fleeting(self._path(ident), record.model_dump_json())
        else:
            write_atomic(self._path(ident), record.model_dump_json(), synced=synced)

    def remove(self, ident: str) -> None:
        """Forget a record, and one of its that was set aside; fine when it is not there."""
        path = self._path(ident)
        path.unlink(missing_ok=True)
        path.with_suffix(DAMAGED).unlink(missing_ok=True)

    def _path(self, ident: str) -> Path:
        if not is_id(ident):
            raise ValueError(f"{ident!r} is not an id")  # it becomes part of a path
        return self.folder / f"{ident}.json"
