"""What all machines of a worker share, and the two things they need of the host beyond their own slot and VM."""

import asyncio
import dataclasses
import os

import httpx2

from space.disk import rootfs
from space.guest.line import Limit
from space.host import cgroup
from space.host.counter import Counter
from space.layout import Layout
from space.model.errors import Unavailable
from space.model.ids import SandboxId
from space.net.pool import SlotPool
from space.vmm.driver import Driver
from space.worker.gateway_link import GatewayLink
from space.worker.killing import kill_uids
from space.worker.ledger import Ledger
from space.worker.records import Entry
from space.worker.trust import TrustedRoot
from space.worker.volumes import Volumes

_STARTS = max(4, 2 * len(os.sched_getaffinity(0)))
"""How many VMs are started at once; the others wait their turn. Each keeps a core busy, and when many share one all are
slow together, until all are given up: seen with a hundred creates at once on two busy cores."""

_PROBE_S = 10.0
_PROBE_ATTEMPT_S = 2.0
"""Twice as long after each that had no answer: a guest on a host that is overrun takes longer than any fixed time."""
_PROBE_POLL_S = 0.02
_REHEARSAL_S = 30
_REHEARSED: tuple[dict[str, object], ...] = ({"args": ["true"]}, {"cmd": "true"}, {"args": ["echo"]}, {"cmd": "echo"})


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """The parts. `ingress` speaks HTTP to the ingress proxy's socket; `boot_deadline_s` depends on the accelerator."""

    layout: Layout
    driver: Driver
    pool: SlotPool
    link: GatewayLink
    root: TrustedRoot
    ledger: Ledger[Entry]
    uids: Counter
    ingress: httpx2.AsyncClient
    boot_deadline_s: float
    volumes: Volumes
    starts: asyncio.Semaphore = dataclasses.field(default_factory=lambda: asyncio.Semaphore(_STARTS))
    """Held while a VM is started, not while it is only let go on."""

    @property
    def vmm(self) -> str:
        """What runs guests here; a memory snapshot fits only the same."""
        return f"{self.driver.name} {self.driver.version} {self.driver.accelerator} {self.driver.cpu}"

    async def probe(self, sandbox: SandboxId, limit: Limit) -> None:
        """Return when the agent answered through the data path, as a client's request would go.

        Raises Unavailable after 10 s of the guest's `limit`: it runs, but the proxy or the gateway of this host does
        not carry.
        """
        last, named, attempt_s = "no answer", {"x-space-sandbox": sandbox}, _PROBE_ATTEMPT_S
        try:
            async with limit(_PROBE_S):
                while True:
                    try:
                        # the status alone counts: a body is the guest's, and might not end
                        async with self.ingress.stream("GET", "/v1/health", headers=named, timeout=attempt_s) as answer:
                            if answer.status_code == httpx2.codes.OK:
                                return
                            last = f"status {answer.status_code}"
                    except httpx2.TransportError as error:
                        last = str(error) or repr(error)
                        if isinstance(error, httpx2.TimeoutException):
                            attempt_s *= 2
                    await asyncio.sleep(_PROBE_POLL_S)
        except TimeoutError:
            raise Unavailable(f"The ingress proxy of this host does not carry ({last}); see `space doctor`.") from None

    async def rehearse(self, vm: SandboxId, token: str) -> None:
        """Do what a client does first, so that emulator and proxies have done it before; leaves no trace in the guest.

        Only for a guest that runs nobody's code yet. Raises Unavailable.
        """
        named = {"x-space-sandbox": vm, "x-access-token": token}
        try:
            for command in _REHEARSED:
                answer = await self.ingress.post("/v1/commands", json=command, headers=named, timeout=_REHEARSAL_S)
                ident = answer.headers.get("x-command-id", "")
                await self.ingress.delete(f"/v1/commands/{ident}", headers=named, timeout=_REHEARSAL_S)
        except httpx2.TransportError as error:
            raise Unavailable("A command that was to warm a spare did not come back.") from error

    async def remove_remains(self, vm: SandboxId, uid_number: int) -> None:
        """Remove what a VM leaves outside its slot: processes of its uid, cgroup, files. Idempotent."""
        await kill_uids(range(self.layout.vm_uid(uid_number), self.layout.vm_uid(uid_number) + 1))
        await cgroup.remove(self.layout.instance, vm)
        await rootfs.remove_vm_files(self.layout, vm)
