"""How objects are shown beside their usual forms: figures of matplotlib as chart data, DataFrames as columns."""

import datetime
import math
from collections.abc import Callable
from typing import Any

from IPython.core.formatters import BaseFormatter
from traitlets import Unicode

from interpreter_kernel import charts

CHART = "application/vnd.space.chart+json"
DATA = "application/vnd.space.data+json"

_MAX_ROWS = 10_000
"""A longer table is shown, but does not travel as data: a client that wants it all reads a file."""


def columns(frame: Any) -> dict[str, Any] | None:
    """Return a DataFrame as {column: [value, ...]}, in JSON's types; dates are ISO 8601, what is missing is null."""
    if len(frame) > _MAX_ROWS:
        return None
    return {
        str(name): [_plain(value) for value in frame.iloc[:, position].tolist()]
        for position, name in enumerate(frame.columns)
    }


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return None if value != value else value.isoformat()  # NaT is not itself
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    return str(value)


class _OneType(BaseFormatter):
    """Gives one form of the objects of one type, told by its name: nothing is imported for it.

    It does not ask IPython's tables of types, from which matplotlib's inline backend takes Figure out.
    """

    of = ""
    form: Callable[[Any], dict[str, Any] | None]

    def __call__(self, shown: Any) -> dict[str, Any] | None:
        """Return the form; None for another type, and for what cannot be described, which is shown all the same."""
        if not any(f"{base.__module__}.{base.__qualname__}" == self.of for base in type(shown).__mro__):
            return None
        try:
            return type(self).form(shown)
        except Exception:  # noqa: BLE001 - any figure that a user can build
            return None


class ChartFormatter(_OneType):
    """Chart data of a figure."""

    format_type = Unicode(CHART)
    of = "matplotlib.figure.Figure"
    form = staticmethod(charts.describe)


class DataFormatter(_OneType):
    """Columns of a table."""

    format_type = Unicode(DATA)
    of = "pandas.core.frame.DataFrame"
    form = staticmethod(columns)


def register(display: Any) -> None:
    """Add both to a DisplayFormatter."""
    for formatter in (ChartFormatter(parent=display), DataFormatter(parent=display)):
        display.formatters[formatter.format_type] = formatter
