"""What a figure of matplotlib shows, as data: lines, points, bars, slices and boxes with their labels.

Read from the artists of each Axes as they are drawn; matplotlib keeps no record of which function was called:
- `plot` leaves Line2D, `scatter` a PathCollection, `bar` and `barh` a BarContainer, `pie` Wedges and Texts.
- `boxplot` leaves, for each box in turn, the box, two whiskers, two caps, the median and the fliers, all of them Line2D
  (or a patch for the box, with `patch_artist=True`).

A figure with one Axes is that chart, one with several a `superchart`; what is not known is of type `unknown`.
"""

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

_MAX_POINTS = 20_000
"""Of all series of an Axes together. A figure with more is shown as a picture alone: as data it would be megabytes."""

_UNIT = re.compile(r"\(([^()]+)\)\s*$|\[([^\[\]]+)\]\s*$")


def describe(figure: Any) -> dict[str, Any] | None:
    """Return a figure as data; None where nothing is drawn."""
    if sum(_points_in(one) for one in figure.axes) > _MAX_POINTS:
        return None
    found = [_axes(one) for one in figure.axes if one.get_visible() and not _is_colorbar(one)]
    if not found:
        return None
    if len(found) == 1:
        return found[0]
    title = figure.get_suptitle() if hasattr(figure, "get_suptitle") else ""
    return {"type": "superchart", "title": title or None, "elements": found}


def _points_in(axes: Any) -> int:
    lines = sum(len(line.get_xdata(orig=False)) for line in axes.lines)
    return lines + sum(len(one.get_offsets()) for one in axes.collections)


def _is_colorbar(axes: Any) -> bool:
    return getattr(axes, "_colorbar", None) is not None


def _axes(axes: Any) -> dict[str, Any]:
    common = {"title": axes.get_title() or None}
    if slices := _slices(axes):
        return {"type": "pie", **common, "elements": slices}
    flat = common | _labels(axes)
    if boxes := _boxes(axes):
        return {"type": "box_and_whisker", **flat, "elements": boxes}
    if bars := _bars(axes):
        return {"type": "bar", **flat, "elements": bars}
    lines = [line for line in axes.lines if len(line.get_xdata(orig=False)) > 0]
    if lines:
        return {"type": "line", **flat, **_scales(axes), "elements": _series(axes, lines, _line_points)}
    clouds = [one for one in axes.collections if type(one).__name__ == "PathCollection" and len(one.get_offsets())]
    if clouds:
        return {"type": "scatter", **flat, **_scales(axes), "elements": _series(axes, clouds, _cloud_points)}
    return {"type": "unknown", **flat, "elements": []}


# -- axes --------------------------------------------------------------------------------------------------------------


def _labels(axes: Any) -> dict[str, Any]:
    x, y = axes.get_xlabel(), axes.get_ylabel()
    return {"x_label": x or None, "y_label": y or None, "x_unit": _unit(x), "y_unit": _unit(y)}


def _unit(label: str) -> str | None:
    """Return the unit in "Time (s)" or "Time [s]"."""
    match = _UNIT.search(label)
    return (match[1] or match[2]).strip() if match else None


def _scales(axes: Any) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        value_of = _reader(axis)
        told[f"{name}_scale"] = _scale(axis)
        told[f"{name}_ticks"] = [value_of(tick) for tick in axis.get_majorticklocs()]
        told[f"{name}_tick_labels"] = [label.get_text() for label in axis.get_ticklabels()]
    return told


def _converter(axis: Any) -> str:
    """Return the name of what turns this axis' values into numbers; empty for an axis of numbers."""
    get = getattr(axis, "get_converter", None)  # matplotlib 3.10
    converter = get() if get is not None else getattr(axis, "converter", None)
    return type(converter).__name__ if converter is not None else ""


def _scale(axis: Any) -> str:
    converter = _converter(axis)
    if "Category" in converter:
        return "categorical"
    if "Date" in converter:
        return "datetime"
    return str(axis.get_scale())


