"""What a training run computes in: float32, or bfloat16 autocast. Weights are float32 either way.

Bfloat16 weights would swallow updates of this size; autocast makes the matrix products faster and
leaves weights and optimiser as they are. The scorer of l has a rule of its own
(`califkit.models.likelihood.scoring_precision`).
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch

from califkit.runs.folders import StaleRunError
from califkit.training.checkpoints import begun

WORTH_IT = 1.3
"""How much faster bfloat16 has to be on a CPU to be taken."""


def training_precision(asked: str | None, run: Path, processes: int = 1) -> str:
    """The precision of a run: as it was begun, as asked for, or what is faster here.

    A GPU computes in bfloat16. So does a CPU if that is measurably faster; several processes on one
    would disturb each other's measurement and take float32.

    Parameters
    ----------
    asked
        ``training.precision``; None chooses.
    run
        Folder of the run.

    Returns
    -------
    str
        ``float32`` or ``bfloat16``.

    Raises
    ------
    StaleRunError
        If another precision is asked for than the run was begun with.
    """
    facts = begun(run)
    if facts is not None:
        # Runs of before this setting have noted what TRL was told.
        before = "bfloat16" if facts["trl_config"]["bf16"] else "float32"
        if asked not in (None, before):
            raise StaleRunError(
                f"{run}: was begun in {before} and cannot go on in {asked}; set "
                f"training.precision = {before} to continue, or delete the folder to begin again"
            )
        return before
    if asked is not None:
        return asked
    faster = torch.cuda.is_available() or (processes == 1 and bfloat16_speed() >= WORTH_IT)
    return "bfloat16" if faster else "float32"


def bfloat16_speed() -> float:
    """How many times as fast this CPU multiplies under bfloat16 autocast, measured in under 0.2 s.

    In CPU seconds, which other load hardly moves. Without instructions for bfloat16 a CPU is
    several times slower in it.
    """
    seconds = {False: math.inf, True: math.inf}
    tokens, weights = torch.full((256, 768), 0.5), torch.full((768, 768), 0.5)
    for _ in range(4):  # the first warms up
        for enabled in seconds:
            started = time.process_time()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                torch.nn.functional.linear(tokens, weights)
            seconds[enabled] = min(seconds[enabled], time.process_time() - started)
    return seconds[False] / seconds[True]
