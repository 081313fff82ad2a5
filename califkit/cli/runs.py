"""The commands that compute the runs of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from califkit.cli.profiles import (
    DryRun,
    Override,
    Profile,
    Unusable,
    compute,
    params_of,
    show_run,
)
from califkit.cli.tables import show_table
from califkit.cli.verify import check_output

Method = Annotated[str | None, typer.Option(help="Only this method; base is the start.")]

anchors_app = typer.Typer(invoke_without_command=True)


@anchors_app.callback()
def anchors(
    context: typer.Context,
    profile: Profile = "cpu",
    override: Override = [],  # noqa: B006
    dry_run: DryRun = False,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Only every Nth batch, from batch I (0 to N - 1). Shards may run at the same "
            "time; the last to end completes the run.",
        ),
    ] = None,
) -> None:
    """Measure l0 and l1 of the training prompts under the reference, or report on them."""
    if context.invoked_subcommand:
        if profile != "cpu" or override or shard or dry_run:
            name = context.invoked_subcommand
            raise Unusable(f"options come after the command: califkit anchors {name} --profile ...")
        return
    params = params_of(profile, override)
    stage, execution = params.settings.anchor_stage(), params.settings.execution
    if dry_run or shard is None:
        compute(params, [stage], dry_run=dry_run)
        return
    numbers = _shard(shard)
    from califkit.anchors.measure import compute_anchors
    from califkit.runs.dispatch import check_stages

    check_stages(params.profile, [stage], execution)
    run = compute_anchors(params.profile, stage, execution, numbers)
    if run.is_complete:
        show_run(run)


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise Unusable(f"--shard {text!r}: expected I/N with I from 0 to N - 1, e.g. 0/4")
    return int(index), int(count)


@anchors_app.command("report")
def anchors_report(
    profile: Profile = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report as CSV and Markdown.")
    ] = None,
    probe: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="First draw 3 more answers a side for N prompts, which measures what one sample "
            "cannot tell. Bounds stay as they are; later reports use the draws too.",
        ),
    ] = None,
    override: Override = [],  # noqa: B006
) -> None:
    """Are the anchors healthy? Reversed bounds, lengths, loops, coverage and what follows."""
    from califkit.anchors.probe import draw_probe, read_probe
    from califkit.anchors.report import health_report
    from califkit.anchors.table import load_anchors
    from califkit.data.prompts import training_prompts
    from califkit.exhibits.exhibit import write_table
    from califkit.models.engines import EngineError
    from califkit.runs.folders import open_run

    params = params_of(profile, override)
    if out is not None and out.exists() and not out.is_dir():
        raise Unusable(f"{out}: is not a folder")
    run = open_run(params.profile, params.settings.anchor_stage())
    table = load_anchors(run)
    try:
        instances = training_prompts(params.settings.data).instances
    except ValueError as error:  # of the loaders and of the composer
        raise Unusable(f"settings.data: {error}") from error
    if probe is not None:
        try:
            draw_probe(run, instances, params.settings.execution, probe)
        except EngineError as error:
            raise Unusable(f"settings.{error}") from error
    health = health_report(table, instances, read_probe(run, instances))
    tables = {"health": health.summary} | health.details
    for name, detail in tables.items():
        show_table(detail, name if len(detail) else f"{name}: none", digits=3)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            for path in write_table(out, f"anchors_{name}", detail):
                typer.echo(path)
    comments = health.summary["comment"]
    for warning in comments[comments.str.startswith("WARNING")]:
        typer.echo(warning, err=True)


@anchors_app.command("import")
def anchors_import(
    cache: Annotated[Path, typer.Argument(help="JSON file with metadata and items.")],
    profile: Profile = "cpu",
    shuffle_seed: Annotated[
        int, typer.Option(min=0, help="Seed of the shuffle that numbered its items.")
    ] = 1,
    validation: Annotated[
        int, typer.Option(min=0, help="Rows that were split off before they were numbered.")
    ] = 512,
    override: Override = [],  # noqa: B006
) -> None:
    """Take the anchors of the profile from a cache of the method's authors.

    Some of its answers are scored again first: it must be of this model and of these prompts.
    """
    from califkit.anchors.exchange import import_cache
    from califkit.runs.dispatch import check_stages

    params = params_of(profile, override)
    stage, execution = params.settings.anchor_stage(), params.settings.execution
    check_stages(params.profile, [stage], execution)
    show_run(import_cache(cache, params.profile, stage, execution, shuffle_seed, validation))


@anchors_app.command("export")
def anchors_export(
    out: Annotated[Path, typer.Option(help="Parquet file to write.")],
    profile: Profile = "cpu",
    override: Override = [],  # noqa: B006
) -> None:
    """Write bounds and answers as one Parquet file of plain columns, a row an answer."""
    from califkit.anchors.exchange import export_anchors
    from califkit.data.prompts import training_prompts
    from califkit.runs.folders import open_run, require_complete

    params = params_of(profile, override)
    check_output(out)
    run = require_complete(open_run(params.profile, params.settings.anchor_stage()))
    count = export_anchors(run, training_prompts(params.settings.data).instances, out)
    typer.echo(f"{out}: {count} answers")


def _of_method(stages: Sequence[Any], method: str | None) -> list[Any]:
    """The stages that are about the policies of a method; all of them without one."""
    named = [(stage, getattr(stage, "responses", stage).method) for stage in stages]
    chosen = [stage for stage, name in named if method in (None, name)]
    if stages and not chosen:
        known = ", ".join(dict.fromkeys(name for _, name in named))
        raise Unusable(f"--method {method}: the profile has {known}")
    return chosen


def train(
    profile: Profile = "cpu",
    method: Method = None,
    seed: Annotated[int | None, typer.Option(help="Only this training seed.")] = None,
    override: Override = [],  # noqa: B006
    dry_run: DryRun = False,
) -> None:
    """Train the profile's policies; several run side by side as the machine allows."""
    params = params_of(profile, override)
    stages = [
        stage
        for stage in params.settings.train_stages()
        if method in (None, stage.method) and seed in (None, stage.seed)
    ]
    if not stages:
        known = [f"{s.method} seed {s.seed}" for s in params.settings.train_stages()]
        raise Unusable(
            f"profile {params.profile} trains no method {method!r} with seed {seed!r}; "
            f"it trains: {', '.join(known)}"
        )
    compute(params, stages, dry_run=dry_run)


