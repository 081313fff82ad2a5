"""What the figures draw: the table, all of it, told apart without colour; and the files written."""

from typing import get_args

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_rgb

from califkit.exhibits.exhibit import Exhibit
from califkit.exhibits.methods import LOOKS, MAIN, look
from califkit.exhibits.pairs import pairs_beside_paper, transitions_beside_paper
from califkit.exhibits.plots.anchors import anchor_bounds, anchor_health, likelihood_axis, region
from califkit.exhibits.plots.results import (
    id_shares,
    likelihood_bars,
    main_results,
    pair_outcomes,
    transition_changes,
)
from califkit.exhibits.plots.shared import THEME
from califkit.exhibits.plots.training import training_curves, zone_shares
from califkit.exhibits.summary import NO_JUDGE, beside_paper
from califkit.rewards.rules import calif_reward
from califkit.runs.params import Params
from califkit.runs.settings import Method


@pytest.fixture(autouse=True)
def theme():
    with plt.rc_context(THEME):
        yield
    plt.close("all")


def texts(ax) -> str:
    """Everything written in an Axes and its figure's legends."""
    found = [t.get_text() for t in ax.texts] + [t.get_text() for t in ax.get_yticklabels()]
    found += [t.get_text() for t in ax.get_xticklabels()] + [ax.get_title(), ax.get_ylabel()]
    legends = [*ax.figure.legends, *([ax.get_legend()] if ax.get_legend() else [])]
    found += [t.get_text() for legend in legends for t in legend.get_texts()]
    return "\n".join(found)


def is_hollow(colour) -> bool:
    return to_rgb(colour) == (1.0, 1.0, 1.0)


def test_methods_are_told_apart_by_colour_marker_line_and_hatch():
    assert sorted(LOOKS) == sorted(["base", *get_args(Method)])
    assert MAIN == ("base", "if_rlvr", "calif")
    for part in ("colour", "marker", "dashes", "hatch"):
        assert len({getattr(look(method), part) for method in MAIN}) == 3
    for part in ("label", "marker", "hatch"):
        assert len({getattr(one, part) for one in LOOKS.values()}) == len(LOOKS)
    # Luminances (ITU-R BT.709) that stay apart on a grey print.
    grey = sorted(np.dot(to_rgb(look(m).colour), (0.2126, 0.7152, 0.0722)) for m in MAIN)
    assert np.diff(grey).min() > 0.05


def test_a_method_without_a_look_is_named_with_the_place_to_add_it():
    with pytest.raises(KeyError, match=r"'mine' has no label.*califkit\.exhibits\.methods\.LOOKS"):
        look("mine")


def reward_curves(l0: float, l1: float) -> pd.DataFrame:
    grid = np.union1d(np.linspace(-4, 0, 41), [l0, l1])
    frames = [
        pd.DataFrame(
            {
                "l0": l0,
                "l1": l1,
                "r_ver": r,
                "l": grid,
                "reward": calif_reward(np.full(grid.shape, r), grid, l0, l1),
            }
        )
        for r in (0.0, 0.5, 1.0)
    ]
    return pd.concat(frames)


def test_region_draws_the_rewards_given_and_names_the_zones():
    curves = pd.concat([reward_curves(-3.0, -1.0), reward_curves(-1.0, -2.0)])
    usual, reverse = region(curves)
    drawn = {line.get_ydata().max() for line in usual.lines if len(line.get_xdata()) > 10}
    assert drawn == {0.0, 0.6, 1.1}
    assert {line.get_ydata().max() for line in reverse.lines if len(line.get_xdata()) > 10} == {
        0.0,
        0.5,
        1.0,
    }
    for words in ("quality\nrisk", "desired", "inflation\nrisk", "l0", "l1", "r_{ver}"):
        assert words in texts(usual)
    assert "desired" not in texts(reverse)
    assert "no bonus anywhere" in texts(reverse)


