"""Figures 1 and 2: what policies answer to request and constraints, and to the request alone.

The policies are behind endpoints (``execution.policies``) or have written files
(``settings.answers``). Without either it is the profile's base policy at small scale: its anchors
are answers to both kinds of prompt, on the training prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from califkit import metrics
from califkit.anchors.rows import read_draws
from califkit.data.load import DataError, Instance
from califkit.data.prompts import training_prompts
from califkit.evaluation.quality import name_judges
from califkit.evaluation.response_files import answered, open_responses
from califkit.exhibits.plaintext import block
from califkit.exhibits.summary import NO_JUDGE
from califkit.generation import benchmark_prompts, endpoint_answers
from califkit.judges.cache import judge_cache
from califkit.judges.judge import Judge
from califkit.models.reasoning import answer_text
from califkit.runs.folders import Run
from califkit.runs.params import Params, Settings
from califkit.verifiers import verify_all
from califkit.verifiers.short_answers import asks_for_short_or_copied

SIDES = ("constrained", "alone")
"""Prompted with request and constraints, or with the request alone."""


def has_policies(settings: Settings) -> bool:
    """Whether there are policies other than the profile's own."""
    return bool(settings.execution.policies or settings.answers)


def policy_answers(params: Params) -> pd.DataFrame:
    """The answers of the policies to the profile's test prompts, asked for where they are missing.

    Columns: ``policy``, ``source`` (``endpoint`` or ``file``), ``side`` (of `SIDES`), ``key``,
    ``request``, ``prompt``, ``ids``, ``response`` (without reasoning; None where there is none),
    ``passes`` (all constraints hold, loosely; NaN for an answer to the request alone), ``loglik``
    (NaN: not measured). A prompt without a request that stands apart (A14) has no side ``alone``.
    """
    settings = params.settings
    instances = benchmark_prompts(settings.evaluation).instances
    apart = [instance for instance in instances if not instance.request_is_flagged]
    rows = []
    for policy in settings.execution.policies:
        for side, asked in zip(SIDES, (instances, apart), strict=True):
            prompts = [i.prompt if side == "constrained" else i.x for i in asked]
            texts = endpoint_answers(params.profile, policy, prompts)
            found = dict(zip((i.key for i in asked), texts, strict=True))
            rows += _rows(policy.name, "endpoint", side, asked, found)
    for files in settings.answers:
        for side, asked in zip(SIDES, (instances, apart), strict=True):
            found = _of_file(getattr(files, side), settings.evaluation.benchmark)
            rows += _rows(files.name, "file", side, asked, found)
    return pd.DataFrame(rows)


def anchor_answers(settings: Settings, anchors: Run) -> pd.DataFrame:
    """The first draws of the anchors as `policy_answers` has them, source ``anchors``, with l."""
    instances = {i.key: i for i in training_prompts(settings.data).instances}
    draws = [row for row in read_draws(anchors.folder) if row["draw"] == 0]
    rows = []
    for side, name in zip(SIDES, ("constrained", "natural"), strict=True):
        own = {row["key"]: row for row in draws if row["side"] == name}
        asked = [instances[key] for key in own if key in instances]
        texts = {key: row["answer"] for key, row in own.items()}
        table = _rows("base", "anchors", side, asked, texts)
        rows += [row | {"loglik": own[row["key"]]["loglik"]} for row in table]
    return pd.DataFrame(rows).astype({"loglik": float})


def _of_file(path: str, benchmark: str) -> dict[str, str]:
    """Responses by key. Those to the request alone cannot be found by the text of the prompt."""
    found = {row.key: row.response for row in answered(open_responses(path, benchmark))}
    if None in found:
        raise DataError(f"{path}: a response answers a prompt that has no key")
    return found


def _rows(
    policy: str,
    source: str,
    side: str,
    asked: Sequence[Instance],
    texts: Mapping[str, str | None],
) -> list[dict[str, Any]]:
    rows = []
    for instance in asked:
        text = texts.get(instance.key)
        response = None if text is None else answer_text(text)
        passes = np.nan
        if side == "constrained" and response is not None:
            passes = float(all(verify_all(instance.constraints, response, "loose")))
        rows.append(
            {
                "policy": policy,
                "source": source,
                "side": side,
                "key": instance.key,
                "request": instance.x,
                "prompt": instance.prompt,
                "ids": [constraint.id for constraint in instance.constraints],
                "response": response,
                "passes": passes,
                "loglik": np.nan,
            }
        )
    return rows


def graded(params: Params, answers: pd.DataFrame) -> pd.DataFrame:
    """The answers with ``quality``, the mean over the profile's judges that scored each of them
    (NaN: none has), and ``judge``, which names them; empty without a judge.

    Each judge is asked once about all answers and shows before what that takes. `JudgeError` if it
    cannot be used, exceeds its limits or scores nothing.
    """
    given = answers[answers["response"].notna()]
    items = list(zip(given["request"], given["response"], strict=True))
    scores: dict[str, list[float]] = {}
    for name in params.settings.judges():
        settings = params.settings.execution.judge(name)
        judge = Judge(settings, judge_cache(params.profile, settings))
        verdicts = judge.quality(items)
        judge.check_some_are_scored(verdicts)
        scores[name] = [np.nan if v.status != "ok" else float(v.value) for v in verdicts]
    quality = pd.Series(np.nan, index=answers.index)
    if scores:
        by_response = zip(*scores.values(), strict=True)
        quality[given.index] = [metrics.nan_mean(of_one) for of_one in by_response]
    return answers.assign(quality=quality, judge=name_judges(scores))


