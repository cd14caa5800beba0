"""What a sandbox used lately: its agent is asked each time its network is tried, and when somebody wants to know.

Kept in memory: a worker that is started again begins anew.
"""

import collections
import datetime as dt

from space.guest import agent
from space.guest.agent import AgentError, AgentSilent
from space.telemetry import logger
from space.wire.worker import UsageSample
from space.worker.guest_vm import GuestVm

KEPT = 360
"""Samples of a sandbox: an hour of them, one each ten seconds."""

_FRESH = dt.timedelta(seconds=1)
"""Nobody learns more by asking again this soon, and the processors' share of a shorter time is noise."""

_ASK_S = 5.0


class UsageLog:
    """The samples of one sandbox, oldest first."""

    def __init__(self) -> None:
        self._samples: collections.deque[UsageSample] = collections.deque(maxlen=KEPT)

    @property
    def samples(self) -> list[UsageSample]:
        """All that are kept."""
        return list(self._samples)

    async def take(self, guest: GuestVm) -> None:
        """Add what it uses now, unless the last sample is a moment old; nothing where its agent does not say."""
        if self._samples and dt.datetime.now(dt.UTC) - self._samples[-1].at < _FRESH:
            return
        try:
            told = await agent.usage(guest.line, _ASK_S)
        except (AgentError, AgentSilent) as error:
            logger().info("usage_unknown", error=str(error))
            return
        self._samples.append(UsageSample(at=dt.datetime.now(dt.UTC), **told.model_dump()))