def _reader(axis: Any) -> Callable[[float], str | float | None]:
    """Return what turns a number of an axis into what it stands for: an ISO 8601 date, a category, else the number."""
    scale = _scale(axis)
    if scale == "datetime":
        from matplotlib.dates import num2date

        return lambda number: str(num2date(number).isoformat()) if math.isfinite(number) else None
    if scale == "categorical":
        names = _categories(axis)
        return lambda number: names.get(round(number), str(float(number))) if math.isfinite(number) else None
    return lambda number: float(number) if math.isfinite(number) else None


def _categories(axis: Any) -> dict[int, str]:
    mapping = getattr(axis.units, "_mapping", {}) or {}
    return {int(position): str(name) for name, position in mapping.items()}


# -- lines and points --------------------------------------------------------------------------------------------------


def _series(axes: Any, artists: list[Any], pairs_of: Callable[[Any], Iterable[Any]]) -> list[dict[str, Any]]:
    told = []
    x_of, y_of = _reader(axes.xaxis), _reader(axes.yaxis)
    for number, artist in enumerate(artists, 1):
        points = [[x_of(x), y_of(y)] for x, y in pairs_of(artist)]
        whole = [point for point in points if None not in point]
        told.append({"label": _label(artist) or f"Series {number}", "points": whole})
    return told


def _line_points(line: Any) -> Iterable[Any]:
    yield from zip(line.get_xdata(orig=False), line.get_ydata(orig=False), strict=True)


def _cloud_points(cloud: Any) -> Iterable[Any]:
    yield from cloud.get_offsets()


def _label(artist: Any) -> str:
    """Return a label that a user gave; those that matplotlib gives begin with an underscore."""
    label = str(artist.get_label() or "")
    return "" if label.startswith("_") else label


# -- bars --------------------------------------------------------------------------------------------------------------


def _bars(axes: Any) -> list[dict[str, Any]]:
    groups = [one for one in axes.containers if type(one).__name__ == "BarContainer" and len(one.patches)]
    found = []
    for number, group in enumerate(groups, 1):
        upright = group.orientation != "horizontal"
        axis = axes.xaxis if upright else axes.yaxis
        names = _tick_names(axis)
        value_of = _reader(axis)
        for bar in group.patches:
            middle = bar.get_x() + bar.get_width() / 2 if upright else bar.get_y() + bar.get_height() / 2
            value = bar.get_height() if upright else bar.get_width()
            found.append(
                {
                    "label": names.get(_nearest(names, middle), _text(value_of(middle))),
                    "group": _label(group) or f"Series {number}",
                    "value": float(value),
                }
            )
    return found


def _tick_names(axis: Any) -> dict[float, str]:
    """Return the labels of an axis' ticks where a user gave them: categories, or `set_xticklabels`."""
    if named := _categories(axis):
        return {float(position): name for position, name in named.items()}
    if type(axis.get_major_formatter()).__name__ not in {"FixedFormatter", "FuncFormatter"}:
        return {}
    texts = [label.get_text() for label in axis.get_ticklabels()]
    return {float(at): text for at, text in zip(axis.get_majorticklocs(), texts, strict=False) if text}


def _nearest(names: dict[float, str], middle: float) -> float:
    """Return the tick a bar stands at: bars of several groups stand beside it, less than half a step away."""
    near = min(names, key=lambda at: abs(at - middle), default=math.nan)
    return near if abs(near - middle) <= 0.5 else math.nan


def _text(value: str | float | None) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


# -- slices ------------------------------------------------------------------------------------------------------------


def _slices(axes: Any) -> list[dict[str, Any]]:
    wedges = [patch for patch in axes.patches if type(patch).__name__ == "Wedge"]
    return [
        {"label": _label(wedge), "angle": round(abs(float(wedge.theta2 - wedge.theta1)), 4), "radius": float(wedge.r)}
        for wedge in wedges
    ]


# -- boxes -------------------------------------------------------------------------------------------------------------


