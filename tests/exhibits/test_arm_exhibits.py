"""Figures 8 and 9, Tables 3 and 4: on results small enough to work out by hand."""

import numpy as np
import pandas as pd
import pytest
import yaml

from califkit.exhibits.arms import (
    JUDGE_REWARDS,
    NO_KL,
    NOT_RUN,
    ablations_beside_paper,
    beside_main,
    judge_rewards,
    metrics_won,
    quality_metric,
    sweep_points,
    with_differences,
)
from califkit.exhibits.methods import arm_label
from califkit.exhibits.plots.arms import no_kl
from califkit.exhibits.tables import arms_table
from califkit.runs.arms import load_arms


def results(**cells: dict[str, float]) -> pd.DataFrame:
    """Arms with their metrics, in one configuration."""
    rows = [
        {"configuration": "", "arm": arm, "method": arm, "metric": metric, "mean": value}
        for arm, metrics in cells.items()
        for metric, value in metrics.items()
    ]
    return pd.DataFrame(rows).assign(std=np.nan, runs=1, judge="", note="")


def satisfaction(cs: float, information: float, quality: float = np.nan) -> dict[str, float]:
    names = ("prompt_level_loose_acc", "information", "response_quality")
    return dict(zip(names, (cs, information, quality), strict=True))


@pytest.fixture
def arms(tmp_path):
    reward = {"methods": ["calif"], "reward": {"ceiling_margin": 0.7}}
    groups = {
        "main": {
            "arms": {
                "if_rlvr": {"methods": ["if_rlvr"]},
                "calif": {"methods": ["calif"]},
                "variant": reward,
            }
        },
        "alpha": {"settings": reward, "arms": {"a": {"alpha": 0.5}, "b": {"alpha": 0.01}}},
        "beta": {
            "arms": {
                "c": {"methods": ["if_rlvr"], "training": {"beta": 0.05}},
                "d": {"methods": ["calif"], "training": {"beta": 0.0}},
            }
        },
    }
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"profile": "sweep", "groups": groups}))
    return load_arms(path)


def test_a_sweep_runs_through_the_main_arm_that_differs_in_the_coefficient_alone(arms):
    found = results(
        base=satisfaction(20, 9),
        if_rlvr=satisfaction(40, 1),
        calif=satisfaction(30, 8),
        variant=satisfaction(25, 7),
        a=satisfaction(22, 6),
        c=satisfaction(33, 3),
        d=satisfaction(1, 1),
    )
    table = sweep_points(found, arms)
    here = table[table["source"] == "this run"].set_index(["curve", "coefficient"])
    # The alphas are those of the variant, so the printed rule is no point of their curve.
    assert here.loc["CaLIF, alpha"]["x"].dropna().to_dict() == {0.1: 25, 0.5: 22}
    assert here.loc[("CaLIF, alpha", 0.01), "note"] == NOT_RUN
    assert here.loc["IF-RLVR, beta"]["y"].to_dict() == {0.001: 1, 0.05: 3}, "information, no judge"
    assert here.loc["base"]["x"].tolist() == [20]


def test_without_a_sweep_the_main_arms_are_points(arms):
    main = [arm for arm in arms if arm.group == "main"]
    table = sweep_points(results(base=satisfaction(20, 9), calif=satisfaction(30, 8)), main)
    here = table[table["source"] == "this run"].set_index(["curve", "coefficient"])
    assert here.loc[("CaLIF, alpha", 0.1), ["x", "y"]].tolist() == [30, 8]
    assert here.loc[("IF-RLVR, beta", 0.001), "note"] == NOT_RUN


def test_the_bars_of_figure_9_stay_inside_and_say_what_was_not_run():
    table = with_differences(
        results(base=satisfaction(20, 9), calif=satisfaction(30, 8)),
        NO_KL,
        ["prompt_level_loose_acc", "information"],
    )
    left, right = no_kl(table, "information")
    low, high = left.get_xlim()
    assert all(low < bar.get_x() and bar.get_x() + bar.get_width() < high for bar in left.patches)
    assert [text.get_text() for text in right.texts] == [NOT_RUN] * 2
    heights = [bar.get_height() for bar in left.patches if not np.isnan(bar.get_height())]
    assert heights == [20, 30]


