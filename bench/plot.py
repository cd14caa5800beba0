"""Pictures of figures, by matplotlib without a screen."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.figures import Line
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

_DPI = 130
_BAR_COLOUR, _MARK_COLOUR = "#7ba4cc", "#303030"
_ROOM_FOR_TEXT = 4.0
_WHOLE = 10
"""From here on decimals say nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bars:
    """A bar for each step's median, with marks at p95 and p99, on a logarithmic scale."""

    title: str
    lines: Sequence[Line]


@dataclasses.dataclass(frozen=True, slots=True)
class Curves:
    """Points over a quantity, joined by name, at even distances whatever the quantity. `floors` are dashed."""

    title: str
    x_label: str
    y_label: str
    points: Mapping[str, Sequence[tuple[float, float]]]
    floors: frozenset[str] = frozenset()
    logarithmic: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Panels:
    """Several pictures of bars below each other, each with a unit of its own."""

    title: str
    panels: Sequence[Bars]


Chart = Bars | Curves | Panels


def draw(chart: Chart, path: Path) -> None:
    """Write the picture as PNG."""
    figure = _curves(chart) if isinstance(chart, Curves) else _bars(chart)
    figure.savefig(path, dpi=_DPI)


def _bars(chart: Bars | Panels) -> Figure:
    panels = [chart] if isinstance(chart, Bars) else chart.panels
    heights = [1.0 + 0.4 * len(panel.lines) for panel in panels]
    figure = Figure(figsize=(10, 0.5 + sum(heights)), layout="constrained")
    subplots = figure.subplots(len(panels), squeeze=False, height_ratios=heights)
    for panel, (axes,) in zip(panels, subplots, strict=True):
        _draw_bars(axes, panel)
    handles, labels = subplots[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=3, fontsize=8)
    if isinstance(chart, Panels):
        figure.suptitle(chart.title)
    return figure


def _draw_bars(axes: Axes, chart: Bars) -> None:
    lines = list(reversed(chart.lines))  # the first on top
    places = range(len(lines))
    axes.barh(places, [line.p50 for line in lines], color=_BAR_COLOUR, height=0.6, label="p50")
    axes.plot([line.p95 for line in lines], places, "|", color=_MARK_COLOUR, markersize=13, label="p95")
    axes.plot([line.p99 for line in lines], places, ">", color=_MARK_COLOUR, markersize=5, label="p99")
    for place, line in zip(places, lines, strict=True):
        ratio = "" if line.ratio is None else f", {line.ratio:.2f} x floor"
        shown = f"{line.p50:.0f}" if line.p50 >= _WHOLE else f"{line.p50:.2f}"
        axes.annotate(
            f"{shown}{ratio}",
            (line.p99, place),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(places, [line.step for line in lines])
    axes.set_xscale("log")
    axes.set_xlim(right=_ROOM_FOR_TEXT * max(line.p99 for line in lines))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel(lines[0].unit)
    axes.set_title(chart.title)


def _curves(chart: Curves) -> Figure:
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    axes = figure.subplots()
    ticks = sorted({x for points in chart.points.values() for x, _ in points})
    for name, points in chart.points.items():
        style = "o--" if name in chart.floors else "o-"
        axes.plot([ticks.index(x) for x, _ in points], [y for _, y in points], style, label=name)
    axes.set_xticks(range(len(ticks)), [f"{x:g}" for x in ticks])
    if chart.logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.set_title(chart.title)
    axes.grid(alpha=0.3, which="both")
    figure.legend(loc="outside right upper", fontsize=8)
    return figure
