"""`space down`: ends every VM of the instance and gives back all that its worker made, whatever state it is in."""

from space.disk import area
from space.layout import Layout
from space.model.ids import SandboxId
from space.net import gateway_ns
from space.telemetry import logger
from space.worker.janitor import sweep
from space.worker.ledger import Ledger

log = logger()


async def down(layout: Layout) -> None:
    """End all; idempotent. No worker of the instance may be running."""
    await sweep(layout, slot_numbers=set(), uids=set(), sandboxes=set())
    await gateway_ns.remove(layout)
    ledger = Ledger(layout.ledger_dir)
    ledger.open()
    for entry in ledger.read():
        ledger.remove(SandboxId(entry.sandbox))
    await area.release(layout)
    log.info("host_given_back")
