"""Scores of generated responses, and the tables that figures are drawn from.

A score row holds the strict and loose verdicts of every constraint, the reference log-likelihood of
the answer given the request alone (under the base model, whatever policy wrote it), its length and
its distinct-2. Reasoning that precedes the answer enters none of them. Response quality comes from
the runs of a judge (`califkit.evaluation.quality`); without one it is absent and says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from califkit import metrics
from califkit.generation import Answers, load_answers
from califkit.models.engines import read_response
from califkit.models.likelihood import ReferenceScorer
from califkit.models.reasoning import in_words, text_answer
from califkit.models.resolve import load_model, load_tokenizer, resolve
from califkit.rewards.rules import RewardRule
from califkit.rewards.score import score_answers
from califkit.runs.folders import Run, open_run
from califkit.runs.jsonl import RowLog
from califkit.runs.settings import Execution
from califkit.runs.stages import IdentificationStage, ScoreStage
from califkit.runs.text import say
from califkit.runs.units import batches, run_units
from califkit.verifiers import Constraint, verify_all

SCORES = "scores.jsonl"
_BATCH = 32

Compute = Callable[[int, Sequence[Any]], list[dict[str, Any]]]
"""From the number and the entries of a batch to its rows."""


def score_responses(profile: str, stage: ScoreStage, execution: Execution) -> Run:
    """Stage: score the responses of one policy.

    Writes `SCORES`: ``key``, ``ids``, ``strict``, ``loose`` (lists parallel to ``ids``),
    ``loglik``, ``request_is_flagged``, ``tokens``, ``distinct_2``, ``finish_reason``. All are of
    the answer without reasoning (`califkit.models.reasoning.final_answer`); ``loglik`` is None if
    there is no answer. Raises `DataError` if the prompts are not those that the responses answer.
    """

    def begin(answers: Answers, scorer: ReferenceScorer) -> tuple[list[dict[str, Any]], Compute]:
        semantics, thinking = stage.semantics, stage.responses.thinking
        say(f"scores {stage.name}: {in_words(thinking)}")

        def compute(number: int, unit: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
            prompts = [answers.instances[row["key"]] for row in unit]
            drawn = [read_response(row, scorer.tokenizer, thinking) for row in unit]
            loglik = scorer.score([p.x for p in prompts], [r.answer.token_ids for r in drawn])
            return [
                {
                    "key": row["key"],
                    "ids": [c.id for c in prompt.constraints],
                    "strict": verify_all(prompt.constraints, r.answer.text, "strict", semantics),
                    "loose": verify_all(prompt.constraints, r.answer.text, "loose", semantics),
                    "loglik": metrics.none_if_nan(value),
                    "request_is_flagged": prompt.request_is_flagged,
                    "tokens": r.n_tokens,
                    "distinct_2": metrics.none_if_nan(metrics.distinct_2(r.answer.content_ids)),
                    "finish_reason": r.finish_reason,
                }
                for row, prompt, r, value in zip(unit, prompts, drawn, loglik, strict=True)
            ]

        return answers.rows, compute

    return run_scorer(profile, stage, execution, SCORES, begin, stage.reference)


def run_scorer(
    profile: str,
    stage: ScoreStage | IdentificationStage,
    execution: Execution,
    file: str,
    begin: Callable[[Answers, ReferenceScorer], tuple[Sequence[Any], Compute]],
    reference: str | None = None,
) -> Run:
    """Compute a stage of the reference (None: the policy's base model), unless it is complete.

    ``begin`` gives what there is to score, an entry a row, and the function that makes the rows of
    a batch of it.
    """
    started = time.monotonic()
    run = open_run(profile, stage)
    with run.computing() as needed:
        if not needed:
            return run
        answers = load_answers(profile, stage.responses)
        folder = resolve(reference or stage.responses.model)
        scorer = ReferenceScorer(
            load_model(folder), load_tokenizer(folder), execution.tokens_per_pass
        )
        entries, compute = begin(answers, scorer)
        log = RowLog(run.folder / file)
        run_units(log, batches(entries, _BATCH), compute, f"{stage.kind} {stage.name}")
        run.finish(
            started,
            rows=len(entries),
            data=answers.loaded.summary(),
            data_sha256=answers.loaded.sha256,
            left_out=len(answers.loaded.quarantined),
        )
    return run


def score_texts(
    scorer: ReferenceScorer,
    request: str,
    constraints: Sequence[Constraint],
    texts: Mapping[str, str],
    l0: float,
    l1: float,
    alpha: float = 0.1,
) -> pd.DataFrame:
    """Score finished responses to one request, a row each; ``texts`` maps names to responses.

    Each is taken to end with the end-of-turn token. Reasoning in it is left out of everything but
    ``response``; one that has no answer then has no l. Columns: ``response``, ``tokens`` (without
    that token), ``r_ver``, ``l``, ``zone``, and the rewards ``IF-RLVR`` and ``CaLIF``.
    """
    answers = [text_answer(text, scorer.tokenizer) for text in texts.values()]
    of_all = ([one] * len(answers) for one in (constraints, l0, l1))
    rule = RewardRule("calif", alpha)
    rows = score_answers(scorer, rule, [request] * len(answers), answers, *of_all)
    table = pd.DataFrame(rows, index=list(texts)).astype({"loglik": float})
    table = table.rename(columns={"answer_tokens": "tokens", "loglik": "l", "reward": "CaLIF"})
    table = table.assign(response=list(texts.values()), **{"IF-RLVR": table["r_ver"]})
    return table[["response", "tokens", "r_ver", "l", "zone", "IF-RLVR", "CaLIF"]]
