"""Ending processes by the user ids that only they have."""

import signal

from space.host.process import uid_processes, watch


async def kill_uids(uids: range) -> int:
    """Kill every process whose real uid is in `uids` and wait for their end; return how many there were.

    Only VMs have these uids: they come from the instance's own range.
    """
    count = 0
    for ref in uid_processes(uids):
        watched = watch(ref)
        if watched is not None:
            count += 1
            watched.send(signal.SIGKILL)
            await watched.wait()
    return count
