"""From an answer to its verdicts, likelihood, zone and reward: one core for all who ask.

TRL, verl, response files, evaluation and notebooks hand over answers
(`califkit.models.reasoning.Answer`) and get rows, in which None stands for what is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from califkit.anchors.region import zones
from califkit.metrics import distinct_2, none_if_nan
from califkit.models.likelihood import ReferenceScorer
from califkit.models.reasoning import Answer
from califkit.verifiers import Constraint, verify_all


class Rule(Protocol):
    """What pays: `califkit.rewards.rules.RewardRule` or `califkit.rewards.judge.JudgeRule`."""

    @property
    def margin(self) -> float:
        """How far above l1 the zone ``inside`` reaches, in nats."""

    def rewards(self, rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Rewards of rows as `pay` has them."""


def answer_row(
    answer: Answer,
    constraints: Sequence[Constraint] | None,
    l0: float,
    l1: float,
    semantics: str = "published",
) -> dict[str, Any]:
    """What is known of an answer before the reference has seen it.

    ``r_ver`` (share of the constraints followed; the check is strict), ``types`` (the same by type,
    which is the id up to the colon: [followed, total]), ``l0``, ``l1``, ``answer_tokens`` (without
    the end-of-turn token) and ``distinct_2`` (of these).
    """
    r_ver, types = None, {}
    if constraints is not None:
        followed = verify_all(constraints, answer.text, "strict", semantics)
        r_ver = sum(followed) / max(len(followed), 1)
        for constraint, verdict in zip(constraints, followed, strict=True):
            counts = types.setdefault(constraint.id.partition(":")[0], [0, 0])
            counts[0] += verdict
            counts[1] += 1
    return {
        "r_ver": r_ver,
        "types": types,
        "l0": none_if_nan(l0),
        "l1": none_if_nan(l1),
        "answer_tokens": len(answer.content_ids),
        "distinct_2": none_if_nan(distinct_2(answer.content_ids)),
    }


def pay(rows: Sequence[dict[str, Any]], loglik: np.ndarray, rule: Rule) -> None:
    """Write ``loglik``, ``zone`` and ``reward`` into rows of `answer_row`.

    ``loglik`` is l of each answer, NaN where it has none. A row without r_ver has no reward.
    """
    l0, l1 = (np.array([row[name] for row in rows], dtype=float) for name in ("l0", "l1"))
    where = zones(loglik, l0, l1, rule.margin)
    for row, value, zone in zip(rows, loglik, where, strict=True):
        row |= {"loglik": none_if_nan(value), "zone": str(zone), "reward": None}
    verified = [row for row in rows if row["r_ver"] is not None]
    for row, reward in zip(verified, rule.rewards(verified), strict=True):
        row["reward"] = float(reward)


def score_answers(
    scorer: ReferenceScorer,
    rule: Rule,
    requests: Sequence[str],
    answers: Sequence[Answer],
    constraints: Sequence[Sequence[Constraint] | None],
    l0: Sequence[float],
    l1: Sequence[float],
    semantics: str = "published",
) -> list[dict[str, Any]]:
    """The rows of `answer_row` with what `pay` writes, one an answer, in the order given."""
    rows = [
        answer_row(*values, semantics) for values in zip(answers, constraints, l0, l1, strict=True)
    ]
    pay(rows, scorer.score(requests, [answer.token_ids for answer in answers]), rule)
    return rows
