"""Controls in a notebook: edit a response, move the bounds, and see what it earns at once.

Made of ipywidgets, so they act where a kernel runs (JupyterLab); a page shows the cells around.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import display

from califkit.evaluation.scores import score_texts
from califkit.exhibits.plots.anchors import likelihood_axis, region
from califkit.models.likelihood import ReferenceScorer
from califkit.rewards.rules import calif_reward
from califkit.verifiers import Constraint, verify

_LEVELS = (0.0, 0.5, 1.0)


def response_playground(
    scorer: ReferenceScorer,
    request: str,
    constraints: Sequence[Constraint],
    response: str,
    l0: float,
    l1: float,
    alpha: float = 0.1,
) -> widgets.Widget:
    """A text field for the response and sliders for alpha and the bounds, above verdicts,
    likelihood, zone and reward, which follow every change."""
    text = widgets.Textarea(
        response, description="response", layout=widgets.Layout(width="95%", height="7em")
    )
    controls = {"text": text, **_sliders(alpha, l0, l1)}

    def show(text: str, alpha: float, l0: float, l1: float) -> None:
        verdicts = {c.id: [verify(c, text, m) for m in ("strict", "loose")] for c in constraints}
        display(pd.DataFrame(verdicts, index=["strict", "loose"]).T)
        scored = score_texts(scorer, request, constraints, {"your response": text}, l0, l1, alpha)
        row = scored.loc["your response"]
        print(f"r_ver = {row['r_ver']:.2f}, l = {row['l']:.2f}, zone: {row['zone']}")
        print(f"IF-RLVR gives {row['IF-RLVR']:.2f}, CaLIF gives {row['CaLIF']:.2f}")
        if np.isfinite(row["l"]):
            _show_figure(likelihood_axis(scored, l0, l1))

    return _linked(show, controls)


def region_playground(alpha: float = 0.1, l0: float = -3.5, l1: float = -1.5) -> widgets.Widget:
    """Sliders for alpha, l0 and l1 above the reward over l (Figure 4); l0 may exceed l1."""

    def show(alpha: float, l0: float, l1: float) -> None:
        _show_figure(region(reward_curves(alpha, l0, l1))[0])

    return _linked(show, _sliders(alpha, l0, l1))


def reward_curves(alpha: float, l0: float, l1: float) -> pd.DataFrame:
    """The CaLIF reward on a grid of l that contains the bounds, for none, half and all of the
    constraints followed: what `califkit.exhibits.plots.anchors.region` draws."""
    grid = np.union1d(np.linspace(-6, 0, 1201), [l0, l1])
    frames = []
    for r_ver in _LEVELS:
        reward = calif_reward(np.full(grid.shape, r_ver), grid, l0, l1, alpha)
        frames.append(
            pd.DataFrame({"l0": l0, "l1": l1, "r_ver": r_ver, "l": grid, "reward": reward})
        )
    return pd.concat(frames, ignore_index=True)


def _sliders(alpha: float, l0: float, l1: float) -> dict[str, widgets.Widget]:
    ranges = {"alpha": (alpha, 0, 1), "l0": (l0, -6, 0), "l1": (l1, -6, 0)}
    return {
        name: widgets.FloatSlider(
            value, min=low, max=high, step=0.05, description=name, continuous_update=False
        )
        for name, (value, low, high) in ranges.items()
    }


def _linked(show: Callable[..., None], controls: dict[str, widgets.Widget]) -> widgets.Widget:
    shown = widgets.interactive_output(show, controls)
    return widgets.VBox([*controls.values(), shown])


def _show_figure(axis: Any) -> None:
    display(axis.figure)
    plt.close(axis.figure)
