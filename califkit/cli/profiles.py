"""What commands of a profile share: their options, its settings, how its runs are computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from califkit import CalifkitError
from califkit.cli.tables import show_table
from califkit.runs.params import Params, load_params
from califkit.runs.text import short
from califkit.runs.yaml_text import YamlError, read_yaml

Profile = Annotated[
    str, typer.Option(help="Name of a file in params/ without its ending, or a path to one.")
]
Override = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a setting, e.g. training.steps=5. Repeatable."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show which runs would be computed, and start nothing.")
]
AsJson = Annotated[bool, typer.Option("--json", help="The table as JSON, and nothing else.")]


class Unusable(CalifkitError):
    """Input that a command cannot use: exit code 2."""


class Failed(Exception):
    """Work that was started and failed: exit code 1."""


def params_of(profile: str, override: list[str]) -> Params:
    return load_params(profile, settings_of(override) or None)


def settings_of(override: list[str]) -> dict[str, Any]:
    """The tree of settings in ``--set`` options."""
    settings: dict[str, Any] = {}
    for item in override:
        key, sign, text = item.partition("=")
        if not sign or not all(key.split(".")):
            raise Unusable(f"--set {short(item)}: expected KEY=VALUE, e.g. training.steps=5")
        try:
            value = read_yaml(text)
        except YamlError as error:
            raise Unusable(f"--set {short(item)}: the value is not readable: {error}") from error
        *groups, name = key.split(".")
        place = settings
        for group in groups:
            place = place.setdefault(group, {})
            if not isinstance(place, dict):
                raise Unusable(f"--set {short(item)}: {group} was set to {place!r} before")
        place[name] = value
    return settings


def compute(
    params: Params,
    stages: list[Any],
    show: bool = True,
    before_judging: Callable[[], None] | None = None,
    dry_run: bool = False,
) -> list[Any]:
    """The runs of these stages: a single one in this process, several as jobs; on a dry run the
    table of what is missing, checked as it would be."""
    from califkit.runs.dispatch import check_stages, compute_all, job_list, missing_runs, run_stage
    from califkit.runs.jobs import JobError
    from califkit.runs.machine import RankError

    profile, execution = params.profile, params.settings.execution
    if dry_run:
        check_stages(profile, stages, execution)
        missing = [run.stage for run in missing_runs(profile, stages)]
        show_table(job_list(profile, missing), f"{len(missing)} runs would be computed")
        return []
    try:
        if len(stages) == 1 and execution.cluster == "local" and before_judging is None:
            runs = [run_stage(profile, stages[0], execution)]
        else:
            runs = compute_all(profile, stages, execution, before_judging=before_judging)
    except (JobError, RankError) as error:
        raise Failed(str(error)) from error
    if show:
        for run in runs:
            show_run(run)
    return runs


def show_run(run: Any) -> None:
    manifest = run.manifest()
    typer.echo(f"{run.folder}: complete, {manifest['rows']} rows")
