"""Fig. 7 draws its table, all of it, and says what it could not draw."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from califkit.exhibits.methods import look
from califkit.exhibits.plots.results import constraint_types
from califkit.exhibits.plots.shared import THEME
from califkit.exhibits.summary import NO_JUDGE

METHODS = ("base", "if_rlvr", "calif")
TYPES = ("count", "words")
METRICS = ("prompt_level_loose_acc", "response_quality", "tokens", "loglik")


@pytest.fixture(autouse=True)
def theme():
    with plt.rc_context(THEME):
        yield
    plt.close("all")


def type_table(judge: str = "", n_count: int = 4) -> pd.DataFrame:
    """Values that tell type, method and metric apart; the interval reaches 1 below and 3 above."""
    rows = []
    for i, name in enumerate(TYPES):
        for j, method in enumerate(METHODS):
            for k, metric in enumerate(METRICS):
                n = n_count if name == "count" else 7
                quality = metric == "response_quality"
                value = np.nan if n == 0 or (quality and not judge) else 10 * i + 100 * k + j + 2.0
                note = NO_JUDGE if quality and not judge else ""
                rows.append((name, method, metric, value, value - 1, value + 3, n, note))
    columns = ["type", "method", "metric", "value", "low", "high", "n", "note"]
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(judge=np.where(table["metric"] == "response_quality", judge, ""))


def heights(ax, method: str) -> list[float]:
    colour = to_rgb(look(method).colour)
    return [bar.get_height() for bar in ax.patches if to_rgb(bar.get_facecolor()[:3]) == colour]


def words(ax) -> str:
    return "\n".join([*(t.get_text() for t in ax.texts), ax.get_title()])


def test_bars_and_intervals_are_those_of_the_table():
    axes = constraint_types(type_table("a-judge"))
    assert len(axes) == 3
    for ax, start in zip(axes, (0, 100, 200), strict=True):
        for j, method in enumerate(METHODS):
            assert heights(ax, method) == [start + j + 2, start + 10 + j + 2]
        ends = sorted((min(line.get_ydata()), max(line.get_ydata())) for line in ax.lines)
        assert ends == [(start + v - 1, start + v + 3) for v in (2, 3, 4, 12, 13, 14)]
    labels = [tick.get_text() for tick in axes[0].get_xticklabels()]
    assert labels == ["count\nn = 4", "words\nn = 7"]
    legend = [text.get_text() for text in axes[0].figure.legends[0].get_texts()]
    assert legend == [
        "base",
        "IF-RLVR",
        "CaLIF",
        "95 % interval over prompts (Wilson, others bootstrap)",
    ]


def test_bars_of_one_group_do_not_overlap():
    ax = constraint_types(type_table("a-judge"))[0]
    spans = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in ax.patches)
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))


def test_quality_names_its_judge_or_says_why_it_is_empty():
    _, quality, _ = constraint_types(type_table("a-judge"))
    assert "judge: a-judge" in words(quality) and "not measured" not in words(quality)
    satisfaction, quality, _ = constraint_types(type_table())
    assert NO_JUDGE in words(quality).replace("\n", " ")
    assert "judge" not in quality.get_title() and "not measured" not in words(satisfaction)


def test_a_type_without_prompts_and_a_bar_of_zero_are_not_blank():
    table = type_table(n_count=0)
    zero = (table["type"] == "words") & (table["metric"] == "prompt_level_loose_acc")
    table.loc[zero, ["value", "low", "high"]] = 0.0
    ax = constraint_types(table)[0]
    assert "no prompt" in words(ax)
    assert [t.get_text() for t in ax.texts].count("0") == 3


def test_nothing_is_cut_off_at_the_edge_of_the_figure():
    figure = constraint_types(type_table("a-judge-with-a-long-name"))[0].figure
    figure.canvas.draw()
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert box.x0 > -0.01 and box.y0 > -0.01
    assert box.x1 < width + 0.01 and box.y1 < height + 0.01
