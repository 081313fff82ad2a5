"""Tables 2 and 5: numbers from arithmetic on small made-up responses and verdicts."""

import json

import numpy as np
import pandas as pd
import pytest

from califkit.evaluation.quality import PAIRS
from califkit.exhibits import pairs, paper
from califkit.exhibits.plots.results import transition_changes
from califkit.exhibits.summary import NO_JUDGE
from califkit.runs.folders import Run
from califkit.runs.params import load_params

SETTINGS = load_params(
    "ci",
    {
        "judge": "grader",
        "execution": {"judges": [{"name": "grader", "model": "m", "base_url": "http://x/v1"}]},
    },
).settings


def responses(*rows: tuple, judge: str = "grader") -> pd.DataFrame:
    """Rows of (method, evaluation seed, key, passes, quality, loglik, tokens)."""
    columns = ["method", "eval_seed", "key", "passes", "quality", "loglik", "tokens"]
    table = pd.DataFrame(rows, columns=columns)
    seeds = table["method"].map({"base": None, "calif": 0, "if_rlvr": 0})
    texts = {"prompt": table["key"], "response": "y", "judge": judge, "train_seed": seeds}
    return table.assign(**texts)


NAN = float("nan")
RESPONSES = responses(
    ("base", 0, "a", True, 7, -1.0, 10),
    ("base", 0, "b", False, 8, -2.0, 20),
    ("base", 0, "c", False, 3, -3.0, 30),
    ("base", 1, "a", True, 4, -1.0, 10),
    ("base", 1, "b", False, NAN, -2.0, 20),
    ("base", 1, "c", True, 5, -1.0, 10),
    ("calif", 0, "a", True, 5, -1.5, 4),
    ("calif", 0, "b", True, 2, -4.0, 2),
    ("calif", 0, "c", False, 3, NAN, 0),
    ("calif", 1, "a", True, 5, -2.0, 6),
    ("calif", 1, "b", True, 9, -3.0, 8),
    ("calif", 1, "c", True, 9, -1.0, 11),
)


def test_changes_are_means_over_the_pairs_of_all_runs_in_each_transition():
    table = pairs.transition_table(RESPONSES, "calif").set_index("transition")
    assert table["pairs"].to_dict() == {
        "pass_to_pass": 3,
        "fail_to_pass": 2,
        "pass_to_fail": 0,
        "fail_to_fail": 1,
    }
    # a: 5 - 7 and 5 - 4, c of the second run: 9 - 5; b: 2 - 8, and one that is unscored.
    assert table["quality_change"].iloc[:2].tolist() == [1.0, -6.0]
    assert table["scored"].tolist() == [3, 1, 0, 1]
    assert table["loglik_change"].iloc[:2].tolist() == [-0.5, -1.5]
    assert table["with_loglik"].tolist() == [3, 2, 0, 0]
    assert table["tokens_change"].iloc[:2].tolist() == [-3.0, -15.0]
    assert table["tokens_change"].iloc[3] == -30.0
    assert set(table["judge"]) == {"grader"}


def test_an_empty_transition_and_a_missing_score_are_reported():
    table = pairs.transition_table(RESPONSES, "calif").set_index("transition")
    assert table.at["pass_to_fail", "note"] == "no prompt made this transition"
    assert np.isnan(table.at["pass_to_fail", "quality_change"])
    assert table.at["fail_to_pass", "note"].startswith("1 of 2 pairs have no score")
    assert table.at["pass_to_pass", "note"] == ""


def test_without_a_judge_everything_but_quality_is_there():
    unjudged = RESPONSES.assign(quality=np.nan, judge="")
    table = pairs.transition_table(unjudged, "calif").set_index("transition")
    assert table["quality_change"].isna().all()
    assert table.loc[["pass_to_pass", "fail_to_pass"], "note"].tolist() == [NO_JUDGE] * 2
    assert table.at["fail_to_pass", "loglik_change"] == -1.5


def test_a_method_without_responses_is_an_error():
    with pytest.raises(ValueError, match="no response of if_rlvr"):
        pairs.transition_table(RESPONSES, "if_rlvr")


def test_the_papers_table_2_stands_in_columns_of_its_own():
    table = pairs.transition_table(RESPONSES, "calif")
    beside = pairs.transitions_beside_paper(table).set_index("transition")
    assert beside.loc["pass_to_pass", ["this_run", "paper", "paper_std"]].tolist() == [
        1.0,
        0.01,
        0.06,
    ]
    assert beside["paper"].isna().tolist() == [False, False, True, True]


# ---------------------------------------------------------------- pairs


