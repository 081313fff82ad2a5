"""The prompts of a training run with their bounds: the data set that a trainer reads."""

from __future__ import annotations

import numpy as np
from datasets import Dataset

from califkit.anchors.rows import AnchorError
from califkit.anchors.table import bounds_for, degenerate, join_anchors, load_anchors
from califkit.data.load import Instance, Loaded
from califkit.data.rows import constraints_json
from califkit.runs.folders import Run
from califkit.runs.stages import TrainStage


def training_rows(
    stage: TrainStage, anchors: Run, loaded: Loaded
) -> tuple[list[Instance], Dataset]:
    """The prompts to train on, and the data set that TRL and `CalifReward` read.

    With ``drop_degenerate`` the same prompts are left out under every method that has the same
    anchors, whether or not the bounds enter its reward.

    Raises
    ------
    AnchorError
        If the anchors were measured otherwise or for other prompts, or fewer prompts than one step
        takes are left.
    """
    table = join_anchors(
        loaded.instances, load_anchors(anchors, stage.anchors, data_sha256=loaded.sha256)
    )
    kept = np.ones(len(table), dtype=bool)
    if stage.training.drop_degenerate:
        kept = ~degenerate(table)
    instances = [i for i, keep in zip(loaded.instances, kept, strict=True) if keep]
    if len(instances) < stage.training.prompts_per_step:
        raise AnchorError(
            f"{anchors.folder}: {len(instances)} of {len(table)} prompts have sound anchors, fewer "
            f"than training.prompts_per_step = {stage.training.prompts_per_step}"
        )
    l0, l1 = (bound[kept].tolist() for bound in bounds_for(stage.method, table))
    rows = Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": i.prompt}] for i in instances],
            "key": [i.key for i in instances],
            "request": [i.request for i in instances],
            "constraints": [constraints_json(i.constraints) for i in instances],
            "l0": l0,
            "l1": l1,
            "anchor_r_ver": table["constrained_r_ver"][kept].tolist(),
            "anchor_tokens": table["constrained_tokens"][kept].tolist(),
        }
    )
    return instances, rows