def test_likelihood_axis_shows_every_answer_between_the_bounds():
    points = pd.DataFrame(
        {"l": [-9.0, -2.0, -0.5], "r_ver": [1.0, 0.5, 0.0], "CaLIF": [1.0, 0.6, 0.0]},
        index=["keywords", "good", "loop"],
    )
    ax = likelihood_axis(points, l0=-3.0, l1=-1.0)
    markers = [line for line in ax.lines if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in markers] == [-9.0, -2.0, -0.5]
    assert [is_hollow(line.get_markerfacecolor()) for line in markers] == [False, False, True]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["keywords", "good", "loop"]
    for words in ("reward 0.60", "r_ver 0.50", "below l0: quality risk", "above l1"):
        assert words in texts(ax)
    low, high = ax.get_xlim()
    assert low < -9.0
    assert high == 0.0  # a log-likelihood cannot be positive


def test_anchor_bounds_mark_reversed_prompts_and_leave_out_missing_ones():
    table = pd.DataFrame({"l0": [-3.0, -2.0, np.nan], "l1": [-1.0, -4.0, -2.0]})
    scatter, histogram = anchor_bounds(table)
    (points,) = scatter.collections
    assert points.get_offsets().tolist() == [[-3.0, -1.0], [-2.0, -4.0]]
    assert "a region (1)" in texts(scatter)
    assert "reversed (1)" in texts(scatter)
    # The steps of l0 and of l1: two prompts and three, each alone in its bin.
    tops = [area.get_paths()[0].vertices[:, 1].max() for area in histogram.collections]
    assert tops == [1.0, 1.0]
    assert [t.get_text() for t in histogram.get_legend().get_texts()] == ["l0", "l1"]


