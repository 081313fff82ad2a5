"""Judges as rewards (paper section 2.4, "Judge reward"; open point A5).

The reward is ``r_ver + alpha * [r_ver > 0 and s > tau]`` (`califkit.rewards.judge_reward`). s is
the judge's score, from 1 to 10, of the final answer given the request x alone, by the prompt of
response quality. Only rollouts with r_ver > 0 are put to the judge, as no other can earn the bonus.
One that stays unscored earns none and is counted.

tau is the mean score that this very judge gives to the constrained reference answers y0 of the
training prompts, fixed before the first step. The authors' development code has whole thresholds
instead, s >= t (8 for the self-judge, 7 for Qwen3-30B-A3B): a given tau of t - 0.5 is that rule.

Two methods share the rule and differ in the judge. ``stronger_judge`` asks a larger model.
``self_judge`` asks the starting policy behind an endpoint of its own, which training does not
touch: ``vllm serve`` or ``transformers serve`` of the very model that training starts from. Both
judge at temperature 0 and without reasoning (A5); where a model reasons by default, switch that off
in the judge's settings, for Qwen3 by ``chat_template_kwargs: {enable_thinking: false}`` in
``extra_body``. ``concurrency`` counts the calls of one process.
"""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, get_args

import numpy as np

from califkit.anchor_rows import AnchorError, read_draws
from califkit.data import Instance
from califkit.judge_settings import JudgeSettings
from califkit.judges import Judge, JudgeError, Verdict
from califkit.judges.client import api_key
from califkit.judges.prompts import QUALITY_VERSION, quality_question
from califkit.judges.verdicts import Status
from califkit.metrics import nan_mean
from califkit.params import JUDGE_METHODS, Execution, ParamsError, TrainStage
from califkit.rewards import RewardRule, judge_reward
from califkit.runs import Run, StaleRunError, write_json

TAU = "tau.json"

MANY_UNSCORED = 0.1
"""With a larger share of unscored reference answers there is no tau."""

DEAD = 8
"""So many calls of one process in a step, every one of them failed, end the training."""


class Grader(Protocol):
    """What a reward needs of a judge; `califkit.judges.Judge` has it."""

    def quality(self, items: Sequence[tuple[str, str]]) -> Sequence[Verdict]:
        """A verdict (``status``, ``value``, ``reason``) for every (x, y), in their order."""


