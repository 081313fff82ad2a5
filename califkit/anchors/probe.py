"""Extra reference answers to some prompts: what one sample a side cannot tell of the bounds.

With one sample (the paper's setting) nothing says whether reversed bounds stay reversed, how far a
bound scatters, or what the reward would do to rollouts of step 0, which are answers of the
reference too. A probe draws `PROBE_DRAWS` more a side for a few prompts and scores them, into
`PROBE` beside the rows of a complete anchor run. Bounds, hash and manifest of the run stay as they
are; the health report (`califkit.anchors.report`) takes the probe into account.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from califkit.anchors.measure import Draw, bytes_needed, draw_and_score, draw_units, drawing
from califkit.anchors.rows import SIDES, AnchorError
from califkit.anchors.table import anchor_table, join_anchors, load_anchors
from califkit.data.load import Instance
from califkit.models.engines import check_engine
from califkit.runs.folders import Run
from califkit.runs.jsonl import RowLog, finished_rows
from califkit.runs.locks import locked
from califkit.runs.paths import check_writable, explaining_full_disk
from califkit.runs.settings import Execution
from califkit.runs.units import resume_units, run_units

PROBE = "probe.jsonl"

PROBE_DRAWS = 3
"""Extra answers a side and prompt."""

SEED_STREAM = (1,)
"""Continues the seeds of the anchors, so that a probe draws other answers from the same seed."""


def draw_probe(
    run: Run, instances: Sequence[Instance], execution: Execution, n_prompts: int
) -> None:
    """Draw and score a probe, or continue one that was interrupted; a complete one costs nothing.

    Of the training prompts of a complete anchor run ``n_prompts`` are probed, evenly spread over
    their order. `AnchorError` if the run is not complete or of other prompts, its bounds were
    measured otherwise than this machine would (`califkit.anchors.table.load_anchors`), or it holds
    a probe of another number of prompts.
    """
    join_anchors(instances, load_anchors(run))
    if not 1 <= n_prompts <= len(instances):
        raise AnchorError(f"a probe takes 1 to {len(instances)} prompts here, not {n_prompts}")
    stage = run.stage
    check_engine(stage.engine)
    picks = ((np.arange(n_prompts) + 0.5) * len(instances) / n_prompts).astype(int)
    probed = [instances[i] for i in picks]
    units = draw_units(probed, PROBE_DRAWS, stage.anchors.sampling.batch_size)
    sizes = [len(unit) for unit in units]
    check_writable(run.folder)
    with explaining_full_disk(run.folder), locked(run.folder / ".probe.lock"):
        log = RowLog(run.folder / PROBE)
        known = {row["probe"] for row in log.rows()}
        if known - {n_prompts}:
            raise AnchorError(
                f"{log.path}: holds a probe of {known.pop()} prompts, not of {n_prompts}; delete "
                "the file to draw another"
            )
        missing = sum(sizes[resume_units(log, sizes) :])
        if not missing:
            return
        load_anchors(run, stage)  # l of the probe must mean what l0 and l1 mean
        check_writable(run.folder, bytes_needed(stage, missing))
        with drawing(stage, execution) as (engine, scorer):

            def compute(number: int, unit: Sequence[Draw]) -> list[dict[str, Any]]:
                rows = draw_and_score(engine, scorer, number, unit, stage.anchors, SEED_STREAM)
                return [row | {"probe": n_prompts} for row in rows]

            run_units(log, units, compute, "probe")


def read_probe(run: Run, instances: Sequence[Instance]) -> pd.DataFrame | None:
    """The probe of a run as a table like that of the bounds, a row a probed prompt with
    `PROBE_DRAWS` samples; None if there is none. `AnchorError` if it is not complete.
    """
    path = run.folder / PROBE
    rows = finished_rows(path)
    if not rows:
        return None
    n_prompts = rows[0]["probe"]
    expected = n_prompts * len(SIDES) * PROBE_DRAWS
    if len(rows) < expected:
        raise AnchorError(
            f"{path}: the probe has {len(rows)} of {expected} answers; `califkit anchors report "
            f"--probe {n_prompts}` draws the others"
        )
    keys = {row["key"] for row in rows}
    return anchor_table([i for i in instances if i.key in keys], rows, PROBE_DRAWS)
