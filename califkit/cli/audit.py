"""The command ``audit``: is the second of two response files from a hacked policy?"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from califkit.cli.options import (
    Constraints,
    Filter,
    Identify,
    OwnVerifiers,
    Processes,
    Semantics,
    Thinking,
    TokensPerPass,
)
from califkit.cli.verify import echo
from califkit.data.load import DataError
from califkit.models.reasoning import in_words
from califkit.runs.machine import cores
from califkit.runs.yaml_text import YamlError, read_yaml

if TYPE_CHECKING:
    from califkit.judges.judge import Judge


def audit(
    base: Annotated[Path, typer.Argument(help="JSONL file of the base policy's responses.")],
    trained: Annotated[Path, typer.Argument(help="The trained policy's, to the same prompts.")],
    constraints: Constraints = None,
    filter: Filter = None,
    reference: Annotated[
        str | None,
        typer.Option(help="Model that measures log-likelihood, best the base policy itself."),
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="Name of the judge of Response Quality in --judges.")
    ] = None,
    judges: Annotated[
        Path | None, typer.Option(help="YAML file with a list 'judges' of judge settings.")
    ] = None,
    identify: Identify = None,
    out: Annotated[Path, typer.Option(help="Folder for audit.html, audit.json and scores.")] = Path(
        "audit"
    ),
    semantics: Semantics = "published",
    thinking: Thinking = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
    processes: Processes = None,
    tokens_per_pass: TokensPerPass = 2048,
    verifiers: OwnVerifiers = None,
) -> None:
    """Is the second policy hacking its verifier? A page, numbers and the worst examples.

    Layouts are those of verify. Works without a model: --reference and --judge add their numbers.
    The same command continues where it was interrupted.
    """
    from califkit.audit.files import audit_files
    from califkit.audit.page import write_audit

    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: is not a folder")
    grader = _judge(judge, judges, out / "judge.jsonl")
    report, source = audit_files(
        base,
        trained,
        out,
        constraints=constraints,
        filter=filter,
        reference=reference,
        judge=grader,
        identify=identify,
        semantics=semantics,
        thinking=thinking,
        seed=seed,
        processes=processes or cores(),
        tokens_per_pass=tokens_per_pass,
        progress=True,
    )
    written = write_audit(report, out, source, shlex.join(["califkit", *sys.argv[1:]]))
    typer.echo(in_words(thinking))
    for side, cuts in source.cuts.items():
        echo(cuts.in_words(f"{side} responses", thinking))
    typer.echo(f"verdict: {report.verdict.word}")
    typer.echo(f"because {report.verdict.because}")
    for line in report.verdict.evidence:
        typer.echo(f"  {line}")
    for what, why in report.not_checked:
        typer.echo(f"not checked: {what}: {why}")
    for path in written:
        typer.echo(path)


def _judge(name: str | None, path: Path | None, cache: Path) -> Judge | None:
    """The judge of that name in a file ``judges: [...]``; without a name the only one."""
    if path is None:
        if name is not None:
            raise DataError(f"--judge {name}: name the file that describes it with --judges")
        return None
    from pydantic import ValidationError

    from califkit.judges.judge import Judge
    from califkit.runs.judge_settings import JudgeSettings

    try:
        content = read_yaml(path)
    except YamlError as error:
        raise DataError(f"{path}: not readable: {error}") from error
    listed = content.get("judges") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise DataError(f"{path}: expected a list of judges under the key 'judges'")
    names = [str(entry.get("name"))[:80] for entry in listed]
    if name is None and len(listed) != 1:
        raise DataError(f"{path}: choose one of its judges with --judge: {', '.join(names)}")
    if name is not None and name not in names:
        raise DataError(f"{path}: has no judge {name!r}; there are: {', '.join(names) or 'none'}")
    entry = listed[0 if name is None else names.index(name)]
    try:
        return Judge(JudgeSettings(**entry), cache)
    except (ValidationError, TypeError) as error:
        raise DataError(f"{path}, judge {name or names[0]}: {_problems(error)}") from error


def _problems(error: Exception) -> str:
    """What is wrong with settings, without the values: one could be a key."""
    if not hasattr(error, "errors"):
        return "its keys must be text"
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'settings'}: {problem['msg']}"
        for problem in error.errors()
    )
