"""Orders to one guest's agent: a line each, answered by a line (agent/orders), over a connection that is kept.

For what happens in each pause and resume, where HTTP costs an emulated guest four times as much as what it asks for
(docs/decisions/0034-orders.md). Every byte that comes back is the guest's: an answer is bounded and has one form, and a
byte that nobody asked for ends the connection.
"""

import asyncio
import contextlib
import re
import socket
import urllib.parse
from pathlib import Path

from space.guest.dial import Dial, is_quiet
from space.wire.agent import FreezeWish, Frozen, HookReport, ThawWish
from space.wire.gateway import AGENT_ORDERS_PORT

_MAX_ANSWER_BYTES = 16 * 1024
"""The longest is a hook's last words, 2 KiB of which each may be written as three."""
_FROZEN = re.compile(
    rb"done frozen=(?P<frozen>[01]) took_us=(?P<took_us>[0-9]{1,12})"
    rb"(?: hook=1 status=(?P<status>-|[0-9]{1,3}) timed_out=(?P<timed_out>[01]) output=(?P<output>[!-~]*))?"
)
_THAWED = re.compile(rb"done frozen=[01]")
_REFUSED = re.compile(rb"refused ([0-9]{3}) ([a-z_]{1,40}) ([!-~]*)")
_MAX_SHOWN = 300


class Senseless(Exception):
    """What came is no answer of an agent's."""


class OrderRefused(Exception):
    """The agent answered that it will not, and why."""


class Orders:
    """The way of orders to the agent from inside `netns`. Whoever gives one puts a deadline around it."""

    def __init__(self, netns: Path) -> None:
        self._dial = Dial(netns, AGENT_ORDERS_PORT)
        self._kept: socket.socket | None = None

    def close(self) -> None:
        """End the kept connection; orders can be given again."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    async def freeze(self, wish: FreezeWish) -> Frozen:
        """Order a freeze. Where the guest's memory is to be saved, no connection is left open. Raises as `_give`."""
        order = (
            f"freeze reason={wish.reason} hook_timeout_ms={round(wish.hook_timeout_s * 1000)}"
            f" sync={wish.sync:d} fsfreeze={wish.fsfreeze:d} limit_ms={round(wish.limit_s * 1000)}\n"
        )
        said = _understood(_FROZEN, await self._give(order.encode(), keep=wish.reason == "pause"))
        hook = HookReport()
        if (status := said["status"]) is not None:
            hook = HookReport(
                ran=True,
                status=None if status == b"-" else int(status),
                timed_out=said["timed_out"] == b"1",
                output_tail=_text(said["output"]),
            )
        return Frozen(frozen=said["frozen"] == b"1", freeze_ms=int(said["took_us"]) / 1000, hook=hook)

    async def thaw(self, wish: ThawWish) -> None:
        """Order a thaw. Raises as `_give`."""
        order = f"thaw reason={wish.reason}"
        if wish.time_unix_ns:
            order += f" time_unix_ns={wish.time_unix_ns}"
        if wish.entropy:
            order += f" entropy={wish.entropy}"
        _understood(_THAWED, await self._give(f"{order}\n".encode(), keep=True))

    async def _give(self, order: bytes, *, keep: bool) -> bytes:
        """Return the line that answers an order, without its end.

        An order may arrive twice, where a kept connection broke under it. Raises NotConnected, OSError (where the agent
        is of before there were orders: ConnectionRefusedError), Senseless, OrderRefused.
        """
        kept, self._kept = self._kept, None
        if kept is not None:
            if is_quiet(kept):
                with contextlib.suppress(OSError):
                    return await self._exchange(kept, order, keep=keep)
            kept.close()
        return await self._exchange(await self._dial.connect(), order, keep=keep)

    async def _exchange(self, raw: socket.socket, order: bytes, *, keep: bool) -> bytes:
        loop = asyncio.get_running_loop()
        whole = False
        try:
            await loop.sock_sendall(raw, order)
            answer = b""
            while not (end := answer.find(b"\n") + 1):
                if len(answer) >= _MAX_ANSWER_BYTES:
                    raise Senseless("It is too long.")
                data = await loop.sock_recv(raw, _MAX_ANSWER_BYTES)
                if not data:
                    raise ConnectionResetError("the agent ended the connection")
                answer += data
            whole = end == len(answer)
            return answer[: end - 1]
        finally:
            if keep and whole and self._kept is None:
                self._kept = raw
            else:
                raw.close()


def _understood(form: re.Pattern[bytes], answer: bytes) -> re.Match[bytes]:
    if (said := form.fullmatch(answer)) is not None:
        return said
    if (refused := _REFUSED.fullmatch(answer)) is not None:
        status, code, detail = refused.groups()
        raise OrderRefused(f"{status.decode()} {code.decode()}: {_text(detail)[:_MAX_SHOWN]}")
    raise Senseless(f"It says {answer[:_MAX_SHOWN]!r}.")


def _text(word: bytes) -> str:
    """Return what the agent wrote as one word."""
    return urllib.parse.unquote(word.decode("ascii"), errors="replace")
