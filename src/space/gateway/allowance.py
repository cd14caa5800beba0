"""How many connections of one sandbox may come to nothing; what follows is muting.py's."""

import dataclasses

BURST, PER_S = 200.0, 20.0
"""Connections that may come to nothing: a program that does not trust SPACE's root tries some times a second."""

MUTED_S = 30.0
"""The longest time in one piece, however many were under way when the budget ended."""


@dataclasses.dataclass(slots=True)
class Allowance:
    """What is left of one sandbox's budget; below zero where more were under way than it had left."""

    left: float = BURST
    at_s: float = 0.0
    muted_until_s: float = 0.0
    told_at_s: float | None = None

    def take(self, now_s: float) -> float:
        """Count one; return for how many seconds nothing new may come now, 0 where that is nothing new."""
        self.left = min(BURST, self.left + (now_s - self.at_s) * PER_S)
        self.left = max(self.left - 1, BURST / 2 - MUTED_S * PER_S)
        self.at_s = now_s
        if self.left >= 0 or now_s < self.muted_until_s:
            return 0
        seconds = (BURST / 2 - self.left) / PER_S
        self.muted_until_s = now_s + seconds
        return seconds
