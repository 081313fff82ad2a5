"""The command line: the same stage functions that the notebooks call.

Input that cannot be used ends with one message on standard error and exit code 2; a job or a
notebook that fails ends with exit code 1.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from califkit import CalifkitError, __version__
from califkit.cli import audit, runs, score, study, verify
from califkit.cli.profiles import Failed, Unusable
from califkit.runs.text import QUIET, one_line

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"califkit {__version__}")
        raise typer.Exit


@app.callback()
def califkit(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show it.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Results and errors only: no progress.")
    ] = False,
) -> None:
    """Calibrated likelihood for instruction following: rewards, verifiers, experiments."""
    if quiet:
        os.environ[QUIET] = "1"


def compose(
    output: Annotated[Path, typer.Argument(help="JSONL file to write.")],
    n: Annotated[int, typer.Option(help="Number of prompts.")] = 64,
    seed: int = 0,
    min_constraints: int = 1,
    max_constraints: int = 5,
) -> None:
    """Write composed training prompts in the layout of the hub's training set."""
    from califkit.data.composer import compose as compose_rows
    from califkit.runs.jsonl import RowLog

    verify.check_output(output)
    try:
        rows = compose_rows(
            n, seed, min_constraints=min_constraints, max_constraints=max_constraints
        )
    except ValueError as error:
        raise Unusable(str(error)) from error
    RowLog(output).keep(rows)
    typer.echo(f"{output}: {len(rows)} prompts")


def data(
    source: Annotated[
        str, typer.Argument(help="ifbench, a JSONL file, or hub:<name> with --split.")
    ] = "ifbench",
    split: Annotated[str, typer.Option(help="Split of a hub data set.")] = "train",
) -> None:
    """Load and check a data set: count, hash, and every row that cannot be used with its reason.

    Exit code 2 if a file has such rows; published data sets may.
    """
    from califkit.data import load as loaders

    if source == "ifbench":
        loaded = loaders.load_ifbench_wheel()
    elif source.startswith("hub:"):
        loaded = loaders.load_hub(source.removeprefix("hub:"), split=split)
    else:
        loaded = loaders.load_jsonl(source, on_error="quarantine")
    typer.echo(loaded.summary())
    for row in loaded.quarantined:
        typer.echo(f"row {row.row} (key {row.key}): {row.reason}")
    if loaded.quarantined and loaded.source == source:
        raise Unusable(f"{source}: {len(loaded.quarantined)} of {loaded.n_rows} rows are unusable")


def model(name: Annotated[str, typer.Argument()] = "smollm2-135m-instruct") -> None:
    """Make a model available locally (the bundled one is converted once) and print its folder."""
    from califkit.models.resolve import resolve

    typer.echo(resolve(name))


def version() -> None:
    """Versions of califkit and of the packages that can move a number."""
    from califkit.runs.folders import versions

    for name, number in versions().items():
        typer.echo(f"{name} {number}")


_PANELS = {
    "Files of responses, anybody's": (verify.verify, audit.audit, score.score),
    "Runs of a profile, each computed once": (
        runs.train,
        runs.generate,
        runs.evaluate,
        runs.judge,
        study.reproduce,
    ),
    "What there is of them, and what it shows": (
        study.plan,
        study.rehearse,
        study.jobs,
        study.export,
        study.site,
        study.notebooks,
        study.record,
    ),
    "Models, data, constraints, this installation": (
        verify.constraint,
        compose,
        data,
        model,
        verify.doctor,
        version,
    ),
}
for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)
app.add_typer(
    runs.anchors_app, name="anchors", rich_help_panel="Runs of a profile, each computed once"
)


def main() -> None:
    """Entry point of the ``califkit`` command."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.stdout.reconfigure(errors="backslashreplace")  # a file's name need not be Unicode
    try:
        app()
    except CalifkitError as error:
        _fail(error, 2)
    except OSError as error:  # a folder that cannot be written, a model file that cannot be read
        named = f"{error.filename}: {error.strerror}" if error.filename else error
        _fail(one_line(named), 2)
    except Failed as error:
        _fail(error, 1)
    except SystemExit as end:
        if end.code == 130:  # how typer ends on Ctrl-C
            _fail("interrupted; the same command continues", 130)
        raise


def _fail(message: object, code: int) -> None:
    typer.echo(f"califkit: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
