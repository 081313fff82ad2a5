"""The commands about verifiers: ``verify``, ``constraint`` and ``doctor``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from califkit.cli.options import Constraints, Filter, OwnVerifiers, Processes, Semantics, Thinking
from califkit.cli.tables import show_table
from califkit.data.load import DataError
from califkit.models.reasoning import in_words
from califkit.runs.machine import cores

if TYPE_CHECKING:
    from califkit.evaluation.response_files import Named, Responses
    from califkit.evaluation.verdicts import Change, Count, Summary

_SHOWN_NAMES = 10


def verify(
    responses: Annotated[Path, typer.Argument(help="JSONL file of responses.")],
    constraints: Constraints = None,
    filter: Filter = None,
    semantics: Semantics = "published",
    compare_semantics: Annotated[
        bool, typer.Option("--compare-semantics", help="Both, and what each repair changes.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="JSONL file for the verdict lists.")] = None,
    strip_reasoning: Annotated[
        bool, typer.Option("--strip-reasoning", hidden=True, help="What is always done.")
    ] = False,
    thinking: Thinking = False,
    skip_unusable: Annotated[
        bool, typer.Option("--skip-unusable", help="Leave unusable rows out and name them.")
    ] = False,
    processes: Processes = None,
    verifiers: OwnVerifiers = None,
) -> None:
    """Verify a file of responses: accuracies with 95% intervals, and a table per id.

    Rows: prompt and response, key and response, evaluation or training rows with a response, or
    samples logged by lm-eval.
    """
    from califkit.evaluation.response_files import open_responses
    from califkit.evaluation.verdicts import verify_responses

    check_output(out)
    on_error = "quarantine" if skip_unusable else "raise"
    opened = open_responses(responses, constraints, on_error, filter=filter)
    reports = verify_responses(
        opened,
        out,
        ("published", "repaired") if compare_semantics else (semantics,),
        processes or cores(),
        thinking,
        progress=True,
    )
    echo(head(opened, "counted as not followed", thinking))
    for name, report in reports.items():
        of_filter = "" if name is None else f"filter {name!r}, "
        for of_semantics, summary in report.summaries.items():
            show_table(_accuracies(summary), f"{of_filter}{of_semantics}: {_counts(summary)}")
            show_table(_counted("suite", summary.by_suite()))
            show_table(_counted("id", dict(sorted(summary.by_id.items()))))
            for error, n in summary.errors.most_common(_SHOWN_NAMES):
                typer.echo(f"check failed {n} times, counted as not followed: {error}")
        if compare_semantics:
            _show_changes(report.changes)
    if out is not None:
        typer.echo(f"verdicts: {out}")


def check_output(output: Path | None, may_exist: bool = False) -> None:
    """Refuse a file that is there, or whose folder is not: the name may be a slip."""
    if output is None:
        return
    if output.exists() and not may_exist:
        raise DataError(f"{output}: exists; give a new file")
    if not output.parent.is_dir():
        raise DataError(f"{output}: the folder {output.parent} does not exist")


def echo(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)


def head(opened: Responses, missing: str, thinking: bool) -> Iterator[str]:
    """What a response file holds, and what is taken for an answer; `missing` says what happens to a
    prompt without a response."""
    yield in_words(thinking)
    yield from opened.cuts.in_words("responses", thinking)
    yield f"responses: {opened.path}"
    yield f"constraints: {opened.source}"
    yield f"prompts: {len(opened)}"
    yield from _names(f"prompts without a response, {missing}", opened.missing)
    yield from _names("responses without a prompt, left out", opened.unmatched)
    yield from _names("responses identical to another one to the same prompt", opened.identical)
    if not opened.says_cut:
        yield "responses cut at the token limit: not known, the rows have no finish_reason"
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


def _counts(summary: Summary) -> str:
    """Numbers of prompts, responses and constraints, and how many responses were cut."""
    n = summary.n_prompts
    text = f"{n} prompts, {summary.n_instructions} constraints"
    if summary.n_responses > n:
        text = f"{summary.n_responses} responses to {text}"
    if summary.says_cut:
        text += f"; {summary.n_cut} responses cut at the token limit"
    return text


def _accuracies(summary: Summary) -> Iterator[dict[str, Any]]:
    for name, accuracy in summary.accuracies().items():
        row = {
            "accuracy": name,
            "all": f"{accuracy.value:.6f}",
            "95% interval": f"[{accuracy.low:.4f}, {accuracy.high:.4f}]",
        }
        if summary.n_answered < summary.n_responses:
            row[f"answered ({summary.n_answered})"] = accuracy.answered
        if summary.says_cut:
            row[f"finished ({summary.n_finished})"] = accuracy.finished
        yield row


def _counted(name: str, counts: Mapping[str, Count]) -> Iterator[dict[str, Any]]:
    for key, count in counts.items():
        shares = {"strict": count.strict / count.n, "loose": count.loose / count.n}
        yield {name: key, "n": count.n} | shares


def _show_changes(changes: Mapping[str, Change]) -> None:
    """Ids whose verdicts change, the most changed first."""
    changed = sorted((id for id in changes if changes[id].total), key=lambda i: -changes[i].total)
    title = (
        f"verdicts that the repairs change ({len(changed)} of {len(changes)} repaired ids here); "
        "lost: passes published only, gained: passes repaired only"
    )
    rows = [
        {"id": id} | {name.replace("_", " "): n for name, n in asdict(changes[id]).items()}
        for id in changed
    ]
    show_table(rows, title)


def constraint(
    id: Annotated[
        str | None, typer.Argument(help="A constraint id; without it all are listed.")
    ] = (None),
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The table of all ids for the documentation.")
    ] = False,
    verifiers: OwnVerifiers = None,
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
