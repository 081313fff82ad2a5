"""Request identification: can the reference tell from an answer what was asked?

A measure of quality without a judge, which no reward pays for. Each answer is scored given its own
request and given K - 1 other requests of the set, by the scorer that l comes from. An answer to the
point is likeliest given its own request; one that only pleases a verifier (a bare word, a list of
keywords, a phrase that fits everything) is about as likely given any.

It sees whether an answer is about its request, and no more: wrong facts on the right subject,
poor style and broken constraints leave it high.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from califkit import metrics
from califkit.data.load import DataError
from califkit.evaluation.scores import Compute, run_scorer
from califkit.generation import Answers
from califkit.models.engines import read_response
from califkit.models.likelihood import ReferenceScorer
from califkit.runs.folders import Run, require_complete
from califkit.runs.jsonl import read_jsonl
from califkit.runs.settings import Execution
from califkit.runs.stages import IdentificationStage

IDENTIFICATION = "identification.jsonl"
_BOOTSTRAP_SEED = 0


def identify_responses(profile: str, stage: IdentificationStage, execution: Execution) -> Run:
    """Stage: score the responses of one policy given their own request and given others.

    Writes `IDENTIFICATION`: ``key``, ``others`` (keys of the prompts with the other requests),
    ``tokens`` (behind each l, end-of-turn token included), ``loglik`` (l given the own request,
    then given the others; None if there is no answer). The request is the one that l of a score
    row is taken given, and the answer is that without reasoning. Raises `DataError` if there are
    too few different requests.
    """

    def begin(answers: Answers, scorer: ReferenceScorer) -> tuple[list[str], Compute]:
        rows = {row["key"]: row for row in answers.rows}
        requests = {key: answers.instances[key].x for key in rows}
        how, thinking = stage.identification, stage.responses.thinking
        others = other_requests(requests, how.requests, how.seed)

        def compute(number: int, unit: Sequence[str]) -> list[dict[str, Any]]:
            drawn = [read_response(rows[key], scorer.tokenizer, thinking) for key in unit]
            ids = [response.answer.token_ids[: how.first_tokens] for response in drawn]
            candidates = [[requests[k] for k in (key, *others[key])] for key in unit]
            loglik = loglik_given_requests(scorer, candidates, ids)
            return [
                {
                    "key": key,
                    "others": others[key],
                    "tokens": len(ids[i]),
                    "loglik": loglik[i].tolist() if ids[i] else None,
                }
                for i, key in enumerate(unit)
            ]

        return list(others), compute

    return run_scorer(profile, stage, execution, IDENTIFICATION, begin)


def other_requests(requests: Mapping[str, str], k: int, seed: int) -> dict[str, list[str]]:
    """The prompts whose requests each answer is held against.

    The different requests stand in a circle, in an order drawn with the seed; each is held against
    the k - 1 that follow it. So each request comes up equally often, the choice is the same for
    every policy, and neighbours in the circle have requests in common, which saves scoring.

    ``requests`` maps keys of prompts to requests; the result, in the order of the circle, maps
    them to the keys of k - 1 prompts. `DataError` if there are fewer than k different requests.
    """
    key_of: dict[str, str] = {}  # of several prompts with one request the first key stands for it
    for key in sorted(requests):
        key_of.setdefault(requests[key], key)
    if not 2 <= k <= len(key_of):
        raise DataError(
            f"request identification holds an answer against {k} requests, its own among them: "
            f"that takes 2 to {len(key_of)} here, the number of different requests"
        )
    different = sorted(key_of)
    circle = [different[i] for i in np.random.default_rng(seed).permutation(len(different))]
    place = {request: i for i, request in enumerate(circle)}
    in_order = sorted(requests, key=lambda key: (place[requests[key]], key))
    return {
        key: [key_of[circle[(place[requests[key]] + i) % len(circle)]] for i in range(1, k)]
        for key in in_order
    }


def loglik_given_requests(
    scorer: ReferenceScorer, candidates: Sequence[Sequence[str]], answers: Sequence[Sequence[int]]
) -> np.ndarray:
    """l of each answer given each of its candidate requests.

    ``candidates`` lists K requests an answer, ``answers`` token ids as for
    `ReferenceScorer.score`. Returns shape (answers, K), nats per token, NaN for an empty answer.
    """
    rows = [(x, ids) for xs, ids in zip(candidates, answers, strict=True) for x in xs]
    scores = scorer.score([x for x, _ in rows], [ids for _, ids in rows])
    return scores.reshape(len(answers), -1)


@dataclass(frozen=True)
class Identification:
    """Means over some answers, each with its 95 % bootstrap interval over prompts.

    ``top_1`` (chance 1 / ``requests``) and ``auc`` (chance 0.5) are shares, ``information`` is in
    nats an answer (chance 0 or less).
    """

    answers: int
    prompts: int
    requests: int
    top_1: float
    top_1_interval: tuple[float, float]
    auc: float
    auc_interval: tuple[float, float]
    information: float
    information_interval: tuple[float, float]


def identification_of(runs: Iterable[Run]) -> Identification:
    """The identification of complete runs taken together: the seeds of one policy, say."""
    paths = [require_complete(run).folder / IDENTIFICATION for run in runs]
    rows = [row for path in paths for row in read_jsonl(path)]
    return identification(
        _loglik_table(rows), [row["tokens"] for row in rows], [row["key"] for row in rows]
    )


def identified_answers(run: Run) -> pd.DataFrame:
    """What each answer of a complete run tells of its request: ``key`` of the prompt, ``top_1``,
    ``auc`` and ``information`` (in nats), as in `califkit.metrics`."""
    rows = read_jsonl(require_complete(run).folder / IDENTIFICATION)
    loglik, tokens = _loglik_table(rows), [row["tokens"] for row in rows]
    return pd.DataFrame({"key": [row["key"] for row in rows], **_values(loglik, tokens)})


def _loglik_table(rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
    unknown = [np.nan] * (1 + len(rows[0]["others"]))
    return np.array([unknown if row["loglik"] is None else row["loglik"] for row in rows])


def identification(loglik: ArrayLike, tokens: ArrayLike, prompts: Sequence[str]) -> Identification:
    """Summarise answers, of one run or of several to the same prompts.

    ``loglik`` and ``tokens`` (behind each l) are those of `califkit.metrics`; ``prompts`` has the
    key of each answer's prompt.
    """
    table = np.asarray(loglik, dtype=float)
    found: dict[str, float | tuple[float, float]] = {}
    for name, each in _values(table, tokens).items():
        rng = np.random.default_rng(_BOOTSTRAP_SEED)
        found[name] = float(each.mean())
        found[f"{name}_interval"] = metrics.interval_by_prompt(each, prompts, rng)
    return Identification(len(table), len(set(prompts)), table.shape[1], **found)


def _values(table: np.ndarray, tokens: ArrayLike) -> dict[str, np.ndarray]:
    return {
        "top_1": metrics.identified(table),
        "auc": metrics.pairwise_auc(table),
        "information": metrics.pointwise_information(table, tokens),
    }