@dataclass(frozen=True)
class JudgeRule:
    """The judge reward of a training run.

    Parameters
    ----------
    method
        One of `califkit.params.JUDGE_METHODS`.
    alpha
        Size of the bonus, positive.
    judge
        Who scores.
    tau
        The score that has to be exceeded.

    Raises
    ------
    ValueError
        If one of them is missing or cannot be used.
    """

    method: str
    alpha: float
    judge: Grader
    tau: float

    def __post_init__(self) -> None:
        for name in ("alpha", "judge", "tau"):
            if getattr(self, name) is None:
                raise ValueError(f"method {self.method!r} needs {name}, got None")
        if not math.isfinite(self.tau):
            raise ValueError(f"tau must be a finite score, got {self.tau}")
        judge_reward([], [], self.tau, self.alpha)  # refuses an alpha that is not positive

    def ask(
        self, rows: Sequence[dict[str, Any]], requests: Sequence[str], answers: Sequence[str]
    ) -> Callable[[], None]:
        """Begin to judge rollouts in a thread; returns a function that waits for the verdicts.

        Parameters
        ----------
        rows
            One a rollout, with ``r_ver``. The returned function writes into them ``judge_status``
            (of `califkit.judges.Verdict`; None if not asked) and ``judge_score`` (None if not asked
            or unscored).
        requests, answers
            x and the final answer of each rollout.

        Raises
        ------
        JudgeError
            In the returned function: if the endpoint would refuse every call, or if there are
            `DEAD` calls or more and all of them have failed.
        """
        numbers = [i for i, row in enumerate(rows) if row["r_ver"] > 0]
        items = [(requests[i], answers[i]) for i in numbers]
        future = _in_background(lambda: self.judge.quality(items) if items else [])

        def finish() -> None:
            verdicts = future.result()
            if len(verdicts) >= DEAD and all(v.status == "failed" for v in verdicts):
                raise JudgeError(f"all {len(verdicts)} calls failed ({verdicts[0].reason})")
            for row in rows:
                row |= {"judge_status": None, "judge_score": None}
            for i, verdict in zip(numbers, verdicts, strict=True):
                rows[i]["judge_status"] = verdict.status
                rows[i]["judge_score"] = verdict.value if verdict.status == "ok" else None

        return finish

    def rewards(self, rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Rewards of rows with ``r_ver`` and ``judge_score``."""
        r_ver, score = (
            np.array([row[name] for row in rows], dtype=float) for name in ("r_ver", "judge_score")
        )
        return judge_reward(r_ver, score, self.tau, self.alpha)


def reward_rule(
    method: str, alpha: float | None, judge: Grader | None, tau: float | None, **options: Any
) -> RewardRule | JudgeRule:
    """The rule of any method; ``options`` are those of `RewardRule`.

    Raises
    ------
    ValueError
        For an unknown method, what it lacks, or an option that it does not use.
    """
    if method in JUDGE_METHODS:
        unused = {k: v for k, v in options.items() if v is not False}
    else:
        unused = {"judge": judge, "tau": tau}
    if named := [name for name, value in unused.items() if value is not None]:
        raise ValueError(f"method {method!r} does not use {', '.join(named)}")
    if method in JUDGE_METHODS:
        return JudgeRule(method, alpha, judge, tau)
    return RewardRule(method, None if method in ("if_rlvr", "no_lower_dev") else alpha, **options)


def judge_statistics(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What the training log keeps of the judge in one step, beside `step_statistics`.

    Parameters
    ----------
    rows
        All rollouts of the step: ``r_ver``, ``reward``, ``judge_status`` and ``judge_score``.

    Returns
    -------
    dict of str to float
        Counts of rollouts: ``judge/calls`` (put to the judge), ``judge/unscored`` and, of those,
        ``judge/<status>``. Left out where undefined: ``judge/score`` (mean), ``judge/bonus`` (share
        of the rollouts with r_ver > 0 that got it).
    """
    counts = dict.fromkeys(get_args(Status), 0)
    counts |= Counter(row["judge_status"] for row in rows if row["judge_status"] is not None)
    scored = counts.pop("ok")
    unscored = sum(counts.values())
    able = [row for row in rows if row["r_ver"] > 0]
    means = {
        "judge/score": nan_mean(np.array([row["judge_score"] for row in rows], dtype=float)),
        "judge/bonus": nan_mean([row["reward"] > row["r_ver"] for row in able]),
    }
    return {
        "judge/calls": float(scored + unscored),
        "judge/unscored": float(unscored),
        **{f"judge/{status}": float(count) for status, count in counts.items()},
        **{name: value for name, value in means.items() if not math.isnan(value)},
    }


def _in_background(function: Callable[[], Any]) -> Future:
    """Run in a thread that an error or an interrupt elsewhere does not wait for."""
    future: Future = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # raised again where the result is asked for
            future.set_exception(error)

    threading.Thread(target=work, daemon=True, name="judge").start()
    return future


# ---------------------------------------------------------------- the training stage


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
    """How the judge of a stage is reached, after a look at all that can be told in advance.

    Raises
    ------
    ParamsError
        If the stage has no judge or alpha, ``execution`` has no judge of that name or one that
        would answer otherwise, the key is not there, or training may take more calls than
        ``max_calls``.
    """
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

    Prints what the judge may cost. Kept in `TAU` in the folder of the run.

    Raises
    ------
    StaleRunError
        If the run was begun with another wording of the judge's prompt.
    JudgeError
        If the run may cost more than ``max_cost``, or as `measure_tau`.
    """
    path = run.folder / TAU
    stored = Tau(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
    if stored and stored.prompt_version != QUALITY_VERSION:
        raise StaleRunError(
            f"{run.folder}: was begun with another wording of the judge's prompt; delete the "
            "folder to begin again"
        )
    print(_cost(run.stage, settings, anchors, instances), flush=True)
    if stored:
        return stored
    if run.stage.tau is not None:
        tau = Tau(run.stage.tau, measured=False, prompt_version=QUALITY_VERSION)
    else:
        tau = measure_tau(anchors, instances, Judge(settings, cache_path))
        print(
            f"train {run.stage.name}: tau = {tau.value:.3f}, the mean score of {tau.scored} "
            "reference answers",
            flush=True,
        )
    run.folder.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(tau))
    return tau


def measure_tau(anchors: Run, instances: Sequence[Instance], judge: Grader) -> Tau:
    """Mean score of the constrained reference answers y0 as answers to the request alone (A5).

    Unscored answers are left out and counted, as are empty ones.

    Parameters
    ----------
    anchors
        A complete anchor run.
    instances
        The prompts to train on; answers of others are passed over.

    Raises
    ------
    JudgeError
        If no answer is scored, or more than `MANY_UNSCORED` of them are not; names the reasons.
    AnchorError
        If there is no answer.
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
    """(x, y0) of all draws that are not empty, and the number of those that are."""
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
    sample = Judge(settings).estimate([quality_question(x, y) for x, y in items])
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
