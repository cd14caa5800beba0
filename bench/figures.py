"""What was measured, and what is told of it: percentiles, multiples of a floor, goals. No input or output."""

import dataclasses
import math
import statistics
import time
from collections.abc import Sequence
from typing import Literal


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """Something that is measured. `floor` names the step whose median this one's is shown as a multiple of."""

    name: str
    floor: str | None = None
    unit: str = "ms"


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """What is told of a step. `ratio` is its median by its floor's; None where it has no floor in this run."""

    step: str
    unit: str
    count: int
    p50: float
    p95: float
    p99: float
    ratio: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """A figure that is to be at most, or at least, `limit`. Nothing fails when it is not: machines and days differ."""

    text: str
    value: float
    limit: float
    side: Literal["at most", "at least"] = "at most"

    @property
    def met(self) -> bool:
        """Whether it was reached."""
        return self.value <= self.limit if self.side == "at most" else self.value >= self.limit


class Taken:
    """Values by step, in the order they came."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}

    def note(self, step: str, value: float) -> None:
        """Keep a value."""
        self.values.setdefault(step, []).append(value)

    def median(self, step: str) -> float:
        """Return a step's median; NaN, which reaches no goal, where nothing was measured."""
        return statistics.median(self.values[step]) if self.values.get(step) else math.nan

    def ratio(self, step: str, floor: str) -> float:
        """Return one median by another."""
        return self.median(step) / self.median(floor)

    def lines(self, steps: Sequence[Step]) -> list[Line]:
        """Return what is told of each of `steps` that was measured."""
        found = []
        for step in steps:
            values = self.values.get(step.name)
            if not values:
                continue
            based = step.floor is not None and self.values.get(step.floor)
            found.append(
                Line(
                    step=step.name,
                    unit=step.unit,
                    count=len(values),
                    p50=statistics.median(values),
                    p95=percentile(values, 95),
                    p99=percentile(values, 99),
                    ratio=self.ratio(step.name, step.floor) if based and step.floor else None,
                )
            )
        return found


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the nearest-rank percentile: the least value that so many percent are not above. Below 100, p99 is the
    worst."""
    return sorted(values)[max(0, -(-percent * len(values) // 100) - 1)]


def ms_since(began: float) -> float:
    """Return the milliseconds since a `time.monotonic()`."""
    return (time.monotonic() - began) * 1000
