"""`space down`: ends every VM of the instance and gives back all that its worker made, whatever state it is in.

What lies in storage stays: suspended sandboxes wake under the next `space up`.
"""

from space.disk import area
from space.layout import Layout
from space.net import gateway_ns
from space.telemetry import logger
from space.worker.janitor import sweep
from space.worker.ledger import Ledger
from space.worker.records import Entry, Spare
from space.worker.volumes import end_servers

log = logger()


async def down(layout: Layout) -> None:
    """End all; idempotent. No worker of the instance may be running."""
    await end_servers(layout)
    await sweep(layout, [], keep_frozen=None)
    await gateway_ns.remove(layout)
    ledger = Ledger(layout.ledger_dir, Entry)
    ledger.open()
    for entry in ledger.read():
        if entry.state != "suspended":
            ledger.remove(entry.sandbox)
    spares = Ledger(layout.spares_dir, Spare)
    spares.open()
    for spare in spares.read():
        spares.remove(spare.vm.vm)
    await area.release(layout)
    log.info("host_given_back")
