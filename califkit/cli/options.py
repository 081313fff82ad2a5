"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Constraints = Annotated[
    str | None,
    typer.Option(
        help="JSONL file of prompts with their constraints, or ifbench. Default: those in the rows "
        "themselves (to score, a request will do), else ifbench."
    ),
]
Filter = Annotated[
    str | None, typer.Option(help="Take only the samples of this filter of lm-eval.")
]
Semantics = Annotated[Literal["published", "repaired"], typer.Option(help="Which verdicts.")]
Thinking = Annotated[
    bool,
    typer.Option(
        "--thinking", help="Drawn in thinking mode: a response without </think> has no answer."
    ),
]
Processes = Annotated[
    int | None, typer.Option(min=1, help="Processes that verify; default: one a CPU.")
]
TokensPerPass = Annotated[
    int, typer.Option(min=1, help="Padded tokens in one pass of the reference; bounds memory.")
]


Identify = Annotated[
    int | None,
    typer.Option(
        min=2,
        metavar="K",
        help="Also score each answer given K - 1 other requests: can one tell what was asked? K "
        "times the work.",
    ),
]


def _use(files: list[Path] | None) -> list[Path]:
    from califkit.verifiers import own

    for file in files or []:
        own.use(file)
    return files or []


# The callback does all there is to do: a command only has to take the option.
OwnVerifiers = Annotated[
    list[Path] | None,
    typer.Option(
        "--verifiers",
        metavar="FILE.py",
        callback=_use,
        help="Import this file of your own, which registers verifiers. Repeatable.",
    ),
]