def both_sides(answers: pd.DataFrame) -> pd.DataFrame:
    """A row a policy and prompt with an answer on both sides; the columns of what was answered to
    the request alone end in ``_alone``. ``quality_drop`` and ``loglik_drop``: alone minus
    constrained."""
    given = answers[answers["response"].notna()]
    columns = ["policy", "key", "response", "quality", "loglik"]
    constrained = given[given["side"] == "constrained"]
    alone = given.loc[given["side"] == "alone", columns]
    pairs = constrained.merge(alone, on=["policy", "key"], suffixes=("", "_alone"))
    for name in ("quality", "loglik"):
        pairs[f"{name}_drop"] = pairs[f"{name}_alone"] - pairs[name]
    return pairs


def blind_spot_table(answers: pd.DataFrame) -> pd.DataFrame:
    """Fig. 1, a row a policy, from `graded` answers.

    Columns: ``policy``, ``source``, ``satisfaction`` (in percent) and ``quality`` over all answers
    to request and constraints (Fig. 1a); over the prompts with both answers, ``pairs`` of them,
    ``quality_alone``, ``quality_constrained``, ``quality_drop`` (Fig. 1b), and the same of
    ``loglik``; ``prompts``, ``unanswered`` (of both sides), ``judge``, ``note``.
    """
    pairs = both_sides(answers)
    rows = []
    for (policy, source), group in answers.groupby(["policy", "source"], sort=False):
        constrained = group[group["side"] == "constrained"]
        both = pairs[pairs["policy"] == policy]
        row = {
            "policy": policy,
            "source": source,
            "satisfaction": 100 * metrics.nan_mean(constrained["passes"]),
            "quality": metrics.nan_mean(constrained["quality"]),
        }
        for name in ("quality", "loglik"):
            scored = both.dropna(subset=f"{name}_drop")
            row[f"{name}_alone"] = metrics.nan_mean(scored[f"{name}_alone"])
            row[f"{name}_constrained"] = metrics.nan_mean(scored[name])
            row[f"{name}_drop"] = metrics.nan_mean(scored[f"{name}_drop"])
        row |= {"pairs": len(both), "prompts": len(constrained)}
        row["unanswered"] = int(group["response"].isna().sum())
        judge = group["judge"].iloc[0]
        rows.append(row | {"judge": judge, "note": "" if judge else f"quality {NO_JUDGE}"})
    return pd.DataFrame(rows)


def rank_correlation(table: pd.DataFrame) -> tuple[float, str]:
    """Spearman's correlation of Constraint Satisfaction and quality over policies, and why there is
    none (NaN): fewer than three policies, or no judge (A15)."""
    known = table.dropna(subset=["satisfaction", "quality"])
    if len(known) < 3:
        return float("nan"), f"{len(known)} policies with both numbers; a correlation takes three"
    return float(known["satisfaction"].rank().corr(known["quality"].rank())), ""


def blind_example(answers: pd.DataFrame) -> tuple[pd.Series | None, str]:
    """Fig. 2: the row of `both_sides` to show, None if there is none, and the rule in words.

    Prompts that ask for a short or copied answer are passed over: there it would prove nothing.
    """
    pairs = both_sides(answers)
    pairs = pairs[pairs["passes"] == 1.0]
    pairs = pairs[~pairs["ids"].map(asks_for_short_or_copied).astype(bool)]
    measure, what = "quality_drop", "response quality"
    if not answers["judge"].any():
        measure, what = "loglik_drop", f"log-likelihood (response quality {NO_JUDGE})"
    rule = f"largest drop of {what}, request alone to constrained, where the verifier passes"
    pairs = pairs.dropna(subset=measure).sort_values(measure, ascending=False, kind="stable")
    return (pairs.iloc[0] if len(pairs) else None), rule


def example_text(pick: pd.Series, limit: int = 1400) -> str:
    """The request, then both answers with their scores and the verdict, as Fig. 2 lays it out."""
    parts = [
        f"request (key {pick['key']}; {', '.join(pick['ids'])}; {pick['policy']})",
        block(pick["prompt"], limit),
    ]
    for title, end in (("request alone", "_alone"), ("request and constraint: pass", "")):
        quality, loglik = pick[f"quality{end}"], pick[f"loglik{end}"]
        scores = [f"RQ {quality:.2f} ({pick['judge']})" if pick["judge"] else f"RQ {NO_JUDGE}"]
        scores += [] if np.isnan(loglik) else [f"log-likelihood {loglik:.2f}"]
        parts += [f"\n{title}; {', '.join(scores)}", block(pick[f"response{end}"], limit)]
    return "\n".join(parts)
