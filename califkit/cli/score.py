"""The command ``score``: likelihood and CaLIF reward of a file of responses, offline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from califkit.cli.options import (
    Constraints,
    Filter,
    Identify,
    OwnVerifiers,
    Semantics,
    Thinking,
    TokensPerPass,
)
from califkit.cli.tables import show_table
from califkit.cli.verify import check_output, echo, head
from califkit.data.load import DataError

if TYPE_CHECKING:
    from califkit.evaluation.score_files import Scored, Settings, Summary

_REQUESTS = {
    "column": "their column",
    "split": "the prompt, with its constraints cut off",
    "prompt": "the WHOLE prompt, which could not be cut (l is not given the request alone)",
}


def score(
    responses: Annotated[Path, typer.Argument(help="JSONL file of responses.")],
    reference: Annotated[
        str, typer.Option(help="Model whose likelihood is measured: a name, a folder or a hub id.")
    ],
    constraints: Constraints = None,
    filter: Filter = None,
    out: Annotated[
        Path | None, typer.Option(help="JSONL file to write. Default: RESPONSES.scores.jsonl.")
    ] = None,
    alpha: Annotated[float, typer.Option(help="Size of the bonus of CaLIF.")] = 0.1,
    semantics: Semantics = "published",
    no_end: Annotated[
        bool,
        typer.Option(
            "--no-end", help="Add no end-of-turn token to responses that come without token ids."
        ),
    ] = False,
    thinking: Thinking = False,
    identify: Identify = None,
    tokens_per_pass: TokensPerPass = 2048,
    verifiers: OwnVerifiers = None,
) -> None:
    """Score a file of responses: average log-likelihood given the request alone, and more.

    Layouts are those of verify; rows of request and response will do. Columns used where they are
    there: request, token_ids, constraints, l0, l1. With l0 and l1: zone and CaLIF reward.
    The same command continues where it was interrupted.
    """
    from califkit.evaluation.response_files import open_responses
    from califkit.evaluation.score_files import Settings, score_file

    if not 0 < alpha < math.inf:
        raise DataError(f"--alpha {alpha}: must be positive and finite")
    settings = Settings(reference, semantics, alpha, not no_end, thinking, identify)
    output = out or responses.with_suffix(".scores.jsonl")
    check_output(output, may_exist=True)
    opened = open_responses(responses, constraints, scoring=True, filter=filter)
    scores = score_file(opened, output, settings, tokens_per_pass)
    echo(head(opened, "not scored", thinking))
    typer.echo(f"scored under {reference}: {len(scores)} responses")
    echo(_origins(scores, settings))
    for name in opened.filters:
        title = "" if name is None else f"filter {name!r}"
        show_table(_means([row for row in scores if row.filter == name]), title)
    typer.echo(f"\nscores: {output}")


def _origins(scores: Sequence[Scored], settings: Settings) -> Iterator[str]:
    """Where requests and token ids came from."""
    sources = Counter(row.request_source for row in scores)
    for source, name in _REQUESTS.items():
        if sources[source]:
            yield f"request from {name}: {sources[source]} rows"
    if n := sum(row.ids_from == "text" for row in scores):
        end = "with" if settings.end else "without"
        yield f"token ids from the text, {end} an end-of-turn token: {n} rows"


def _means(scores: Sequence[Scored]) -> Iterator[dict[str, str]]:
    """A row a number: over all answers and, if rows say how they ended, over the finished ones."""
    from califkit.evaluation.score_files import summarise

    summaries = {"all": summarise(scores)}
    if any(row.cut is not None for row in scores):
        finished = [row for row in scores if not row.cut]
        summaries[f"finished ({len(finished)})"] = summarise(finished)
        n_cut = len(scores) - len(finished)
        yield {"": "cut at the token limit"} | dict.fromkeys(summaries, "") | {"all": str(n_cut)}
    for label, shown in _NUMBERS.items():
        row = {of: shown(summary) for of, summary in summaries.items()}
        if row["all"]:
            yield {"": label} | row


def _fixed(name: str, digits: int = 4) -> Callable[[Summary], str]:
    """How a mean is shown; nothing where no row has the number."""

    def shown(summary: Summary) -> str:
        value = getattr(summary, name)
        return "" if math.isnan(value) else f"{value:.{digits}f}"

    return shown


def _identified(name: str, digits: int) -> Callable[[Summary], str]:
    """A mean of request identification with its interval over prompts."""

    def shown(summary: Summary) -> str:
        if (found := summary.identification) is None:
            return ""
        low, high = getattr(found, f"{name}_interval")
        return f"{getattr(found, name):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"

    return shown


def _zones(summary: Summary) -> str:
    n = summary.zones.total()
    return ", ".join(f"{zone} {count / n:.1%}" for zone, count in summary.zones.items())


_NUMBERS: dict[str, Callable[[Summary], str]] = {
    "mean l, nats per token": _fixed("loglik"),
    "empty answers, no l": lambda summary: f"{summary.empty:.1%}",
    "tokens": _fixed("tokens", 1),
    "distinct-2": _fixed("distinct_2"),
    "r_ver": _fixed("r_ver"),
    "identified, likeliest given its own request": _identified("top_1", 3),
    "identified, AUC": _identified("auc", 3),
    "identified, nats an answer": _identified("information", 2),
    "zones": _zones,
    "CaLIF reward": _fixed("reward"),
}
