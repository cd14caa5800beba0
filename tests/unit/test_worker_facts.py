"""worker.facts: every watcher learns all that is and every change; a slow one is cut off, never waited for."""

import contextlib

from space.wire.worker import GoneFact, SandboxFact, SyncedFact
from space.worker.facts import FactHub


def _hub(*facts: SandboxFact) -> FactHub:
    return FactHub("boot", lambda: list(facts), lambda: 512)


async def test_a_watcher_is_told_all_then_synced_then_changes() -> None:
    present = SandboxFact(id="a" * 20, state="running", epoch=1)
    hub = _hub(present)
    async with contextlib.aclosing(hub.watch()) as facts:
        assert await anext(facts) == present
        assert await anext(facts) == SyncedFact(boot_id="boot")
        gone = GoneFact(id="a" * 20)
        hub.publish(gone)
        assert await anext(facts) == gone


async def test_a_change_during_the_listing_is_not_missed() -> None:
    hub = _hub(SandboxFact(id="a" * 20, state="creating", epoch=1))
    async with contextlib.aclosing(hub.watch()) as facts:
        await anext(facts)
        changed = SandboxFact(id="a" * 20, state="running", epoch=1)
        hub.publish(changed)
        assert isinstance(await anext(facts), SyncedFact)
        assert await anext(facts) == changed


async def test_a_watcher_that_does_not_read_is_cut_off() -> None:
    hub = _hub()
    async with contextlib.aclosing(hub.watch()) as facts:
        await anext(facts)
        for number in range(5000):
            hub.publish(GoneFact(id=f"{number:020d}"))
        received = [fact async for fact in facts]
    assert len(received) < 5000
    hub.publish(GoneFact(id="b" * 20))  # nobody watches any more; nothing happens


async def test_heartbeats_tell_the_free_memory_while_nothing_happens() -> None:
    async with contextlib.aclosing(_hub().watch()) as facts:
        await anext(facts)
        beat = await anext(facts)
    assert beat.type == "heartbeat"
    assert beat.memory_free_mib == 512
