"""Where figures go: a table on the screen, and a folder with JSON, the table and a plot for each run."""

import dataclasses
import datetime as dt
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import plot
from bench.figures import Goal, Line, Step, Taken
from bench.frame import Bench

import space
from space.cli.output import print_table, say

_COLUMNS = ("step", "n", "p50", "p95", "p99", "unit", "x floor")


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a bench found. `notes` say what was left out or is to be known; `errors` count what went wrong by kind."""

    name: str
    steps: Sequence[Step]
    taken: Taken
    goals: Sequence[Goal]
    chart: plot.Chart
    notes: Sequence[str] = ()
    errors: Mapping[str, int] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)


def host() -> dict[str, object]:
    """Return what any figure depends on."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cores": os.cpu_count(), "memory_gib": round(memory / 1024**3, 1), "kernel": platform.release()}


def machine(bench: Bench) -> dict[str, object]:
    """Return what figures of sandboxes depend on."""
    return host() | {
        "vmm": f"{bench.info.driver} {bench.info.vmm_version}",
        "accelerator": bench.info.accelerator,
        "space": space.__version__,
        "agent": bench.template.template.agent_version,
    }


def publish(outcome: Outcome, folder: Path, facts: Mapping[str, object]) -> bool:
    """Print and write everything; returns whether there was no error."""
    at = dt.datetime.now(dt.UTC)
    lines = outcome.taken.lines(outcome.steps)
    target = folder / f"{outcome.name}-{at:%Y%m%dT%H%M%SZ}"
    target.mkdir(parents=True)
    (target / "figures.json").write_text(json.dumps(_document(outcome, lines, facts, at), indent=1) + "\n")
    (target / "table.md").write_text(_markdown(outcome, lines, facts, at))
    plot.draw(outcome.chart, target / "plot.png")
    print_table(_COLUMNS, map(_cells, lines))
    for text in _remarks(outcome):
        print(text)
    say(f"figures, table and plot are in {target}")
    return not outcome.errors


def _document(outcome: Outcome, lines: Sequence[Line], facts: Mapping[str, object], at: dt.datetime) -> object:
    return {
        "bench": outcome.name,
        "at": at.isoformat(timespec="seconds"),
        "machine": dict(facts),
        "settings": dict(outcome.settings),
        "lines": [dataclasses.asdict(line) for line in lines],
        "goals": [dataclasses.asdict(goal) | {"met": goal.met} for goal in outcome.goals],
        "errors": dict(outcome.errors),
        "notes": list(outcome.notes),
        "values": {step: [round(value, 3) for value in values] for step, values in outcome.taken.values.items()},
    }


def _markdown(outcome: Outcome, lines: Sequence[Line], facts: Mapping[str, object], at: dt.datetime) -> str:
    head = f"# {outcome.name}, {at:%Y-%m-%d %H:%M} UTC\n\n" + ", ".join(f"{k} {v}" for k, v in facts.items())
    rows = [_COLUMNS, tuple("---" for _ in _COLUMNS), *map(_cells, lines)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    remarks = "\n".join(f"- {text}" for text in _remarks(outcome))
    return f"{head}\n\n{table}\n\n{remarks}\n"


def _cells(line: Line) -> tuple[str, ...]:
    ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
    return (line.step, str(line.count), *(_number(v) for v in (line.p50, line.p95, line.p99)), line.unit, ratio)


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _remarks(outcome: Outcome) -> list[str]:
    goals = [
        f"goal {'met' if goal.met else 'MISSED'}: {goal.text}: {_number(goal.value)}, {goal.side} {_number(goal.limit)}"
        for goal in outcome.goals
    ]
    errors = [f"ERROR, {count} times: {text}" for text, count in outcome.errors.items()]
    return [*goals, *errors, *outcome.notes]
