"""A running QEMU: what it tells on its control socket, and how it ends.

There is no task here. The event loop calls in when QMP or the process has something to say, and callers wait for the
status that results.
"""

import asyncio
import base64
import binascii
import contextlib
import functools
import os
import re
import signal
import socket
from pathlib import Path

from space.host import cgroup
from space.host.patience import within
from space.host.process import ProcessRef
from space.vmm.driver import VmExit, VmmError, VmStatus
from space.vmm.launch import Launched, Log, printable
from space.vmm.qemu_command import CONSOLE, CONSOLE_BYTES
from space.vmm.qmp import Json, Qmp, child

STATE_S = 60.0
"""Deadline for writing or loading a device state; it takes milliseconds on a disk that is not busy."""

_WRAPPER_S = 2.0
_PING_S = 5.0
_FINALISE_POLL_S = 0.001
_RUN_STATES = {
    "running": VmStatus.RUNNING,
    "io-error": VmStatus.DISK_ERROR,
    "shutdown": VmStatus.PAUSED,
}
"""QEMU's run states; every other one is a kind of stopped."""
_GUEST_ENDED = {
    "guest-reset": "the guest powered off or reset itself",
    "guest-shutdown": "the guest powered off or reset itself",
    "guest-panic": "the guest's kernel panicked",
}
_PANIC = re.compile(r"Kernel panic - not syncing: ([^\n]+)")


