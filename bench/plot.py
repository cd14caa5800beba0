"""Pictures of figures, by matplotlib without a screen."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.figures import Line
from matplotlib.figure import Figure

_DPI = 130
_BAR_COLOUR, _MARK_COLOUR = "#4878a8", "#303030"


@dataclasses.dataclass(frozen=True, slots=True)
class Bars:
    """A bar for each step's median, with marks at p95 and p99, on a logarithmic scale."""

    title: str
    lines: Sequence[Line]


@dataclasses.dataclass(frozen=True, slots=True)
class Curves:
    """Points over a quantity, joined by name. `logarithmic` is the vertical scale."""

    title: str
    x_label: str
    y_label: str
    points: Mapping[str, Sequence[tuple[float, float]]]
    logarithmic: bool = False


Chart = Bars | Curves


def draw(chart: Chart, path: Path) -> None:
    """Write the picture as PNG."""
    figure = _bars(chart) if isinstance(chart, Bars) else _curves(chart)
    figure.savefig(path, dpi=_DPI)


def _bars(chart: Bars) -> Figure:
    figure = Figure(figsize=(9, 1.2 + 0.42 * len(chart.lines)), layout="constrained")
    axes = figure.subplots()
    lines = list(reversed(chart.lines))  # the first on top
    places = range(len(lines))
    axes.barh(places, [line.p50 for line in lines], color=_BAR_COLOUR, height=0.6, label="p50")
    axes.plot([line.p95 for line in lines], places, "|", color=_MARK_COLOUR, markersize=12, label="p95")
    axes.plot([line.p99 for line in lines], places, ">", color=_MARK_COLOUR, markersize=5, label="p99")
    for place, line in zip(places, lines, strict=True):
        ratio = "" if line.ratio is None else f" ({line.ratio:.2f}x)"
        axes.text(line.p50, place, f" {line.p50:.0f}{ratio} ", ha="right", va="center", color="white", fontsize=8)
    axes.set_yticks(places, [line.step for line in lines])
    axes.set_xscale("log")
    axes.set_xlabel(lines[0].unit if lines else "")
    axes.set_title(chart.title)
    axes.legend(loc="lower right", fontsize=8)
    return figure


def _curves(chart: Curves) -> Figure:
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    for name, points in chart.points.items():
        axes.plot([x for x, _ in points], [y for _, y in points], "o-", label=name)
    if chart.logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.set_title(chart.title)
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
    return figure
