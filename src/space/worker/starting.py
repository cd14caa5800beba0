"""The ways a sandbox gets its first VM, the quickest first: a spare, a clone of the frozen template, a boot."""

from pathlib import Path

from space.disk.frozen import Frozen
from space.guest import agent
from space.guest.agent import AgentError, AgentSilent
from space.host.tasks import together
from space.image.catalog import TemplateFiles
from space.model.errors import BootFailed, SnapshotUnfit
from space.telemetry import logger
from space.worker.guest_vm import Died, Identity
from space.worker.holding import Holding
from space.worker.shelf import READY_S

log = logger()
_ATTEMPTS = 2


async def start_vm(h: Holding, identity: Identity, template: TemplateFiles, source: Frozen | None) -> str:
    """Start a VM the quickest way there is; returns which: `spare`, `clone`, `boot`, or `fork` from a source."""
    e = h.entry
    if source is None and (spare := await h.stock.spares.claim(e.template, e.vcpus, e.memory_mib)) is not None:
        guest, wake = spare
        h.take_guest(guest)
        try:
            # its path was seen to carry when it was made
            await together(wake(identity), h.admit())
        except Died as error:
            log.warning("spare_unusable", sandbox=h.sandbox, cause=str(error))
            await h.drop_guest()
        else:
            return "spare"
    snapshot = source or h.stock.shelf.find(e.template, e.vcpus, e.memory_mib)
    if snapshot is not None:
        try:
            await _clone(h, identity, template, snapshot)
        except Died as error:
            log.warning("clone_failed", sandbox=h.sandbox, cause=str(error), console=error.console)
            await h.drop_guest()
            if source is not None or h.stock.shelf.keeps_state(e.template):
                raise BootFailed("The copy did not come up; the worker's log says why.") from error
        else:
            return "fork" if source else "clone"
    elif h.stock.shelf.keeps_state(e.template):
        raise SnapshotUnfit(
            "The snapshot's memory cannot be taken up here: it is of another size, another VMM, or missing."
        )
    await boot(h, identity, template, template.rootfs)
    await _until_ready(h)
    h.stock.shelf.wanted(e.template, e.vcpus, e.memory_mib)
    return "boot"


async def _until_ready(h: Holding) -> None:
    """Wait for the template's own check, which its clones have behind them."""
    assert h.guest is not None
    try:
        await h.guest.unless_dead(agent.ready(h.guest.line, READY_S))
    except (AgentError, AgentSilent, Died) as error:
        raise BootFailed(f"The template did not become ready: {error}") from error


async def _clone(h: Holding, identity: Identity, template: TemplateFiles, snapshot: Frozen) -> None:
    async with h.host.starts:
        guest = h.new_guest()
        await guest.start(template, snapshot)
        await guest.initialise(identity, "fork")


async def boot(h: Holding, identity: Identity, template: TemplateFiles, disk: Path) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            async with h.host.starts:
                await h.new_guest().boot(template, disk, identity)
            return
        except Died as error:
            log.warning("boot_failed", sandbox=h.sandbox, attempt=attempt, cause=str(error), console=error.console)
            await h.drop_guest()
            if attempt == _ATTEMPTS:
                end = f" The end of its console: {error.console[-1000:]}" if error.console else ""
                raise BootFailed(f"The VM did not come up, twice; the worker's log says why.{end}") from error
