"""Training curves that follow a running job, in notebook outputs that are redrawn in place."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from IPython.display import Image, display
from matplotlib.figure import Figure

from califkit.exhibits.plots.training import training_curves, zone_shares
from califkit.exhibits.training import WINDOW, smoothed, steps_a_pass, training_table
from califkit.runs.folders import LOG, Run, open_run
from califkit.runs.jsonl import finished_rows
from califkit.runs.stages import TrainStage

_SHARE = 0.05
"""Largest share of the time that drawing may take from the training beside it."""


class LiveTraining:
    """A view of training runs for a notebook that waits for them::

        runs = exhibit.runs(stages, on_tick=LiveTraining(exhibit.profile, stages))

    Each call looks at the logs. If they have grown, the curves and zone shares of the steps so far
    replace the ones shown before, in the same outputs. ``window`` is the number of steps in the
    running means.
    """

    def __init__(self, profile: str, stages: Sequence[TrainStage], window: int = WINDOW) -> None:
        self.profile = profile
        self.stages = stages
        self.window = window
        self._seen: list[int] = []
        self._next = 0.0
        self._displays: list[Any] = []

    def __call__(self) -> None:
        runs = [open_run(self.profile, stage) for stage in self.stages]
        at_the_end = all(run.is_complete for run in runs)
        sizes = [_size(run) for run in runs]
        if sizes == self._seen or (time.monotonic() < self._next and not at_the_end):
            return
        with_steps = [run for run in runs if finished_rows(run.folder / LOG)]
        if not with_steps:
            return
        begin = time.monotonic()
        show_in_place(self._displays, self.pictures(with_steps))
        self._seen = sizes
        end = time.monotonic()
        self._next = end + (end - begin) / _SHARE

    def pictures(self, runs: Sequence[Run]) -> list[Image]:
        """Training curves and the share of rollouts in each zone."""
        steps = training_table(runs)
        a_pass = steps_a_pass(self.profile, self.stages[0])
        curves = training_curves(steps, smoothed(steps, self.window))
        drawn = (curves, zone_shares(steps, a_pass))
        return [image(axes[0].figure) for axes in drawn]


def _size(run: Run) -> int:
    path = run.folder / LOG
    return path.stat().st_size if path.exists() else 0


def show_in_place(displays: list[Any], contents: Sequence[Any]) -> None:
    """Show contents of a cell, or put them in the place of those shown before in ``displays``."""
    if not displays:
        displays += [display(content, display_id=True) for content in contents]
    else:
        for shown, content in zip(displays, contents, strict=True):
            shown.update(content)


def image(figure: Figure) -> Image:
    """A figure as a picture. It is closed, or a notebook would show it twice."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    plt.close(figure)
    return Image(buffer.getvalue())
