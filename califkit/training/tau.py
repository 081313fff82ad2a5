"""The threshold of a judge reward, measured on the reference answers before the first step (A5)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from califkit.anchors.rows import AnchorError, read_draws
from califkit.data.load import Instance
from califkit.judges.client import api_key
from califkit.judges.judge import Judge, JudgeError
from califkit.judges.prompts import quality_question, quality_version
from califkit.rewards.judge import Grader
from califkit.runs.folders import Run, StaleRunError
from califkit.runs.jsonl import write_json
from califkit.runs.judge_settings import JudgeSettings
from califkit.runs.settings import Execution, ParamsError
from califkit.runs.stages import TrainStage
from califkit.runs.text import say

TAU = "tau.json"

MANY_UNSCORED = 0.1
"""With a larger share of unscored reference answers there is no tau."""


@dataclass(frozen=True)
class Tau:
    """The threshold of a run and where it comes from; the counts are of reference answers.

    ``empty`` ones are not put to the judge: like the bounds, they are missing. ``unscored`` has a
    count for each status.
    """

    value: float
    measured: bool
    prompt_version: str
    scored: int = 0
    unscored: Mapping[str, int] | None = None
    empty: int = 0
    judge_models: Sequence[str] = ()


def judge_settings(stage: TrainStage, execution: Execution) -> JudgeSettings:
    """How the judge of a stage is reached. `ParamsError` for what can be told in advance: no judge
    or alpha, another judge in ``execution``, no key, or more calls than ``max_calls``."""
    for name in ("judge", "alpha"):
        if getattr(stage, name) is None:
            raise ParamsError(f"method {stage.method} needs {name}, and the stage has none")
    settings = execution.judge_like(stage.judge)
    try:
        api_key(settings)
    except JudgeError as error:
        raise ParamsError(str(error)) from error
    calls = stage.training.steps * _calls_per_step(stage)
    if settings.max_calls is not None and calls > settings.max_calls:
        raise ParamsError(
            f"judge {settings.name}: training may take {calls} calls, one a rollout; max_calls is "
            f"{settings.max_calls}"
        )
    return settings


def fixed_tau(
    run: Run,
    settings: JudgeSettings,
    anchors: Run,
    instances: Sequence[Instance],
    cache_path: Path,
) -> Tau:
    """The tau of a training run: as it was begun with, else given, else measured now.

    Prints what the judge may cost, which must not exceed ``max_cost`` (`JudgeError`). Kept in `TAU`
    in the folder of the run, which `StaleRunError` protects from another wording of the prompt.
    """
    path = run.folder / TAU
    stored = Tau(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
    version = quality_version(settings.prompt)
    if stored and stored.prompt_version != version:
        raise StaleRunError(
            f"{run.folder}: was begun with another wording of the judge's prompt; delete the "
            "folder to begin again"
        )
    say(_cost(run.stage, settings, anchors, instances))
    if stored:
        return stored
    if run.stage.tau is not None:
        tau = Tau(run.stage.tau, measured=False, prompt_version=version)
    else:
        tau = measure_tau(anchors, instances, Judge(settings, cache_path))
        say(
            f"train {run.stage.name}: tau = {tau.value:.3f}, the mean score of {tau.scored} "
            "reference answers"
        )
    run.folder.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(tau))
    return tau


def measure_tau(anchors: Run, instances: Sequence[Instance], judge: Grader) -> Tau:
    """Mean score of the constrained reference answers y0 as answers to the request alone (A5).

    Of a complete anchor run; answers to other prompts than ``instances`` are passed over. Unscored
    answers are left out and counted, as are empty ones. `JudgeError` names the reasons if none is
    scored or more than `MANY_UNSCORED` of them are not.
    """
    items, empty = _reference_answers(anchors, instances)
    verdicts = judge.quality(items)
    scores = [verdict.value for verdict in verdicts if verdict.status == "ok"]
    reasons = {v.status: v.reason for v in reversed(verdicts) if v.status != "ok"}
    unscored = Counter(v.status for v in verdicts if v.status != "ok")
    if not scores or sum(unscored.values()) > MANY_UNSCORED * len(items):
        listed = "; ".join(
            f"{n} {status}, the first: {reasons[status]}" for status, n in unscored.most_common()
        )
        raise JudgeError(
            f"tau cannot be measured: {sum(unscored.values())} of {len(items)} reference answers "
            f"are unscored ({listed})"
        )
    return Tau(
        value=float(np.mean(scores)),
        measured=True,
        prompt_version=verdicts[0].prompt_version,
        scored=len(scores),
        unscored=dict(unscored),
        empty=empty,
        judge_models=sorted({verdict.model for verdict in verdicts if verdict.model}),
    )


def _reference_answers(
    anchors: Run, instances: Sequence[Instance]
) -> tuple[list[tuple[str, str]], int]:
    """(x, y0) of all samples that are not empty, and the number of those that are."""
    requests = {instance.key: instance.x for instance in instances}
    drawn = [
        (requests[row["key"]], row["answer"])
        for row in read_draws(anchors.folder)
        if row["side"] == "constrained" and row["key"] in requests
    ]
    items = [(x, y) for x, y in drawn if y.strip()]
    if not items:
        raise AnchorError(f"{anchors.folder}: holds no constrained answer to these prompts")
    return items, len(drawn) - len(items)


def _calls_per_step(stage: TrainStage) -> int:
    return stage.training.prompts_per_step * stage.training.rollouts_per_prompt


def _cost(
    stage: TrainStage, settings: JudgeSettings, anchors: Run, instances: Sequence[Instance]
) -> str:
    """What training may take, if rollouts are as long as the reference answers."""
    items, _ = _reference_answers(anchors, instances)
    questions = [quality_question(x, y, settings.prompt) for x, y in items]
    sample = Judge(settings).estimate(questions)
    calls = stage.training.steps * _calls_per_step(stage)
    price = "price not known"
    if sample.cost is not None:
        cost = sample.cost / sample.calls * calls
        if settings.max_cost is not None and cost > settings.max_cost:
            raise JudgeError(
                f"judge {settings.name}: training may cost about {cost:.2f}; max_cost is "
                f"{settings.max_cost}"
            )
        price = f"at most about {cost:.2f}"
    n_input, n_output = sample.input_tokens, sample.output_tokens
    return (
        f"train {stage.name}: judge {settings.name}: at most {_calls_per_step(stage)} calls a "
        f"step, {calls:,} in {stage.training.steps} steps; about {n_input // sample.calls} input "
        f"and {n_output // sample.calls} output tokens a call, {price}"
    )
