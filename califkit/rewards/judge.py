"""Judges as rewards (paper section 2.4, "Judge reward"; open point A5).

The reward is ``r_ver + alpha * [r_ver > 0 and s > tau]`` (`califkit.rewards.rules.judge_reward`). s
is the judge's score, from 1 to 10, of the final answer given the request x alone, by the prompt of
response quality. Only rollouts with r_ver > 0, which alone can earn the bonus, are put to the
judge. One that stays unscored earns none and is counted.

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

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, get_args

import numpy as np

from califkit.judges.judge import JudgeError
from califkit.judges.verdicts import Status, Verdict
from califkit.metrics import nan_mean
from califkit.rewards.rules import RewardRule, judge_reward
from califkit.runs.settings import JUDGE_METHODS

DEAD = 8
"""So many calls of one process in a step, every one of them failed, end the training."""


class Grader(Protocol):
    """What a reward needs of a judge; `califkit.judges.judge.Judge` has it."""

    def quality(self, items: Sequence[tuple[str, str]]) -> Sequence[Verdict]:
        """A verdict (``status``, ``value``, ``reason``) for every (x, y), in their order."""


@dataclass(frozen=True)
class JudgeRule:
    """The judge reward of a training run: a bonus of alpha where the judge's score exceeds tau."""

    method: str
    alpha: float
    judge: Grader
    tau: float

    # The options of a `RewardRule` that it does without.
    margin = 0.0
    bonus_requires_compliant_anchor = False

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

        That writes into the rows ``judge_status`` (None if not asked) and ``judge_score`` (None if
        not asked or unscored). It raises `JudgeError` if the endpoint would refuse every call, or
        if there are `DEAD` calls or more and all of them have failed.
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
    """The rule of any method; ``options`` are those of `RewardRule`. ValueError for an unknown
    method, what it lacks, or an option that it does not use."""
    if method in JUDGE_METHODS:
        unused = {k: v for k, v in options.items() if v is not False}
    else:
        unused = {"judge": judge, "tau": tau}
    if named := [name for name, value in unused.items() if value is not None]:
        raise ValueError(f"method {method!r} does not use {', '.join(named)}")
    if method in JUDGE_METHODS:
        return JudgeRule(method, alpha, judge, tau)
    return RewardRule(method, alpha, **options)


def judge_statistics(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What the training log keeps of the judge in one step, beside `step_statistics`.

    Counts of rollouts: ``judge/calls`` (put to the judge), ``judge/unscored`` and, of those,
    ``judge/<status>``. Left out where undefined: ``judge/score`` (mean), ``judge/bonus`` (share of
    the rollouts with r_ver > 0 that got it).
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