def test_figure_9_is_of_the_configuration_that_has_an_arm_without_kl():
    shown = beside_main(load_arms("paper"), NO_KL)
    assert [arm.label for arm in shown] == [
        f"qwen3-1.7b, {name}" for name in ("if_rlvr", "calif", "calif_beta_0")
    ]


def test_without_such_an_arm_all_main_ones_are_shown(arms):
    assert {arm.name for arm in beside_main(arms, NO_KL)} == {"if_rlvr", "calif", "variant"}


def test_the_paper_prints_four_points_of_figure_8():
    table = sweep_points(results(base=satisfaction(20, 9)), [])
    printed = table[table["source"] == "paper"].set_index(["curve", "coefficient"])
    points = printed[["x", "y"]].apply(tuple, axis="columns")
    assert points[("CaLIF, alpha", 0.1)] == (28.78, 4.01)
    assert points[("IF-RLVR, beta", 0.05)] == (23.0, 3.98)
    assert points[("IF-RLVR, beta", 0.001)] == (41.44, 2.16)
    assert len(points) == 4


def test_quality_is_response_quality_only_where_a_judge_has_measured_it():
    assert quality_metric(results(base=satisfaction(20, 9))) == "information"
    assert quality_metric(results(base=satisfaction(20, 9, 4.0))) == "response_quality"


def test_differences_are_from_the_base_policy_and_missing_arms_say_so():
    table = with_differences(
        results(base={"loglik": -1.5, "tokens": 485}, calif={"loglik": -1.42, "tokens": 550}),
        ("base", "calif", "calif_beta_0"),
        ("loglik", "tokens"),
    ).set_index(["arm", "metric"])
    assert table.loc[("calif", "tokens"), "difference"] == 65
    assert np.isnan(table.loc[("base", "tokens"), "difference"])
    assert table.loc[("calif_beta_0", "tokens"), ["runs", "note"]].tolist() == [0, NOT_RUN]
    words = arms_table(table.reset_index(), "").cells
    assert words.loc[("", "CaLIF")].tolist() == ["-1.42 (+0.08)", "550 (+65)"]
    assert words.loc[("", arm_label("calif_beta_0"))].tolist() == ["-", "-"]


def test_table_4_has_the_papers_numbers_and_differences_as_printed():
    metrics = {"prompt_level_loose_acc": 20.0, "loglik": -1.0, "tokens": 30.0, "distinct_2": 0.9}
    metrics |= {"response_quality": np.nan}
    table = ablations_beside_paper(results(base=metrics, no_lower=metrics))
    cell = table.set_index(["arm", "metric"]).loc
    assert cell[("no_lower", "tokens")][["difference", "paper", "paper_difference"]].tolist() == [
        0.0,
        106.0,
        -379.0,
    ]
    assert cell[("direct_bonus", "loglik")]["note"] == NOT_RUN
    assert cell[("direct_bonus", "loglik")]["paper"] == -0.68


def test_metrics_won_counts_those_that_all_three_have():
    ours = {
        "calif": satisfaction(30, 0, 5.0) | {"followbench_hsr": 50.0},
        "self_judge": satisfaction(20, 0, 6.0) | {"followbench_hsr": 40.0},
        "stronger_judge": satisfaction(25, 0, 4.0),
    }
    table = judge_rewards(results(base=satisfaction(1, 1, 1), **ours))
    won = metrics_won(table).set_index(["source", "configuration"])
    assert won.loc[("this run", "")].tolist() == [1, 2]  # quality goes to the self judge
    assert won.loc[("paper", "Tulu 3 8B DPO")].tolist() == [10, 11]
    assert won.loc[("paper", "Qwen3-4B (thinking)")].tolist() == [7, 11]
    assert set(table["reward"]) == set(JUDGE_REWARDS)


def test_without_judge_rewards_nothing_is_compared():
    won = metrics_won(judge_rewards(results(base=satisfaction(1, 1), calif=satisfaction(2, 2))))
    assert won.set_index("source").loc["this run", ["won", "compared"]].tolist() == [0, 0]