def generate(
    profile: Profile = "cpu",
    method: Method = None,
    override: Override = [],  # noqa: B006
    dry_run: DryRun = False,
) -> None:
    """Draw the responses of every policy of the profile (training what is missing)."""
    params = params_of(profile, override)
    compute(params, _of_method(params.settings.generate_stages(), method), dry_run=dry_run)


def evaluate(
    profile: Profile = "cpu",
    method: Method = None,
    override: Override = [],  # noqa: B006
    dry_run: DryRun = False,
) -> None:
    """Score every policy of the profile and print the table (computing what is missing)."""
    from califkit.exhibits.summary import metrics_by_run, summary_table

    params = params_of(profile, override)
    scores = _of_method(params.settings.score_stages(), method)
    identified = _of_method(params.settings.identification_stages(), method)
    runs = compute(params, [*scores, *identified], show=False, dry_run=dry_run)
    if dry_run:
        return
    scored = runs[: len(scores)]
    table = summary_table(metrics_by_run(scored, identification_runs=runs[len(scores) :]))
    show_table(table, digits=3)


def judge(
    profile: Profile = "cpu",
    limit: Annotated[
        int, typer.Option(min=0, help="More calls than this need --yes.", show_default=True)
    ] = 500,
    yes: Annotated[bool, typer.Option("--yes", help="Make the calls, however many.")] = False,
    override: Override = [],  # noqa: B006
    dry_run: DryRun = False,
) -> None:
    """Have the profile's judges grade its responses, CaLIF against IF-RLVR, and the rubrics.

    What is missing of responses and policies is computed first. Then the calls for all of it, their
    tokens and, if the judges have prices, their cost are shown, before the first call is made;
    calls whose answers are there already are free.
    """
    from califkit.evaluation.estimate import estimates
    from califkit.evaluation.quality import quality_by_run
    from califkit.exhibits.pairs import pair_table
    from califkit.exhibits.rubrics import by_run, rubric_table

    params = params_of(profile, override)
    settings, execution = params.settings, params.settings.execution
    if settings.judge is None:
        known = ", ".join(j.name for j in execution.judges) or "none"
        raise Unusable(
            f"profile {params.profile} has no judge: describe one in settings.execution.judges and "
            f"name it in settings.judge (--set judge=NAME); described there: {known}"
        )
    parts = (settings.quality_stages(), settings.pairwise_stages(), settings.rubric_stages())
    stages = [stage for part in parts for stage in part]

    if dry_run:
        compute(params, stages, dry_run=True)
        return

    def tell_calls() -> None:
        expected = estimates(params.profile, stages, execution)
        for name, estimate in expected.items():
            typer.echo(f"judge {name}: {estimate}")
        first, *others = expected.values()
        total = sum(others, first)
        if others:
            typer.echo(f"{len(expected)} judges together: {total}")
        if total.calls > limit and not yes:
            raise Unusable(
                f"{total.calls} calls are more than --limit {limit}; add --yes to make them"
            )

    runs = iter(compute(params, stages, show=False, before_judging=tell_calls))
    graded, paired, met = (list(islice(runs, len(part))) for part in parts)
    tables = [quality_by_run(graded), pair_table(paired)]
    if met:
        tables.append(rubric_table(by_run(met), settings))
    for table in tables:
        if len(table):
            show_table(table, digits=3)