class QemuVm:
    """Implements `driver.Vm`; `control` is a connection to QEMU's control socket. All of it is this object's now."""

    def __init__(self, launched: Launched, control: socket.socket, log: Log, *, instance: str, sandbox: str) -> None:
        self._vmm, self._wrapper, self._log = launched.vmm, launched.wrapper, log
        self._instance, self._sandbox = instance, sandbox
        self._status = VmStatus.PAUSED
        self._waiters: set[asyncio.Future[None]] = set()
        self._stop_cause: VmStatus | None = None
        self._shutdown: str | None = None
        self._migrated: asyncio.Future[str] | None = None
        self._console = ""
        self._exit: VmExit | None = None
        limit = functools.partial(within, pid=self._vmm.ref.pid)
        self._qmp = Qmp(control, self._on_event, self._on_lost, limit)

    async def greet(self) -> None:
        """Open the conversation and learn the present status. Raises VmmError."""
        await self._qmp.negotiate()
        await self._learn()

    @property
    def ref(self) -> ProcessRef:
        """See `driver.Vm`."""
        return self._vmm.ref

    @property
    def alive(self) -> bool:
        """See `driver.Vm`."""
        return self._vmm.alive

    @property
    def status(self) -> VmStatus:
        """See `driver.Vm`."""
        return self._status

    async def next_status(self, known: VmStatus) -> VmStatus:
        """See `driver.Vm`."""
        while self._status is known:
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(change)
            try:
                await change
            finally:
                self._waiters.discard(change)
        return self._status

    async def ping(self) -> None:
        """See `driver.Vm`."""
        await self._qmp.execute("query-status", timeout_s=_PING_S)

    async def pause(self) -> None:
        """See `driver.Vm`."""
        await self._qmp.execute("stop")

    async def resume(self) -> None:
        """See `driver.Vm`."""
        await self._qmp.execute("cont")

    async def save(self, state: Path) -> None:
        """See `driver.Vm`."""
        state.unlink(missing_ok=True)
        if await self._run_state() == "postmigrate":
            # one that has stood still since it was saved refuses to be saved again before it has run
            await self.resume()
            await self.pause()
        fd = os.open(state, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            await self._migrate("migrate", fd)
            await self._until_finalised()
        except BaseException:
            state.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    async def _until_finalised(self) -> None:
        """Wait out the moment between the news that all is written and the state in which QEMU can go on.

        Until then `cont` is refused ("Migration is not finalized yet"), seen in one fork of some dozens.
        """
        try:
            async with within(STATE_S, self._vmm.ref.pid):
                while await self._run_state() == "finish-migrate":
                    await asyncio.sleep(_FINALISE_POLL_S)
        except TimeoutError as error:
            raise VmmError("QEMU did not come to an end of writing its state") from error

    async def load(self, state: Path) -> None:
        """Take in a device state, in a QEMU that waits for one; the guest stays paused. Raises VmmError."""
        fd = os.open(state, os.O_RDONLY | os.O_CLOEXEC)
        try:
            await self._migrate("migrate-incoming", fd)
        finally:
            os.close(fd)
        await self._learn()

    async def kill(self) -> None:
        """See `driver.Vm`."""
        self._vmm.send(signal.SIGKILL)
        await self._vmm.wait()
        await self.wait()

    async def wait(self) -> VmExit:
        """See `driver.Vm`."""
        await self._vmm.wait()
        status: int | None = None
        if self._wrapper is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WRAPPER_S):
                    status = _own_status(await self._wrapper.wait())
        if self._exit is None:
            self._exit = VmExit(status, self._reason(status))
            self._qmp.close()
            self._log.close()
        await cgroup.remove(self._instance, self._sandbox)
        return self._exit

    async def console(self) -> str:
        """See `driver.Vm`."""
        if self._qmp.open:
            with contextlib.suppress(VmmError):
                self._keep_console(await self._qmp.execute("ringbuf-read", _READ_CONSOLE))
        return self._console

    def release(self) -> None:
        """See `driver.Vm`."""
        self._qmp.close()
        self._log.close()
        self._vmm.release()
        if self._wrapper is not None:
            self._wrapper.release()

    async def _run_state(self) -> str:
        return str(child({"": await self._qmp.execute("query-status")}, "").get("status"))

    async def _learn(self) -> None:
        state = await self._run_state()
        status = _RUN_STATES.get(state, VmStatus.PAUSED)
        if status is VmStatus.DISK_ERROR and await self._disk_is_full():
            status = VmStatus.DISK_FULL
        if state == "shutdown":  # ended while nobody listened
            self._on_shutdown("guest-shutdown")
        self._change(status)

    async def _disk_is_full(self) -> bool:
        devices = await self._qmp.execute("query-block")
        return isinstance(devices, list) and any(
            isinstance(device, dict) and device.get("io-status") == "nospace" for device in devices
        )

    async def _migrate(self, command: str, fd: int) -> None:
        """Move the device state through `fd`. Memory is not part of it: QEMU maps it shared, and so ignores it."""
        capabilities = [{"capability": name, "state": True} for name in ("x-ignore-shared", "events")]
        await self._qmp.execute("migrate-set-capabilities", {"capabilities": capabilities})
        await self._qmp.execute("getfd", {"fdname": "state"}, fds=(fd,))
        ended = self._migrated = asyncio.get_running_loop().create_future()
        try:
            await self._qmp.execute(command, {"uri": "fd:state"})
            async with within(STATE_S, self._vmm.ref.pid):
                result = await ended
        except TimeoutError:
            raise VmmError(f"the device state was not through after {STATE_S:g} s") from None
        finally:
            self._migrated = None
        if result != "completed":
            raise VmmError(f"QEMU could not move the device state: {result}")

    def _on_event(self, name: str, data: Json) -> None:
        if name == "STOP":
            self._change(self._stop_cause or VmStatus.PAUSED)
            self._stop_cause = None
        elif name == "RESUME":
            self._stop_cause = None
            self._change(VmStatus.RUNNING)
        elif name == "BLOCK_IO_ERROR" and data.get("action") == "stop":
            self._stop_cause = VmStatus.DISK_FULL if data.get("nospace") is True else VmStatus.DISK_ERROR
        elif name == "SHUTDOWN":
            self._on_shutdown(str(data.get("reason")))
        elif name == "MIGRATION" and self._migrated is not None and not self._migrated.done():
            result = str(data.get("status"))
            if result in {"completed", "failed"}:
                self._migrated.set_result(result)

    def _on_shutdown(self, reason: str) -> None:
        """Take the last of the console, then end QEMU; it answers in this order."""
        if self._shutdown is None:
            self._shutdown = reason
            self._qmp.send("ringbuf-read", _READ_CONSOLE).add_done_callback(self._on_last_console)
            self._qmp.send("quit").add_done_callback(_seen)

    def _on_last_console(self, answer: asyncio.Future[object]) -> None:
        if _seen(answer):
            self._keep_console(answer.result())

    def _on_lost(self) -> None:
        if self._migrated is not None and not self._migrated.done():
            self._migrated.set_result("the connection to QEMU was lost")
        self._change(VmStatus.GONE)

    def _keep_console(self, data: object) -> None:
        with contextlib.suppress(binascii.Error, ValueError):
            text = base64.b64decode(str(data)).decode(errors="replace")
            self._console = (self._console + printable(text))[-CONSOLE_BYTES:]

    def _change(self, status: VmStatus) -> None:
        if self._status is not status and self._status is not VmStatus.GONE:
            self._status = status
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _reason(self, status: int | None) -> str:
        if self._shutdown in _GUEST_ENDED:
            panic = _PANIC.search(self._console)  # a panic resets the machine; the guest's own word for it must do
            return f"the guest's kernel panicked: {panic.group(1)[:200]}" if panic else _GUEST_ENDED[self._shutdown]
        if cgroup.ran_out_of_memory(self._instance, self._sandbox):
            return "the VMM was killed: it used more than its limit of the host's memory"
        said = self._log.tail()
        if status is None:
            return f"the VMM ended; how is not known, since the worker had been restarted{': ' + said if said else ''}"
        if status < 0:
            # what a killed VMM printed does not matter; one that broke down may have said why
            cause = f": {said}" if said and status != -signal.SIGKILL else ""
            return f"the VMM was killed by {signal.Signals(-status).name}{cause}"
        return f"the VMM exited with {status}: {said or 'it printed nothing'}"


_READ_CONSOLE: Json = {"device": CONSOLE, "size": CONSOLE_BYTES, "format": "base64"}


def _own_status(wrapper: int | None) -> int | None:
    """Return the VMM's status from its wrapper's: like a shell, bwrap turns signal N into 128 + N."""
    if wrapper is not None and wrapper > 128:
        return 128 - wrapper
    return wrapper


def _seen(answer: asyncio.Future[object]) -> bool:
    """Tell whether a command went well; asking is what keeps asyncio from reporting an error nobody waits for."""
    return not answer.cancelled() and answer.exception() is None
