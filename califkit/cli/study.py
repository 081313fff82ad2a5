"""The commands about a study as a whole: what it will take, where it stands, what it shows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from califkit import CalifkitError
from califkit.cli.profiles import (
    AsJson,
    DryRun,
    Failed,
    Override,
    Profile,
    Unusable,
    compute,
    params_of,
    settings_of,
)
from califkit.cli.tables import show_json, show_table
from califkit.runs.params import Params, load_params
from califkit.runs.text import one_line


def plan(
    profile: Profile = "h100",
    as_json: AsJson = False,
    override: Override = [],  # noqa: B006
) -> None:
    """What a profile, or all arms of a study, will take: memory, disk, tokens, hours.

    Nothing is submitted and no weights are read. Exit code 2 if something cannot fit.
    """
    from califkit.runs.arms import load_arms
    from califkit.runs.dispatch import job_list, missing_runs
    from califkit.training.plan import check_memory, plan_rows

    arms = load_arms(profile, settings_of(override))
    stages: dict[Any, Any] = {}
    for arm in arms:
        for params in arm.evaluations:
            wanted = [*params.settings.train_stages(), *params.settings.score_stages()]
            for run in missing_runs(params.profile, wanted):
                stages.setdefault(run.stage, params.settings.execution)
    states = {row["folder"]: row["state"] for row in job_list(arms[0].params.profile, list(stages))}
    rows = plan_rows(list(zip(stages, stages.values(), states.values(), strict=True)))
    if as_json:
        show_json(rows)
    else:
        _show_plan(arms, rows)
    problems = []
    for stage, execution in stages.items():
        if stage.kind == "training":
            try:
                check_memory(profile, stage, execution)
            except CalifkitError as error:
                problems.append(str(error))
    if problems:
        raise Unusable("\n".join(dict.fromkeys(problems)))


def _show_plan(arms: list[Any], rows: list[dict[str, Any]]) -> None:
    """The training prompts, the table, its sums, and what they rest on."""
    from califkit.data.prompts import training_prompts
    from califkit.training.plan import ASSUMPTIONS

    prompts = dict.fromkeys(arm.params.settings.data for arm in arms)
    per_step = arms[0].params.settings.training.prompts_per_step
    for data in prompts:
        try:
            loaded = training_prompts(data)
        except (CalifkitError, ValueError) as error:
            typer.echo(f"prompts: not read: {one_line(error)}")
        else:
            typer.echo(f"prompts: {loaded.summary()}")
            typer.echo(f"         {len(loaded.instances) // per_step} steps an epoch")
    show_table(rows, digits=1)
    hours = sum(row["GPU hours"] or 0 for row in rows)
    disk = sum(row["GB of disk"] or 0 for row in rows)
    typer.echo(f"\n{len(rows)} jobs, {hours:,.0f} GPU hours, {disk:,.0f} GB of disk")
    typer.echo("an estimate, not measured; it rests on:")
    for what, value in ASSUMPTIONS.items():
        typer.echo(f"  {what}: {value:g}")


def rehearse(
    profile: Profile = "paper",
    cluster: Annotated[str, typer.Option(help="local or slurm.")] = "local",
    gpus: Annotated[
        int, typer.Option(min=0, help="GPUs of a job; without any, transformers draws, not vLLM.")
    ] = 0,
    dry_run: DryRun = False,
) -> None:
    """The whole study with tiny models of the same architectures: every stage and every notebook.

    What is complete stays; the same command continues. Numbers mean nothing.
    """
    from califkit.exhibits.notebooks import NotebookFailed, execute
    from califkit.exhibits.rehearsal import rehearsal, study_stages

    if cluster not in ("local", "slurm"):
        raise Unusable(f"--cluster {cluster}: expected local or slurm")
    with rehearsal(profile, cluster, gpus) as written:
        typer.echo(f"rehearsal: {written.path}")
        for what in written.left_out:
            typer.echo(f"not rehearsed: {what}")
        params, stages = study_stages(written.profile)
        if dry_run:
            compute(params, stages, dry_run=True)
            return
        try:
            compute(params, stages, show=False)
            report = execute(written.profile)
        except NotebookFailed as error:
            raise Failed(str(error)) from error
    typer.echo(f"{len(stages)} runs and {len(report.results)} notebooks went through")
    typer.echo(f"figures: {report.folder.parent}")


def jobs(
    profile: Profile = "cpu",
    cancel: Annotated[bool, typer.Option("--cancel", help="End those that are alive.")] = False,
    as_json: AsJson = False,
    override: Override = [],  # noqa: B006
) -> None:
    """The runs of a profile, all arms of a study: what is there, running, waiting, to do."""
    from califkit.runs.arms import load_arms
    from califkit.runs.dispatch import cancel_jobs, job_list, with_needs

    params = params_of(profile, override)
    settings = params.settings
    stages = [settings.anchor_stage(), *settings.train_stages(), *settings.score_stages()]
    stages += [stage for arm in load_arms(profile, settings_of(override)) for stage in arm.stages]
    rows = job_list(params.profile, with_needs(stages))
    if as_json:
        show_json(rows)
    else:
        show_table(rows)
    if cancel:
        for job in cancel_jobs(params.profile, stages):
            typer.echo(f"cancelled: job {job.job_id}, {job.run.stage.kind} {job.run.stage.name}")


def reproduce(
    profile: Profile = "cpu",
    only: Annotated[
        list[str], typer.Option(help="Only this notebook, e.g. fig5_main_results. Repeatable.")
    ] = [],  # noqa: B006
    dry_run: DryRun = False,
) -> None:
    """Run the notebooks in order through papermill, and build the site of what they show."""
    from califkit.exhibits.exhibit import conclusions
    from califkit.exhibits.notebooks import NotebookFailed, execute, select
    from califkit.exhibits.recorded import compare_with_recorded
    from califkit.exhibits.site import build_site
    from califkit.runs.dispatch import check_stages

    params = params_of(profile, [])
    settings = params.settings
    stages: list[Any] = [*settings.train_stages(), *settings.score_stages()]
    stages += settings.identification_stages()
    stages += [] if only else settings.judge_stages()
    try:
        chosen = select(only or None)
        if dry_run:
            typer.echo(f"notebooks: {', '.join(chosen)}")
            compute(params, stages, dry_run=True)
            return
        if settings.execution.cluster == "local" or params.submit:
            check_stages(params.profile, stages, settings.execution)
        _show_what_is_missing(params, stages, len(chosen))
        report = execute(profile, names=only or None)
    except NotebookFailed as error:
        typer.echo(f"site: {build_site(params.profile).as_uri()}")
        raise Failed(str(error)) from error
    show_table(conclusions(report.folder.parent, chosen), "what the exhibits come to")
    typer.echo(f"\n{compare_with_recorded(params.profile, chosen).in_words(params.profile)}")
    typer.echo(f"figures: {report.folder.parent}")
    typer.echo(f"site:    {build_site(params.profile).as_uri()}")


def _show_what_is_missing(params: Params, stages: list[Any], n_notebooks: int) -> None:
    """The plan: how many runs of each kind will be computed."""
    from califkit.runs.dispatch import missing_runs

    kinds = Counter(run.stage.kind for run in missing_runs(params.profile, stages))
    runs = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
    typer.echo(f"{n_notebooks} notebooks; runs to compute: {runs}")


def export(
    out: Annotated[Path, typer.Option(help="New folder for policy, anchors and responses.")],
    method: Annotated[str, typer.Option(help="Whose policy.")] = "calif",
    seed: Annotated[int, typer.Option(help="Training seed.")] = 0,
    profile: Profile = "cpu",
    override: Override = [],  # noqa: B006
) -> None:
    """Write a trained policy, its anchors and responses as folders for a hub, each with a card."""
    from califkit.exhibits.cards import export_policy

    params = params_of(profile, override)
    stages = params.settings.train_stages()
    chosen = [stage for stage in stages if (stage.method, stage.seed) == (method, seed)]
    if not chosen:
        known = ", ".join(f"{stage.method} seed {stage.seed}" for stage in stages)
        raise Unusable(
            f"profile {params.profile} trains no {method} seed {seed}; it trains: {known}"
        )
    for path in export_policy(params.profile, chosen[0], params.settings, out):
        typer.echo(path)


def site(profile: Profile = "laptop") -> None:
    """Build the site of a profile from its executed notebooks: exhibits, documents, reference."""
    from califkit.exhibits.site import build_site

    typer.echo(f"site: {build_site(params_of(profile, []).profile).as_uri()}")


def notebooks(
    prepare: Annotated[Path, typer.Option(help="Folder for the parameterised copies.")],
    profile: Profile = "ci",
) -> None:
    """Write copies of the notebooks with a profile's parameters, without running them."""
    from califkit.exhibits.notebooks import prepare as write_copies

    for path in write_copies(profile, prepare):
        typer.echo(path)


def record(profile: Profile = "laptop") -> None:
    """Copy the rows and manifests of complete runs to results/, where notebooks find them."""
    from califkit.runs.folders import record_runs
    from califkit.runs.paths import runs_dir

    name = load_params(profile).profile
    recorded = record_runs(name)
    if not recorded:
        raise Unusable(f"{runs_dir() / name}: no complete run to record")
    for folder in recorded:
        typer.echo(folder)
