"""Tables on standard output: folded for people, complete for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd

_UNLIMITED = 100_000  # characters


def show_table(
    rows: pd.DataFrame | Iterable[Mapping[str, Any]], title: str = "", digits: int = 4
) -> None:
    """Print rows as a table after an empty line and a title; no value is cut.

    On a terminal, texts that are too wide are folded; piped, every row is one line. The keys of the
    first row are the header; without rows there is only the title. Floats have so many digits after
    the point; None and NaN are empty.
    """
    rows = rows.to_dict("records") if hasattr(rows, "to_dict") else list(rows)
    to_people = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in rows[0] if rows else ():
        justify = "left" if any(isinstance(row[name], str) for row in rows) else "right"
        table.add_column(str(name), justify=justify, overflow="fold", no_wrap=not to_people)
    for row in rows:
        table.add_row(*(_cell(value, digits) for value in row.values()))
    console = Console(
        width=None if to_people else _UNLIMITED, markup=False, emoji=False, highlight=False
    )
    with console.capture() as printed:
        console.print(table)
    lines = [line.rstrip() for line in printed.get().splitlines()] if rows else []
    typer.echo("\n".join(["", *([title] if title else []), *lines]))


def show_json(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows as a JSON list for a program; None stands for what is not known."""
    typer.echo(json.dumps(list(rows), indent=1))


def _cell(value: Any, digits: int) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)
