"""What the ledgers hold: a VM of this host, the sandbox it belongs to, a spare that waits for one."""

import datetime as dt
from typing import Annotated

import pydantic

from space.host.process import ProcessRef, boot_id
from space.layout import UID_RANGE_SIZE
from space.model.ids import is_id
from space.net.addresses import LAST_NUMBER
from space.wire.agent import AgentVolume
from space.wire.gateway import EgressOrder, SlotEntry
from space.wire.worker import VmState


def _ident(value: str) -> str:
    if not is_id(value):
        raise ValueError("is not an id of ours")
    return value


Ident = Annotated[str, pydantic.AfterValidator(_ident)]
"""It becomes part of paths."""


class VmRecord(pydantic.BaseModel):
    """What a VM holds on this host. `vm` names its files and cgroup; `pid` and `start_time` are of the VMM itself.

    `boot_id` is the host's boot under which process and slot exist: under another they are void.
    """

    model_config = pydantic.ConfigDict(frozen=True)

    vm: Ident
    uid_number: int = pydantic.Field(ge=0, lt=UID_RANGE_SIZE)
    boot_id: str
    vcpus: int = pydantic.Field(ge=1)
    memory_mib: int = pydantic.Field(ge=1)
    slot: int | None = pydantic.Field(default=None, ge=1, le=LAST_NUMBER)
    pid: int | None = pydantic.Field(default=None, ge=1)
    start_time: int | None = None

    @property
    def vmm(self) -> ProcessRef | None:
        """The VMM's process, where one was started."""
        if self.pid is None or self.start_time is None:
            return None
        return ProcessRef(self.pid, self.start_time)

    def on_this_boot(self) -> "VmRecord":
        """Return the record without what another boot of the host took with it."""
        if self.boot_id == boot_id():
            return self
        return self.model_copy(update={"slot": None, "pid": None, "start_time": None})


class Entry(pydantic.BaseModel):
    """One sandbox on this host.

    `vm` is None while it has none (suspended, failed) and nothing of one is left. `generation` counts its committed
    suspensions: the last one lies in storage under that number, and is `durable` once it would survive a loss of power.
    `names` are the synthetic addresses that its guest, or the one it is a copy of, was ever given: address to name. A
    guest remembers them, so none gets a second name.
    """

    model_config = pydantic.ConfigDict(frozen=True)

    sandbox: Ident
    epoch: int
    state: VmState
    reason: str | None = None
    template: str
    vcpus: int
    memory_mib: int
    vm: VmRecord | None = None
    generation: int = pydantic.Field(default=0, ge=0)
    durable: bool = False
    egress: EgressOrder | None = None
    names: dict[str, str] = {}
    volumes: list[AgentVolume] = []
    timings_ms: dict[str, float] = {}
    created_at: dt.datetime

    def at(self, address: str) -> SlotEntry:
        """Return what the gateway is told of it when it is reached at this address."""
        told = {"address": address, "egress": self.egress, "names": self.names}
        return SlotEntry.model_validate(told)


class Spare(pydantic.BaseModel):
    """A clone that waits for a sandbox: of which template, its VM, and whether it is finished."""

    model_config = pydantic.ConfigDict(frozen=True)

    template: str
    vm: VmRecord
    ready: bool = False


class VolumeRecord(pydantic.BaseModel):
    """A volume on this host: how much it may hold, and the user id of its server and of its files, by its offset."""

    model_config = pydantic.ConfigDict(frozen=True)

    volume: Ident
    uid_number: int = pydantic.Field(ge=0, lt=UID_RANGE_SIZE)
    limit_bytes: int = pydantic.Field(ge=1)
