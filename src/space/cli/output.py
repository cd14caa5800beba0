"""What the command line prints: tables for people, JSON for programs, errors on standard error."""

import enum
import json
import sys
from collections.abc import Iterable, Mapping, Sequence

import rich.console
import rich.markup
import rich.table


class Format(enum.StrEnum):
    """How a command prints its data."""

    TABLE = "table"
    JSON = "json"


def printable(text: str) -> str:
    """Return `text` without control characters, for anything a guest could have chosen: a terminal obeys them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_json(value: object) -> None:
    """Print one JSON document, indented."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table without lines, so that it also reads well in a pipe; every cell is made printable."""
    table = rich.table.Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(rich.markup.escape(printable("" if cell is None else str(cell))) for cell in row))
    width = None if sys.stdout.isatty() else 240
    rich.console.Console(width=width, highlight=False).print(table)


def print_facts(facts: Mapping[str, object]) -> None:
    """Print one thing, a line for each of its facts."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
        print(f"{name:<{width}}  {printable('' if value is None else text)}")


def say(text: str) -> None:
    """Tell a person, on standard error, so that standard output stays data; control characters are made visible."""
    lines = (printable(line.expandtabs()) for line in text.split("\n"))
    print("\n".join(lines), file=sys.stderr, flush=True)


def error(text: str) -> None:
    """Print an error: what is wrong and what to do."""
    say(f"error: {text}")


def human_bytes(size: int) -> str:
    """Return a size like `3.2 MiB`."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