@pytest.fixture
def pair_run(tmp_path):
    """A run of five pairs; the two orders of each, from the side of CaLIF."""
    (stage,) = SETTINGS.pairwise_stages()
    orders = {
        ("first", "second"): ("win", True),
        ("second", "first"): ("loss", True),
        ("first", "first"): ("tie", False),
        ("tie", "tie"): ("tie", True),
        ("first", None): ("tie", False),
    }
    rows = [
        {"first_order": a, "second_order": b, "outcome": outcome, "consistent": consistent}
        for (a, b), (outcome, consistent) in orders.items()
    ]
    (tmp_path / PAIRS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Run(stage, tmp_path)


def test_outcomes_are_counted_from_the_side_of_the_first(pair_run):
    (row,) = pairs.pair_table([pair_run]).to_dict("records")
    assert (row["first"], row["second"], row["judge"]) == ("calif", "if_rlvr", "grader")
    assert (row["pairs"], row["wins"], row["ties"], row["losses"]) == (5, 1, 3, 1)
    assert row["adjusted_win_rate"] == 50.0
    assert row["unscored"] == 1
    assert row["consistent"] == 75.0, "three of the four that have both verdicts"
    # Of the seven verdicts that are no tie, first comes five times.
    assert row["first_position"] == pytest.approx(500 / 7)


def test_transitions_are_averaged_over_configurations_as_in_the_paper():
    one = pairs.transition_table(RESPONSES, "calif")
    better = RESPONSES.assign(quality=RESPONSES["quality"] + (RESPONSES["method"] == "calif"))
    other = pairs.transition_table(better, "calif")
    table = pairs.transitions_over_configurations({"a": one, "b": other}).set_index("transition")
    # Changes are 1 and -6, and one more in the other.
    assert table["quality_change"].iloc[:2].tolist() == [1.5, -5.5]
    assert table["quality_std"].iloc[0] == pytest.approx(0.5**0.5)
    assert table["pairs"].tolist() == [6, 4, 0, 2]
    ends = table[["quality_low", "quality_high"]].iloc[0].tolist()
    assert ends == pytest.approx([1.5 - 0.5**0.5, 1.5 + 0.5**0.5])
    axes = transition_changes(
        table.reset_index(), pairs.transitions_beside_paper(table.reset_index())
    )
    legend = [text.get_text() for text in axes[0].figure.legends[0].get_texts()]
    assert "filled: this run, ± std over configurations" in legend
    empty = table.loc["pass_to_fail"]
    assert (empty["configurations"], empty["note"]) == (0, "2 of 2 configurations have no number")
    beside = pairs.transitions_beside_paper(table.reset_index())
    assert beside["this_std"].iloc[0] == pytest.approx(0.5**0.5)
    alone = pairs.transitions_over_configurations({"a": one})
    assert alone["quality_change"].equals(one["quality_change"])
    assert alone["quality_std"].isna().all()


def test_pairs_stand_beside_the_papers_table_5(pair_run):
    own = pairs.pair_table([pair_run]).assign(configuration="small")
    table = pairs.pairs_beside_paper(own, ["small"])
    assert table["source"].tolist() == ["this run"] + ["paper"] * 6
    assert table["judge"].tolist() == ["grader"] + [paper.JUDGE] * 6
    assert table["pairs"].tolist() == [5] + [300] * 5 + [1500]
    assert table["configuration"].iloc[[0, 1, 6]].tolist() == ["small", "Qwen3-1.7B", "overall"]
    assert table["adjusted_win_rate"].iloc[[0, 6]].tolist() == [50.0, 78.10]


def test_several_configurations_have_a_row_each_and_one_of_summed_counts(pair_run):
    one = pairs.pair_table([pair_run])  # 5 pairs, rate 50
    other = one.assign(wins=4, ties=0, losses=0, pairs=4, adjusted_win_rate=100.0)
    both = [one.assign(configuration="qwen3-4b"), other.assign(configuration="tulu3-8b-dpo")]
    table = pairs.pairs_beside_paper(pd.concat(both), ["qwen3-1.7b", "qwen3-4b", "tulu3-8b-dpo"])
    ours = table[table["source"] == "this run"].set_index("configuration")
    assert set(ours.index) == {"Qwen3-1.7B", "Qwen3-4B", "Tulu 3 8B DPO", "overall"}
    assert ours.loc["Qwen3-1.7B", "note"] == NO_JUDGE
    wins, ties = one["wins"].item(), one["ties"].item()
    assert ours.loc["overall", "pairs"] == 9
    expected = 100 * (wins + 4 + ties / 2) / 9
    assert ours.loc["overall", "adjusted_win_rate"] == pytest.approx(expected)


def test_without_a_judge_table_5_says_that_nothing_was_measured():
    none = pairs.pair_table([]).assign(configuration="")
    table = pairs.pairs_beside_paper(none, ["small"])
    first = table.iloc[0]
    assert (first["source"], first["judge"], first["note"]) == ("this run", "", NO_JUDGE)
    assert pd.isna(first["wins"])
    assert pd.isna(first["adjusted_win_rate"])


def test_two_policies_are_compared_prompt_by_prompt_on_their_first_run():
    both = pd.concat(
        [
            RESPONSES,
            responses(
                ("if_rlvr", 0, "c", True, 1, -2.0, 0),
                ("if_rlvr", 0, "a", True, 1, -2.5, 3),
                ("if_rlvr", 0, "b", False, 1, -3.0, 4),
                ("if_rlvr", 1, "a", False, 1, -9.0, 90),
            ),
        ]
    )
    table = pairs.head_to_head(both, "calif", "if_rlvr").set_index("quantity")
    counts = table[["pairs", "first_higher", "equal", "second_higher"]].to_numpy().tolist()
    # passes: a equal, b calif, c if_rlvr; l: a calif, b if_rlvr, c undefined; tokens: 4, 2, 0
    # against 3, 4, 0.
    assert counts == [[3, 1, 1, 1], [2, 1, 0, 1], [3, 1, 1, 1]]
    assert table["mean_difference"].tolist() == pytest.approx([0.0, 0.0, -1 / 3])


def test_policies_without_a_common_prompt_are_not_compared():
    with pytest.raises(ValueError, match="calif and if_rlvr have no prompt in common"):
        pairs.head_to_head(RESPONSES, "calif", "if_rlvr")