def training(steps: int = 4) -> pd.DataFrame:
    frames = []
    for method, slope in (("if_rlvr", -1.0), ("calif", -0.5)):
        step = np.arange(1, steps + 1)
        frames.append(
            pd.DataFrame(
                {
                    "method": method,
                    "train_seed": 0,
                    "step": step,
                    "r_ver": 0.1 * step,
                    "reward": 0.1 * step,
                    "loglik": -3 + slope * step,
                    "tokens": 30.0 - step,
                    "distinct_2": 0.9,
                    "below": 0.5,
                    "inside": 0.2,
                    "above": 0.2,
                    "reversed": 0.1,
                    "unbounded": 0.0,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def test_training_curves_draw_steps_faintly_and_means_strongly():
    steps = training()
    smooth = steps.assign(loglik=-5.0)
    axes = training_curves(steps, smooth)
    curves = [line for line in axes[1].lines if len(line.get_xdata()) == 4]
    faint = [line for line in curves if line.get_alpha() < 1]
    assert [line.get_ydata()[-1] for line in faint] == [-7.0, -5.0]
    assert all((line.get_ydata() == -5.0).all() for line in curves if line.get_alpha() == 1)
    along = [line for line in axes[4].lines if len(line.get_xdata()) == 4]
    assert all(np.allclose(line.get_xdata(), [0.1, 0.2, 0.3, 0.4]) for line in along)
    assert "IF-RLVR" in texts(axes[5])


def test_zone_shares_are_stacked_to_one_and_an_absent_zone_is_not_listed():
    axes = zone_shares(training())
    assert [ax.get_title() for ax in axes] == ["IF-RLVR", "CaLIF"]
    second_step = [bar for bar in axes[0].patches if 1.5 < bar.get_x() < 2]
    tops = sorted(bar.get_y() + bar.get_height() for bar in second_step)
    assert np.allclose(tops, [0.5, 0.7, 0.9, 1.0])
    assert "no bounds" not in texts(axes[0])


def test_zone_shares_are_means_over_a_pass_and_over_seeds():
    table = training()  # four steps of two methods
    twin = table.assign(train_seed=1, inside=0.0, below=table["below"] + table["inside"])
    axes = zone_shares(pd.concat([table, twin]), steps_a_pass=3)
    assert [ax.get_title() for ax in axes] == ["IF-RLVR", "CaLIF"]
    assert {round(bar.get_x() + 0.45, 6) for bar in axes[0].patches} == {1.0, 2.0}
    own = table[(table["method"] == "if_rlvr") & (table["step"] <= 3)]
    heights = [bar.get_height() for bar in axes[0].patches if bar.get_x() < 1]
    assert any(np.isclose(height, own["inside"].mean() / 2) for height in heights)
    assert np.isclose(sum(heights), 1.0)
    assert axes[0].get_xlabel() == "pass over the prompts"


def summary(metric_values: dict[str, dict[str, float]], judge: bool = False) -> pd.DataFrame:
    rows = []
    for method, values in metric_values.items():
        rows += [(method, metric, mean, 0.5, 3, "", "") for metric, mean in values.items()]
        if judge:
            rows.append((method, "response_quality", 5.0, 0.1, 3, "grader", ""))
        else:
            rows.append((method, "response_quality", np.nan, np.nan, 0, "", NO_JUDGE))
    columns = ["method", "metric", "mean", "std", "runs", "judge", "note"]
    return pd.DataFrame(rows, columns=columns)


VALUES = {
    "base": {"prompt_level_loose_acc": 15.0, "loglik": -2.0},
    "if_rlvr": {"prompt_level_loose_acc": 21.0, "loglik": -4.0},
    "calif": {"prompt_level_loose_acc": 18.0, "loglik": -2.5},
}
FIG5 = ["prompt_level_loose_acc", "loglik", "response_quality"]


def marked(ax, hollow: bool) -> set[tuple[float, float]]:
    """Positions of the filled or the hollow method markers of an Axes."""
    return {
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in ax.lines
        if line.get_marker() in {one.marker for one in LOOKS.values()}
        and is_hollow(line.get_markerfacecolor()) == hollow
    }


def test_main_results_fill_ours_and_leave_the_papers_hollow():
    table = beside_paper(summary(VALUES), "small-model", FIG5)
    left, middle, right = main_results(table)
    assert {x for x, _ in marked(left, hollow=False)} == {15.0, 21.0, 18.0}
    assert {22.22, 41.44, 28.78, 26.98, 44.93, 34.64} < {x for x, _ in marked(left, hollow=True)}
    assert marked(middle, hollow=False) == {(15.0, -2.0), (21.0, -4.0), (18.0, -2.5)}
    assert marked(middle, hollow=True) == {(22.22, -1.5), (41.44, -5.91), (28.78, -1.42)}
    assert "small-model\n(this run)" in texts(left)
    assert "paper: not printed for Qwen3-1.7B (thinking), Qwen3-4B)" in left.get_xlabel()
    assert len(left.get_yticks()) == 5, "this run and the four of which the paper prints something"
    assert "hollow: paper" in texts(left)


def test_main_results_never_show_a_response_quality_that_was_not_measured():
    table = beside_paper(summary(VALUES), "small-model", FIG5)
    _, middle, right = main_results(table)
    assert marked(right, hollow=False) == set()
    assert (22.22, 3.98) in marked(right, hollow=True)
    assert NO_JUDGE in texts(right)
    assert "not response quality" in middle.get_title()
    table = beside_paper(summary(VALUES, judge=True), "small-model", FIG5)
    *_, right = main_results(table)
    assert len(marked(right, hollow=False)) == 3
    assert "not measured" not in texts(right)
    assert "this run: grader; paper: GPT-5.6 Sol" in right.get_ylabel()


def test_transition_changes_show_the_paper_hollow_and_ours_only_if_measured():
    table = pd.DataFrame(
        {
            "method": ["if_rlvr"] * 2 + ["calif"] * 2,
            "transition": ["pass_to_pass", "fail_to_pass"] * 2,
            "loglik_change": [-1.0, -2.0, 0.5, np.nan],
            "loglik_low": [-1.5, np.nan, 0.0, np.nan],
            "loglik_high": [-0.5, np.nan, 1.5, np.nan],
            "with_loglik": [3, 1, 4, 0],
            "quality_low": np.nan,
            "quality_high": np.nan,
            "scored": [3, 2, 4, 0],
            "pairs": [3, 2, 4, 0],
            "quality_change": [-1.5, -2.5, 0.25, np.nan],
            "judge": "grader",
            "note": "",
        }
    )
    left, right = transition_changes(table, transitions_beside_paper(table))
    assert {x for x, _ in marked(left, hollow=False)} == {-1.5, -2.5, 0.25}
    assert {x for x, _ in marked(left, hollow=True)} == {-1.26, -2.05, 0.01, -0.28}
    assert {x for x, _ in marked(right, hollow=False)} == {-1.0, -2.0, 0.5}
    assert all(f"n = {n}" in texts(right) for n in (3, 1, 4))
    spans = [c.get_segments()[0][:, 0].tolist() for c in right.collections]
    assert spans == [[-1.5, -0.5], [0.0, 1.5]], "two have an interval"
    assert "grader" in left.get_title()
    assert "not response quality" in right.get_title()
    table = table.assign(quality_change=np.nan, judge="")
    left, _ = transition_changes(table, transitions_beside_paper(table))
    assert marked(left, hollow=False) == set()
    assert "not measured" in left.get_title()


def test_pair_outcomes_are_shares_and_a_missing_row_says_why():
    none = pd.DataFrame(columns=["configuration", "first", "second"])
    ax = pair_outcomes(pairs_beside_paper(none, ["small-model"]))
    assert "small-model (this run)" in [t.get_text() for t in ax.get_yticklabels()]
    assert NO_JUDGE in texts(ax)
    bars = [bar for bar in ax.patches if bar.get_width() > 0]
    assert len(bars) == 6 * 3
    assert all(is_hollow(bar.get_facecolor()[:3]) for bar in bars)
    lowest = [bar.get_width() for bar in bars if bar.get_y() < 0]  # the overall row
    assert np.allclose(lowest, [71.0, 14.2, 14.8])
    pairs = pd.DataFrame(
        [("small-model", "calif", "if_rlvr", "grader", 10, 5, 3, 2, 65.0)],
        columns="configuration first second judge pairs wins ties losses adjusted_win_rate".split(),
    )
    ax = pair_outcomes(pairs_beside_paper(pairs, ["small-model"]))
    ours = [bar for bar in ax.patches if not is_hollow(bar.get_facecolor()[:3])]
    assert [bar.get_width() for bar in ours] == [50.0, 30.0, 20.0]


def test_likelihood_bars_say_what_is_not_printed():
    configurations = ("qwen3-1.7b", "qwen3-4b")
    table = beside_paper(summary(VALUES), "small-model", ["loglik"], configurations)
    ax = likelihood_bars(table)
    heights = {(round(b.get_height(), 2), is_hollow(b.get_facecolor()[:3])) for b in ax.patches}
    assert heights == {
        (-2.0, False),
        (-4.0, False),
        (-2.5, False),
        (-1.5, True),
        (-5.91, True),
        (-1.42, True),
    }
    assert ax.get_xlabel() == "(paper: not printed for Qwen3-4B)"
    assert "Qwen3-4B\n(paper)" not in texts(ax)


def test_id_shares_draw_each_id_and_its_count():
    table = pd.DataFrame(
        {"n": [3, 1], "base": [0.0, 50.0], "calif": [33.0, 50.0]}, index=["a", "b"]
    )
    ax = id_shares(table)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a  (n = 3)", "b  (n = 1)"]
    assert [line.get_xdata().tolist() for line in ax.lines] == [[0.0, 50.0], [33.0, 50.0]]


def test_nothing_is_cut_off_at_the_edge_of_a_figure():
    table = beside_paper(summary(VALUES), "smollm2-135m-instruct", FIG5)
    for axes in (main_results(table), zone_shares(training())):
        figure = np.ravel(axes)[0].figure
        figure.canvas.draw()
        box = figure.get_tightbbox()
        width, height = figure.get_size_inches()
        assert box.x0 > -0.01 and box.y0 > -0.01
        assert box.x1 < width + 0.01 and box.y1 < height + 0.01


def test_anchor_health_draws_answers_medians_and_reversed_shares():
    answers = pd.DataFrame(
        {
            "side": ["constrained", "constrained", "natural"],
            "tokens": [4, 40, 300],
            "l": [-4.0, -2.0, -1.0],
        }
    )
    by_length = pd.DataFrame(
        {
            "side": ["constrained", "constrained", "natural"],
            "tokens_from": [4, 32, 256],
            "tokens_to": [8, 64, 512],
            "median_l": [-4.0, -2.0, -1.0],
        }
    )
    octiles = pd.DataFrame(
        {
            "octile": [1, 2],
            "ratio_from": [0.1, 0.5],
            "ratio_to": [0.4, 3.0],
            "n": [5, 4],
            "reversed": [0.2, 0.75],
        }
    )
    left, right = anchor_health(answers, by_length, octiles)
    points = [p.get_offsets().tolist() for p in left.collections if isinstance(p, PathCollection)]
    assert points == [[[4, -4], [40, -2], [300, -1]]]
    bars = [p for p in left.collections if isinstance(p, LineCollection)]
    medians = [segment.tolist() for bar in bars for segment in bar.get_segments()]
    assert medians == [[[4, -4], [8, -4]], [[32, -2], [64, -2]], [[256, -1], [300, -1]]], (
        "up to the limit"
    )
    assert left.get_xscale() == "log"
    assert "constrained (2)" in texts(left) and "natural (1)" in texts(left)
    assert [bar.get_height() for bar in right.patches] == [20.0, 75.0]
    spans = [s for c in right.collections for s in c.get_segments()]
    ends = [tuple(span[:, 1] / 100) for span in spans]
    # The printed Wilson intervals of 1 of 5 and 3 of 4.
    assert np.allclose(ends, [(0.0362, 0.6245), (0.3006, 0.9544)], atol=5e-4)
    assert "n = 5" in texts(right) and "0.50\nto 3.00" in texts(right)


@pytest.fixture
def exhibit(tmp_path, monkeypatch) -> Exhibit:
    monkeypatch.setenv("CALIFKIT_ROOT", str(tmp_path))
    return Exhibit(Params(profile="some"), submit=False)


def test_a_saved_picture_comes_with_a_document_and_the_drawn_data(exhibit, tmp_path, capsys):
    table = training()
    axes = zone_shares(table)
    exhibit.save("zones", table, axes)
    paths = [tmp_path / "figures" / "some" / f"zones.{ending}" for ending in ("png", "pdf", "csv")]
    assert capsys.readouterr().out.split() == [str(path.relative_to(tmp_path)) for path in paths]
    pixels = plt.imread(paths[0]).shape[:2]
    assert pixels == tuple(round(200 * inch) for inch in axes[0].figure.get_size_inches()[::-1])
    assert paths[1].read_bytes().startswith(b"%PDF")
    pd.testing.assert_frame_equal(pd.read_csv(paths[2]), table)


def test_the_same_table_gives_the_same_bytes(exhibit, tmp_path):
    folder = tmp_path / "figures" / "some"
    table = beside_paper(summary(VALUES), "small-model", ["loglik"])
    exhibit.save("bars", table, likelihood_bars(table))
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    exhibit.save("bars", table, likelihood_bars(table))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first


def test_a_saved_table_is_markdown_for_readers_and_full_precision_for_programs(exhibit, tmp_path):
    table = pd.DataFrame({"name": ["a|b", "line\nbreak"], "value": [1 / 3, np.nan]})
    exhibit.save("table", table)
    csv, markdown = (tmp_path / "figures" / "some" / f"table.{ending}" for ending in ("csv", "md"))
    assert markdown.read_text().splitlines() == [
        "| name | value |",
        "| --- | --- |",
        "| a\\|b | 0.3333 |",
        "| line break |  |",
    ]
    assert pd.read_csv(csv)["value"].iloc[0] == 1 / 3
