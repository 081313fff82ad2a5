"""Fig. 3: pairs of checkpoints, before and after training, scored by a named reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from califkit.exhibits.summary import METRICS, metrics_by_run, summary_table
from califkit.runs.folders import Run
from califkit.runs.params import Settings
from califkit.runs.stages import ScoreStage

SIDES = {"base": "before", "if_rlvr": "after"}
"""Both sides of a pair, by the methods whose look they have in pictures."""

CLAIMS = {"prompt_level_loose_acc": 1, "response_quality": -1, "loglik": -1}
"""The panels of Fig. 3, and which way the paper says that RLVR moves each of them in every pair.
It prints no numbers and does not name its pairs."""

LABELS = METRICS | {"response_quality": "response quality (1 to 10)"}


def pair_stages(settings: Settings) -> list[ScoreStage]:
    """What `checkpoint_table` is made of: ``settings.checkpoints``, both sides of each, per seed;
    without any the profile's own base policy and what IF-RLVR has made of it."""
    if settings.checkpoints:
        return settings.checkpoint_stages()
    return [stage for stage in settings.score_stages() if stage.responses.method in SIDES]


def checkpoint_table(
    settings: Settings, scored: Sequence[Run], graded: Sequence[Run]
) -> pd.DataFrame:
    """Mean and sample standard deviation over runs, a row a pair, side and metric of `CLAIMS`.

    ``scored`` are the runs of `pair_stages`, ``graded`` those of the judges on the same responses.
    Columns: ``pair``, ``method`` (a name of `SIDES`), ``model``, ``reference`` (whose likelihood it
    is), ``metric``, ``mean``, ``std``, ``runs``, ``n`` (prompts a run), ``judge``, ``note``.
    """
    stages = [run.stage for run in scored]
    seeds = len(settings.eval_seeds)
    pairs = [pair.name for pair in settings.checkpoints]
    sides = [(pair, side) for pair in pairs for side in SIDES for _ in range(seeds)]
    by_run = metrics_by_run(scored, graded)
    if not sides:
        sides = [("this profile", stage.responses.method) for stage in stages]
    by_run[["pair", "method"]] = sides
    by_run["model"] = [stage.responses.model for stage in stages]
    by_run["reference"] = [_reference(stage) for stage in stages]
    rows = []
    for (pair, method), group in by_run.groupby(["pair", "method"], sort=False):
        summary = summary_table(group).set_index("metric").loc[list(CLAIMS)].reset_index()
        facts = group.iloc[0][["model", "reference", "n"]].to_dict()
        rows.append(summary.assign(pair=pair, method=method, **facts))
    columns = ["pair", "method", "model", "reference", "metric", "mean", "std", "runs", "n"]
    return pd.concat(rows, ignore_index=True)[[*columns, "judge", "note"]]


def _reference(stage: ScoreStage) -> str:
    return stage.reference or stage.responses.model


def checkpoint_claims(table: pd.DataFrame) -> pd.DataFrame:
    """Does each pair move as the paper says? A row a pair and metric of a `checkpoint_table`.

    ``difference`` is after minus before; ``spread`` the standard deviation of a difference of two
    runs (NaN for one run); ``paper`` is ``higher`` or ``lower``. A difference that does not exceed
    the spread is not called a direction.
    """
    rows = []
    for (pair, metric), group in table.groupby(["pair", "metric"], sort=False):
        sides = group.set_index("method")
        before, after = (sides.loc[side] for side in SIDES)
        difference = after["mean"] - before["mean"]
        spread = float(np.hypot(before["std"], after["std"]))
        wanted = CLAIMS[metric]
        if note := before["note"] or after["note"]:
            verdict = note
        elif abs(difference) <= spread:
            verdict = "within the spread"
        else:
            verdict = "as in the paper" if difference * wanted > 0 else "not as in the paper"
        paper = "higher" if wanted > 0 else "lower"
        rows.append((pair, LABELS[metric], difference, spread, paper, verdict))
    return pd.DataFrame(
        rows, columns=["pair", "metric", "difference", "spread", "paper", "verdict"]
    )