def _boxes(axes: Any) -> list[dict[str, Any]]:
    """Return the boxes of a box plot, found by their whiskers: each a line from a box's edge outwards.

    The order is matplotlib's (Axes.bxp): for each box the box, whiskers, caps, median, fliers. A box drawn as a patch
    is among the patches, and what remains among the lines has one fewer in each turn. Of boxes at one place the last
    is told, which hides the others.
    """
    if not axes.lines or any(_label(line) for line in axes.lines):
        return []
    patches = [patch for patch in axes.patches if type(patch).__name__ == "PathPatch"]
    lines = list(axes.lines)
    found = _turns(lines, patches)
    if found is None:
        return []
    boxes, upright = found
    axis = axes.xaxis if upright else axes.yaxis
    names = _tick_names(axis)
    across, along = (0, 1) if upright else (1, 0)
    told: dict[float, dict[str, Any]] = {}
    for number, (box, whiskers, median, fliers) in enumerate(boxes, 1):
        middle = sum(_data(whiskers[0])[across]) / 2
        ends = [end for whisker in whiskers for end in _data(whisker)[along]]
        edges = _edges(box)[along]
        told[middle] = {
            "label": names.get(_nearest(names, middle), str(number)),
            "min": min(ends),
            "first_quartile": min(edges),
            "median": _data(median)[along][0],
            "third_quartile": max(edges),
            "max": max(ends),
            "outliers": sorted(_data(fliers)[along]) if fliers is not None else [],
        }
    return list(told.values())


def _data(line: Any) -> tuple[list[float], list[float]]:
    return [float(x) for x in line.get_xdata(orig=False)], [float(y) for y in line.get_ydata(orig=False)]


def _edges(box: Any) -> tuple[list[float], list[float]]:
    if hasattr(box, "get_xdata"):
        return _data(box)
    vertices = box.get_path().vertices
    return [float(x) for x, _ in vertices], [float(y) for _, y in vertices]


_CORNERS = 5
"""How many points a box has at least; the lines between two boxes have two, but for fliers, which come last."""

_Box = tuple[Any, tuple[Any, Any], Any, Any]


def _turns(lines: list[Any], patches: list[Any]) -> tuple[list[_Box], bool] | None:
    """Split the artists of a box plot into its boxes; None where they are none. The bool says: boxes stand upright."""
    boxes: list[_Box] = []
    upright: set[bool] = set()
    rest, drawn = list(lines), list(patches)
    while rest:
        if len(_data(rest[0])[0]) < _CORNERS and not drawn:
            return None
        box = rest.pop(0) if len(_data(rest[0])[0]) >= _CORNERS else drawn.pop(0)
        if len(rest) < 5:
            return None
        low, high, cap, other, median = rest[:5]
        del rest[:5]
        stands = _stands(box, low, high, cap, other, median)
        if stands is None:
            return None
        upright.add(stands)
        fliers = rest.pop(0) if rest and _is_flier(rest[0]) else None
        boxes.append((box, (low, high), median, fliers))
    return (boxes, upright.pop()) if len(upright) == 1 else None


def _stands(box: Any, low: Any, high: Any, cap: Any, other: Any, median: Any) -> bool | None:
    """Tell whether these are one upright box (True) or one that lies (False); None where they are no box."""
    if len(_edges(box)[0]) < _CORNERS or not all(len(_data(line)[0]) == 2 for line in (low, high, cap, other)):
        return None
    if len(_data(median)[0]) != 2:
        return None
    for upright in (True, False):
        across, along = (0, 1) if upright else (1, 0)
        whiskers_stand = all(len(set(_data(line)[across])) == 1 for line in (low, high))
        caps_lie = all(len(set(_data(line)[along])) == 1 for line in (cap, other, median))
        if whiskers_stand and caps_lie:
            return upright
    return None


def _is_flier(line: Any) -> bool:
    return str(line.get_linestyle()) in {"None", "none", "", " "}
