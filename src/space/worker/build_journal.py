"""What a running build says, on its way to whoever reads it: bounded, with a beat where it has nothing to say."""

import asyncio
import datetime as dt

from space.model.build import BASE
from space.wire.builds import Level, StepBeat, StepLine, StepLog

_SILENCE_S = 5.0
MAX_LINES, MAX_CHARS = 20_000, 8 * 1024**2
"""Of one build; what its commands say beyond that is dropped."""


class Journal:
    """A queue of lines. `step` is the one that is being done."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[StepLine] = asyncio.Queue()
        self._lines, self._chars = 0, 0
        self.step = BASE

    def begin(self, step: str, text: str) -> None:
        """Go on to a step."""
        self.step = step
        self.log(text)

    def log(self, text: str, level: Level = "info") -> None:
        """Say a line of our own; there are few of them."""
        self._put(text, level)

    def output(self, text: str, level: Level) -> None:
        """Pass on a line of a command, unless there were too many."""
        if self._lines > MAX_LINES or self._chars > MAX_CHARS:
            return
        self._lines, self._chars = self._lines + 1, self._chars + len(text)
        if self._lines > MAX_LINES or self._chars > MAX_CHARS:
            self._put("The output is too long for the log; the rest of it is left out.", "warn")
        else:
            self._put(text, level)

    def end(self, line: StepLine) -> None:
        """Say how it ended."""
        self._queue.put_nowait(line)

    async def next(self) -> StepLine:
        """Return what came next, or a beat after a silence."""
        try:
            async with asyncio.timeout(_SILENCE_S):
                return await self._queue.get()
        except TimeoutError:
            # it came at the same moment
            return StepBeat() if self._queue.empty() else self._queue.get_nowait()

    def _put(self, text: str, level: Level) -> None:
        self._queue.put_nowait(StepLog(at=dt.datetime.now(dt.UTC), step=self.step, level=level, text=text))
