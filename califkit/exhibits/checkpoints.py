"""The table behind Figure 3: checkpoints before and after training on a verifier, in pairs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from califkit.exhibits.exhibit import Exhibit
from califkit.exhibits.summary import metrics_by_run, summary_table
from califkit.runs.settings import CheckpointPair

METRICS = {
    "prompt_level_loose_acc": 1,
    "response_quality": -1,
    "loglik": -1,
}
"""The panels of Figure 3, and the sign of the change in the paper, the same in every pair."""


def pair_table(exhibit: Exhibit) -> pd.DataFrame:
    """Every pair of the setting ``pairs``; without any, base and IF-RLVR of the profile are one.

    Columns: ``pair``, ``side`` (before, after), ``model``, ``reference``, ``metric``, ``mean``,
    ``std`` over seeds, ``runs``, ``judge``, ``note``.
    """
    pairs = exhibit.settings.pairs
    frames = [_of_checkpoints(exhibit, pair) for pair in pairs] or [_of_profile(exhibit)]
    table = pd.concat(frames, ignore_index=True)
    columns = ["pair", "side", "model", "reference", "metric", "mean", "std", "runs", "judge"]
    return table.loc[table["metric"].isin(METRICS), [*columns, "note"]].reset_index(drop=True)


def _of_checkpoints(exhibit: Exhibit, pair: CheckpointPair) -> pd.DataFrame:
    stages = exhibit.settings.checkpoint_stages(pair)
    graded = exhibit.settings.quality_of(stage.responses for stage in stages)
    runs, quality = exhibit.runs(stages), exhibit.runs(graded)
    frames = []
    for side, model in (("before", pair.before), ("after", pair.after)):
        own = [run for run in runs if run.stage.responses.model == model]
        of_judge = [run for run in quality if run.stage.responses.model == model]
        table = summary_table(metrics_by_run(own, of_judge))
        frames.append(table.assign(side=side, model=model))
    reference = pair.reference or pair.before
    return pd.concat(frames).assign(pair=pair.name, reference=reference)


def _of_profile(exhibit: Exhibit) -> pd.DataFrame:
    model = exhibit.settings.model
    runs = [
        exhibit.runs([stage for stage in stages if stage.responses.method in ("base", "if_rlvr")])
        for stages in (exhibit.settings.score_stages(), exhibit.settings.quality_stages())
    ]
    table = summary_table(metrics_by_run(*runs))
    sides = {"base": "before", "if_rlvr": "after"}
    models = {"base": model, "if_rlvr": f"{model}, IF-RLVR"}
    return table.assign(
        pair=f"{model}, trained here",
        side=table["method"].map(sides),
        model=table["method"].map(models),
        reference=model,
    )


def changes(table: pd.DataFrame) -> pd.DataFrame:
    """After minus before, a row a pair and metric, and whether the sign is the paper's.

    Columns: ``pair``, ``metric``, ``before``, ``after``, ``change``, ``paper`` (the sign of the
    change in all three pairs of the paper, which prints no numbers), ``verdict``.
    """
    wide = table.pivot(index=["pair", "metric"], columns="side", values="mean")
    order = pd.MultiIndex.from_frame(table[["pair", "metric"]].drop_duplicates())
    wide = wide.reindex(order)[["before", "after"]].reset_index()
    wide["change"] = wide["after"] - wide["before"]
    signs = wide["metric"].map(METRICS)
    wide["paper"] = signs.map({1: "higher", -1: "lower"})
    same = np.sign(wide["change"]) == signs
    verdict = np.where(same, "as in the paper", "not as in the paper")
    return wide.assign(verdict=np.where(wide["change"].isna(), "not measured", verdict))
