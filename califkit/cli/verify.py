"""The commands about verifiers: ``verify``, ``constraint`` and ``doctor``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from califkit.data.load import DataError

if TYPE_CHECKING:
    from califkit.evaluation.responses import Named, Responses
    from califkit.evaluation.verification import Change, Count, Summary


_SHOWN_NAMES = 10


def verify(
    responses: Annotated[Path, typer.Argument(help="JSONL file of responses.")],
    constraints: Annotated[
        str | None,
        typer.Option(
            help="JSONL file of prompts with their constraints, or ifbench. "
            "Default: those in the rows themselves, else ifbench."
        ),
    ] = None,
    semantics: Annotated[
        Literal["published", "repaired"], typer.Option(help="Which verdicts.")
    ] = "published",
    compare_semantics: Annotated[
        bool, typer.Option("--compare-semantics", help="Both, and what each repair changes.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="JSONL file for the verdict lists.")] = None,
    strip_reasoning: Annotated[
        bool, typer.Option("--strip-reasoning", help="Judge what follows the reasoning.")
    ] = False,
    skip_unusable: Annotated[
        bool, typer.Option("--skip-unusable", help="Leave unusable rows out and name them.")
    ] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Worker processes; default: one a CPU.")
    ] = None,
) -> None:
    """Verify a file of responses: accuracies with 95% intervals, and a table per id.

    Rows: prompt and response, key and response, evaluation or training rows with a response, or
    samples logged by lm-eval.
    """
    from concurrent.futures.process import BrokenProcessPool

    from califkit.evaluation.responses import load_prompts, open_responses
    from califkit.evaluation.verification import verify_responses

    _check_output(output)
    on_error = "quarantine" if skip_unusable else "raise"
    prompts = None if constraints is None else load_prompts(constraints, on_error)
    opened = open_responses(responses, prompts, on_error)
    both = ("published", "repaired")
    try:
        report = verify_responses(
            opened,
            output,
            both if compare_semantics else (semantics,),
            processes or available_processes(),
            strip_reasoning,
            progress=os.isatty(2),
        )
    except BrokenProcessPool as error:
        raise DataError(f"{responses}: a worker process was killed (memory?): {error}") from error
    _echo(_head(opened))
    for name, summary in report.summaries.items():
        _echo(_accuracies(name, summary))
        _echo(_table("family", summary.by_family()))
        _echo(_table("id", dict(sorted(summary.by_id.items()))))
        for error, n in summary.errors.most_common(_SHOWN_NAMES):
            typer.echo(f"check failed {n} times, counted as not followed: {error}")
    if report.changes is not None:
        _echo(_changes(report.changes))
    if output is not None:
        typer.echo(f"verdicts: {output}")


def _check_output(output: Path | None) -> None:
    if output is None:
        return
    if output.exists():
        raise DataError(f"{output}: exists; give a new file")
    if not output.parent.is_dir():
        raise DataError(f"{output}: the folder {output.parent} does not exist")


def available_processes() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)


def _head(opened: Responses) -> Iterator[str]:
    yield f"responses: {opened.path}"
    yield f"constraints: {opened.source}"
    yield f"prompts: {opened.n_prompts}"
    yield from _names("prompts without a response, counted as not followed", opened.missing)
    yield from _names("responses without a prompt, left out", opened.unmatched)
    if opened.replaced:
        yield f"responses replaced by a later one to the same prompt: {opened.replaced}"
    if opened.left_out:
        yield f"unusable rows, left out: {len(opened.left_out)}"
        for row in opened.left_out[:_SHOWN_NAMES]:
            yield f"  row {row.row} (key {row.key}): {row.reason}"
        yield from _more(len(opened.left_out))


def _names(what: str, named: Named) -> Iterator[str]:
    if named.n:
        yield f"{what}: {named.n}"
        yield from (f"  {name}" for name in named.first[:_SHOWN_NAMES])
        yield from _more(named.n)


def _more(n: int) -> Iterator[str]:
    if n > _SHOWN_NAMES:
        yield f"  ... and {n - _SHOWN_NAMES} more"


def _accuracies(semantics: str, summary: Summary) -> Iterator[str]:
    yield ""
    yield f"{semantics}: {summary.n_prompts} prompts, {summary.n_instructions} constraints"
    for name, accuracy in summary.accuracies().items():
        yield f"{name:<24} {accuracy.value:.6f}  [{accuracy.low:.4f}, {accuracy.high:.4f}]"


def _table(name: str, counts: Mapping[str, Count]) -> Iterator[str]:
    rows = [
        [key, str(c.n), f"{c.strict / c.n:.4f}", f"{c.loose / c.n:.4f}"]
        for key, c in counts.items()
    ]
    yield ""
    yield from _aligned([[name, "n", "strict", "loose"], *rows])


def _changes(changes: Mapping[str, Change]) -> Iterator[str]:
    """Ids whose verdicts change, the most changed first."""
    changed = sorted((id for id in changes if changes[id].total), key=lambda i: -changes[i].total)
    yield ""
    yield (
        f"verdicts that the repairs change ({len(changed)} of {len(changes)} repaired ids here); "
        "lost: passes published only, gained: passes repaired only"
    )
    rows = [
        [id, *map(str, (c.n, c.strict_lost, c.strict_gained, c.loose_lost, c.loose_gained))]
        for id in changed
        for c in [changes[id]]
    ]
    header = ["id", "n", "strict lost", "strict gained", "loose lost", "loose gained"]
    yield from _aligned([header, *rows])


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns side by side: the first one to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        numbers = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *numbers])


def constraint(
    id: Annotated[
        str | None, typer.Argument(help="A constraint id; without it all are listed.")
    ] = (None),
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The table of all ids for the documentation.")
    ] = False,
) -> None:
    """Show a constraint: instruction, parameters, examples, defect and repair; or list them all."""
    from califkit.verifiers import docs

    if markdown:
        typer.echo(docs.markdown(), nl=False)
    else:
        typer.echo(docs.listing() if id is None else docs.describe(id))


def doctor() -> None:
    """Show what is installed here and what is missing, each with the command that gets it."""
    from califkit.cli.doctor import findings

    for finding in findings():
        state = "ok     " if finding.is_there else "missing"
        typer.echo(f"{state}  {finding.what}: {finding.text}")
