"""Options that several commands share."""

from __future__ import annotations

import os
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


def available_processes() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
