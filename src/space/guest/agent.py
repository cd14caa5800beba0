"""What the worker asks the agent of one guest, on its internal ports.

Every byte that comes back is the guest's: answers are bounded in size and time (line.py), and nothing in them decides
more than whether this one sandbox is up.
"""

import asyncio
import contextlib
import functools
import json
import socket
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import h11
import pydantic

from space.guest.dial import NotConnected
from space.guest.line import AgentRefused, Line, TooLong
from space.guest.orders import OrderRefused, Senseless
from space.wire.agent import (
    AgentInit,
    AgentReady,
    AgentVolume,
    FreezeWish,
    Frozen,
    GuestActivity,
    GuestUsage,
    ReadyWish,
    ThawWish,
)

_ATTEMPT_S = 5.0
_MORE_PATIENCE = 2.0
"""After each attempt without an answer: on a host that is overrun an agent takes longer than any fixed time, and each
attempt that is given up leaves it with more to do."""
_NEAR_S, _TELLINGS = 0.2, 5
"""A guest's clock is behind by what the time takes to it, seconds on a host that is overrun: so it is told again, so
often at most, until it was there that soon."""
_POLL_S = 0.02
_OK = 200
M = TypeVar("M", bound=pydantic.BaseModel)
T = TypeVar("T")


class _Done(pydantic.BaseModel):
    """An answer that says no more than that it was done."""


class AgentError(Exception):
    """The agent answered, and not as an agent should; trying again will not help."""


class AgentSilent(Exception):
    """The agent gave no answer in time."""


async def initialise(line: Line, init: AgentInit) -> AgentReady:
    """Tell the agent who it is, trying again until it answers; put a deadline around it.

    A guest that is still booting refuses or drops connections: that is waited out. An agent that answers with an error
    raises AgentError. The clock that is told is read anew for each attempt, and told again where it was late.
    """
    attempt_s = _ATTEMPT_S
    while True:
        try:
            async with asyncio.timeout(attempt_s) as attempt:
                began, told = time.monotonic(), init.model_copy(update={"time_unix_ns": time.time_ns()})
                status, answer = await _exchange(line, "POST", "/init", told)
            ready = _understood(AgentReady, status, answer)
            if time.monotonic() - began > _NEAR_S:
                with contextlib.suppress(AgentSilent):  # it is as good as it was
                    await thaw(line, ThawWish(reason="suspend", time_unix_ns=time.time_ns()), attempt_s)
            return ready
        except (OSError, h11.RemoteProtocolError):  # TimeoutError is an OSError
            if attempt.expired():
                attempt_s *= _MORE_PATIENCE
        await asyncio.sleep(_POLL_S)


async def freeze(line: Line, wish: FreezeWish, timeout_s: float) -> Frozen:
    """Stop all user code in the guest, after its hook; raises AgentError, AgentSilent.

    Where its memory is to be saved, the agent has no connection open then: the copy would have nobody at its end.
    """
    keep = wish.reason == "pause"
    if not keep:
        line.hang_up()
    try:
        return await _order(line, functools.partial(line.orders.freeze, wish), timeout_s)
    except _OfBefore:
        return _understood(Frozen, *await _ask(line, "POST", "/freeze", wish, timeout_s, keep=keep))


async def thaw(line: Line, wish: ThawWish, timeout_s: float) -> None:
    """Let user code run again where a freeze came to nothing; raises AgentError, AgentSilent.

    Where the wish has a time, that is read anew, and told until it was there soon enough.
    """
    for _ in range(_TELLINGS):
        began = time.monotonic()
        told = wish.model_copy(update={"time_unix_ns": time.time_ns()}) if wish.time_unix_ns else wish
        try:
            await _order(line, functools.partial(line.orders.thaw, told), timeout_s)
        except _OfBefore:
            _understood(_Done, *await _ask(line, "POST", "/thaw", told, timeout_s))
        if not wish.time_unix_ns or time.monotonic() - began < _NEAR_S:
            return


