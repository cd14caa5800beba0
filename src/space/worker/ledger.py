"""What this host must not forget of a sandbox: one JSON file each, replaced atomically before and after each step.

The ledger is what a new worker process reads after the old one was killed. It names everything that a half-done step
may have left (slot, uid, process), so that the step can be finished or undone. It holds no secret: environment and
token of a sandbox are in its guest only.
"""

import dataclasses
import datetime as dt
from pathlib import Path

import pydantic

from space.host.files import write_atomic
from space.host.process import ProcessRef
from space.model.ids import SandboxId, is_id
from space.telemetry import logger
from space.wire.worker import VmState

log = logger()


class Entry(pydantic.BaseModel):
    """One sandbox on this host.

    `boot_id` is the host's boot under which `pid` and `slot` exist: under another they are void. `pid` and `start_time`
    are of the VMM itself. `slot` is the slot's number, `uid_number` the running number its uid is computed from.
    """

    model_config = pydantic.ConfigDict(frozen=True)

    sandbox: str
    epoch: int
    state: VmState
    reason: str | None = None
    template: str
    vcpus: int
    memory_mib: int
    uid_number: int
    boot_id: str
    slot: int | None = None
    pid: int | None = None
    start_time: int | None = None
    timings_ms: dict[str, float] = {}
    created_at: dt.datetime

    @property
    def vmm(self) -> ProcessRef | None:
        """The VMM's process, where one was started."""
        if self.pid is None or self.start_time is None:
            return None
        return ProcessRef(self.pid, self.start_time)


@dataclasses.dataclass(frozen=True, slots=True)
class Ledger:
    """The folder of entries, and the counter of VM uids beside it."""

    folder: Path

    def open(self) -> None:
        """Make the folder where it is missing; root's alone."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def read(self) -> list[Entry]:
        """Return all entries. One that cannot be read is set aside under `.damaged` and logged, never dropped."""
        found: list[Entry] = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                found.append(Entry.model_validate_json(path.read_bytes()))
            except pydantic.ValidationError:
                path.rename(path.with_suffix(".damaged"))
                log.exception("ledger_entry_damaged", file=path.name)
        return found

    def write(self, entry: Entry) -> None:
        """Replace an entry; durable when it returns (blocks for one fsync)."""
        write_atomic(self._path(SandboxId(entry.sandbox)), entry.model_dump_json())

    def remove(self, sandbox: SandboxId) -> None:
        """Forget a sandbox; fine when it is not there."""
        self._path(sandbox).unlink(missing_ok=True)

    def next_uid_number(self) -> int:
        """Return the next running number for a VM's uid; durable before it is used, so none is used twice."""
        path = self.folder.parent / "next-uid"
        number = int(path.read_text()) if path.exists() else 0
        write_atomic(path, str(number + 1))
        return number

    def _path(self, sandbox: SandboxId) -> Path:
        if not is_id(sandbox):
            raise ValueError(f"{sandbox!r} is not a sandbox id")
        return self.folder / f"{sandbox}.json"
