"""Stopping a sandbox's user code and vCPUs for a while, and letting them go on."""

import base64
import secrets
import time

from space.guest import agent
from space.guest.agent import AgentError, AgentSilent
from space.host.tasks import together
from space.model.errors import SpaceError, Unavailable
from space.telemetry import logger
from space.vmm.driver import VmmError
from space.wire.agent import FreezeReason, FreezeWish, ThawWish
from space.worker.guest_vm import Died, GuestVm
from space.worker.holding import Holding

log = logger()
AGENT_S = 5.0


async def pause(h: Holding) -> None:
    """Stop user code and vCPUs; pausing twice is one pause. Raises Conflict, Unavailable, Died."""
    if h.paused:
        return
    await stop(h, h.running_guest("pause"))
    h.write(state="paused", reason=None)


async def stop(h: Holding, guest: GuestVm) -> None:
    """Stop user code and vCPUs, the latter also where the agent does not stop user code. Raises Unavailable, Died.

    A pause needs nobody's consent in there. But a guest that goes on after that may read the old time, for as long as
    its agent takes to set it.
    """
    try:
        await freeze(h, guest, FreezeWish(reason="pause", hook_timeout_s=0))
    except Unavailable:
        log.warning("paused_without_its_agent", sandbox=h.sandbox)
        try:
            await guest.vm.pause()
        except VmmError as error:
            raise Unavailable("Its VMM does not stop it; it goes on. Try again.") from error
    else:
        await stop_vcpus(guest)


async def resume(h: Holding) -> None:
    """Let a paused sandbox go on; a running one is running. Raises Conflict, Died."""
    if h.entry.state == "running":
        return
    if h.entry.state != "paused" or h.entry.reason is not None or h.guest is None:
        raise h.not_now("resume")
    await go_on(h, h.guest, "pause")
    await mount_again(h, h.guest)
    h.write(state="running", reason=None)


async def acquaint(h: Holding, guest: GuestVm) -> None:
    """Take up the way of orders to a guest that runs, as a resume does; nothing happens to its user code.

    The first order to a VM that was started a moment ago takes twice as long as the next: connecting, pages to fault
    in, code to translate. And the clock is told once more. Raises Died.
    """
    if h.entry.state == "running" and h.guest is guest:
        await thaw(h, guest, "pause")


async def mount_again(h: Holding, guest: GuestVm) -> None:
    """Connect the volumes of a guest that a former worker, or nobody lately, looked after; logged where it fails.

    Its requests wait until it is connected; the servers are looked after from then on.
    """
    if not h.entry.volumes or h.host.volumes.has(guest.record.vm):
        return
    try:
        await guest.unless_dead(h.host.volumes.mount(guest.record.vm, guest.line, h.entry.volumes))
    except (AgentError, AgentSilent, SpaceError, OSError) as error:
        log.warning("volumes_not_mounted_again", sandbox=h.sandbox, error=str(error))


async def freeze(h: Holding, guest: GuestVm, wish: FreezeWish, *, resting: bool = False) -> None:
    """Stop user code; when it cannot be, everything is as before and Unavailable is raised. Raises Died.

    `resting`: it was stopped before, by a pause, and is not let go on then either.
    """
    try:
        await guest.unless_dead(agent.freeze(guest.line, wish, wish.hook_timeout_s + AGENT_S))
    except (AgentError, AgentSilent) as error:
        if not resting:
            await thaw(h, guest, wish.reason)
        raise Unavailable(
            f"The guest could not be brought to a stop for its {wish.reason}; it goes on. Try again."
        ) from error


async def thaw(h: Holding, guest: GuestVm, reason: FreezeReason) -> None:
    """Let user code run again, at the right time. An agent that does not answer is logged: its own limit ends it."""
    wish = ThawWish(
        reason=reason,
        time_unix_ns=time.time_ns(),
        entropy=base64.b64encode(secrets.token_bytes(64)).decode(),
    )
    try:
        await guest.unless_dead(agent.thaw(guest.line, wish, AGENT_S))
    except (AgentError, AgentSilent) as error:
        log.warning("thaw_failed", sandbox=h.sandbox, cause=str(error))


async def stop_vcpus(guest: GuestVm) -> None:
    """Stop the vCPUs. Raises Died."""
    try:
        await guest.vm.pause()
    except VmmError as error:
        raise Died(f"its VMM did not stop it: {error}") from error


async def run_vcpus(guest: GuestVm) -> None:
    """Let the vCPUs run. Raises Died."""
    try:
        await guest.vm.resume()
    except VmmError as error:
        raise Died(f"its VMM did not continue it: {error}") from error


async def go_on(h: Holding, guest: GuestVm, reason: FreezeReason) -> None:
    """Let vCPUs and then user code run again. Raises Died.

    The agent is told at once: what is sent to a VM that stands still is there when it runs.
    """
    await together(run_vcpus(guest), thaw(h, guest, reason))