class _OfBefore(Exception):
    """The agent takes no orders. It is of before they were, in the memory of a VM or copy of then: it is asked."""


async def _order(line: Line, give: Callable[[], Awaitable[T]], timeout_s: float) -> T:
    """Give an order and return what it came to; raises AgentError, AgentSilent, _OfBefore."""
    try:
        async with line.limit(timeout_s):
            while True:
                with contextlib.suppress(NotConnected):
                    return await give()
    except ConnectionRefusedError as error:
        raise _OfBefore from error
    except (OSError, TimeoutError) as error:
        raise AgentSilent(f"The agent did not answer an order within {timeout_s:g} s.") from error
    except OrderRefused as error:
        raise AgentError(f"The agent refused with {error}") from error
    except Senseless as error:
        raise AgentError(f"The agent's answer to an order makes no sense. {error}") from error


async def mount(line: Line, volume: AgentVolume, timeout_s: float) -> socket.socket:
    """Have a volume mounted, or its mount taken up again; returns the connection that its server is to answer on.

    Waits for an agent that is not up yet. Raises AgentError, AgentSilent.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                with contextlib.suppress(OSError):
                    async with asyncio.timeout(_ATTEMPT_S):
                        return await line.take_over("/volumes", volume.model_dump_json().encode())
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        raise AgentSilent(f"The agent did not mount a volume within {timeout_s:g} s.") from error
    except AgentRefused as error:
        raise AgentError(f"The agent refused to mount a volume: {_detail(str(error))}") from error


def _detail(problem: str) -> str:
    """Return what a problem document of the guest's says, cut short."""
    try:
        return str(json.loads(problem)["detail"])[:300]
    except (ValueError, KeyError, TypeError):
        return problem[:300]


async def ready(line: Line, check_timeout_s: float) -> None:
    """Wait until the image's own check succeeds, if it has one.

    Raises AgentError where it has not succeeded after `check_timeout_s`, AgentSilent.
    """
    wish = ReadyWish(timeout_s=check_timeout_s)
    _understood(_Done, *await _ask(line, "POST", "/ready", wish, check_timeout_s + _ATTEMPT_S))


async def warm(line: Line, timeout_s: float) -> None:
    """Make the next command quick: the agent runs one like it. Raises AgentError, AgentSilent."""
    _understood(_Done, *await _ask(line, "POST", "/warm", None, timeout_s))


async def activity(line: Line, timeout_s: float) -> GuestActivity:
    """Ask what is going on in the guest; raises AgentError, AgentSilent."""
    return _understood(GuestActivity, *await _ask(line, "GET", "/activity", None, timeout_s))


async def usage(line: Line, timeout_s: float) -> GuestUsage:
    """Ask what the guest uses of its processors, memory and disk; raises AgentError, AgentSilent."""
    return _understood(GuestUsage, *await _ask(line, "GET", "/metrics", None, timeout_s))


async def _ask(
    line: Line, method: str, path: str, wish: pydantic.BaseModel | None, timeout_s: float, *, keep: bool = True
) -> tuple[int, bytes]:
    try:
        async with line.limit(timeout_s):
            while True:
                with contextlib.suppress(NotConnected):
                    return await _exchange(line, method, path, wish, keep=keep)
    except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
        raise AgentSilent(f"The agent did not answer {path} within {timeout_s:g} s.") from error


def _understood(model: type[M], status: int, answer: bytes) -> M:
    if status // 100 != _OK // 100:
        raise AgentError(f"The agent refused with {status}: {answer[:300]!r}")
    try:
        return model.model_validate_json(answer or b"{}")
    except pydantic.ValidationError as error:
        raise AgentError("The agent's answer makes no sense.") from error


async def _exchange(
    line: Line, method: str, path: str, wish: pydantic.BaseModel | None, *, keep: bool = True
) -> tuple[int, bytes]:
    body = b"" if wish is None else wish.model_dump_json().encode()
    try:
        return await line.request(method, path, body, keep=keep)
    except TooLong as error:
        raise AgentError("The agent's answer is too long.") from error
