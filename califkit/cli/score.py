"""The command ``score``: likelihood and CaLIF reward of a file of responses, offline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from califkit.data.load import DataError

if TYPE_CHECKING:
    from califkit.evaluation.scorable import ScorableFile
    from califkit.evaluation.scoring_files import Settings, Summary


def score(
    responses: Annotated[Path, typer.Argument(help="JSONL file of responses.")],
    reference: Annotated[
        str, typer.Option(help="Model whose likelihood is measured: a name, a folder or a hub id.")
    ],
    constraints: Annotated[
        str | None,
        typer.Option(
            help="JSONL file of prompts with their constraints, or ifbench. "
            "Default: those in the rows themselves; for rows without a request, else ifbench."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="JSONL file to write. Default: RESPONSES.scores.jsonl.")
    ] = None,
    alpha: Annotated[float, typer.Option(help="Size of the bonus of CaLIF.")] = 0.1,
    semantics: Annotated[
        Literal["published", "repaired"], typer.Option(help="Which verdicts r_ver counts.")
    ] = "published",
    no_end: Annotated[
        bool,
        typer.Option(
            "--no-end", help="Add no end-of-turn token to responses that come without token ids."
        ),
    ] = False,
    thinking: Annotated[
        bool,
        typer.Option(
            "--thinking", help="Drawn in thinking mode: a response without </think> has no answer."
        ),
    ] = False,
    tokens_per_pass: Annotated[
        int, typer.Option(min=1, help="Padded tokens in one forward pass; bounds memory.")
    ] = 2048,
) -> None:
    """Score a file of responses: average log-likelihood given the request alone, and more.

    Layouts are those of verify; rows of request and response will do. Columns used where they are
    there: request, token_ids, constraints, l0, l1. With l0 and l1: zone and CaLIF reward.
    The same command continues where it was interrupted.
    """
    from califkit.evaluation.scorable import ScorableFile
    from califkit.evaluation.scoring_files import Settings, score_file, summarise

    if not alpha > 0:
        raise DataError(f"--alpha {alpha}: must be positive")
    settings = Settings(reference, semantics, alpha, not no_end, thinking)
    output = out or responses.with_suffix(".scores.jsonl")
    rows = ScorableFile(responses, constraints)
    score_file(rows, output, settings, tokens_per_pass)
    for line in _report(rows, summarise(output), settings):
        typer.echo(line)
    typer.echo(f"scores: {output}")


def _report(rows: ScorableFile, summary: Summary, settings: Settings) -> Iterator[str]:
    yield f"responses: {rows.path}, {summary.rows} scored under {settings.reference}"
    if rows.joined is not None:
        if rows.joined.missing.n:
            yield f"prompts without a response, not scored: {rows.joined.missing.n}"
        if rows.joined.unmatched.n:
            yield f"responses without a prompt, left out: {rows.joined.unmatched.n}"
        if rows.joined.replaced:
            yield f"responses replaced by a later one to the same prompt: {rows.joined.replaced}"
    names = {
        "column": "their column",
        "split": "the prompt, with its constraints cut off",
        "prompt": "the WHOLE prompt, which could not be cut (l is not given the request alone)",
    }
    for source, name in names.items():
        if summary.request_sources[source]:
            yield f"request from {name}: {summary.request_sources[source]} rows"
    if summary.ids_from["text"]:
        end = "with" if settings.end else "without"
        yield (
            f"token ids from the text, {end} an end-of-turn token: {summary.ids_from['text']} rows"
        )
    yield ""
    yield f"{'mean l, nats per token':<28} {summary.loglik:.4f}"
    yield f"{'empty answers, no l':<28} {summary.empty:.1%}"
    yield f"{'tokens':<28} {summary.tokens:.1f}"
    yield f"{'distinct-2':<28} {summary.distinct_2:.4f}"
    if summary.r_ver == summary.r_ver:
        yield f"{'r_ver':<28} {summary.r_ver:.4f}"
    if summary.zones.total():
        shares = ", ".join(f"{z} {n / summary.zones.total():.1%}" for z, n in summary.zones.items())
        yield f"{'zones':<28} {shares}"
    if summary.reward == summary.reward:
        yield f"{'CaLIF reward':<28} {summary.reward:.4f}"
