"""The tables that notebooks show: numbers from arithmetic on small made-up runs."""

import json

import numpy as np
import pandas as pd
import pytest

from califkit.evaluation import scores as score_stage
from califkit.exhibits import paper, training
from califkit.exhibits import summary as summaries
from califkit.generation import RESPONSES
from califkit.models.likelihood import ReferenceScorer
from califkit.runs.folders import LOG, ROLLOUTS, Run, open_run
from califkit.runs.params import load_params
from califkit.verifiers import Constraint

SETTINGS = load_params("ci").settings


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def summary(*rows) -> pd.DataFrame:
    full = [(*row, "", "") for row in rows]
    return pd.DataFrame(full, columns=["method", "metric", "mean", "std", "judge", "note"])


# ------------------------------------------------------------------ responses


def scored(key, passes, loglik, ids=("a:b",)):
    return {
        "key": key,
        "ids": list(ids),
        "strict": [False] * len(ids),
        "loose": list(passes),
        "loglik": loglik,
        "request_is_flagged": False,
        "tokens": 5,
        "distinct_2": 1.0,
        "finish_reason": "stop",
    }


@pytest.fixture
def responses(tmp_path, monkeypatch):
    """Base and CaLIF, one seed, two prompts."""
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path))
    scores = {
        "base": [scored("p", [True, False], -1.0, ("a:b", "a:c")), scored("q", [False], -2.0)],
        "calif": [scored("p", [True, True], -4.0, ("a:b", "a:c")), scored("q", [True], None)],
    }
    runs = []
    for stage in SETTINGS.score_stages():
        method = stage.responses.method
        if stage.responses.seed == 0 and method in scores:
            texts = [
                {"key": key, "prompt": f"prompt {key}", "response": f"{method} {key}"}
                for key in "pq"
            ]
            write_rows(open_run("x", stage.responses).folder / RESPONSES, texts)
            run = open_run("x", stage)
            write_rows(run.folder / score_stage.SCORES, scores[method])
            runs.append(run)
    return summaries.response_table("x", runs)


def test_responses_carry_text_and_whether_all_constraints_hold(responses):
    assert responses["response"].tolist() == ["base p", "base q", "calif p", "calif q"]
    assert responses["passes"].tolist() == [False, False, True, True]
    assert responses["prompt"].iloc[0] == "prompt p"
    assert np.isnan(responses["loglik"].iloc[3])


def test_id_table_is_in_percent_of_the_constraints_with_that_id(responses):
    table = summaries.id_table(responses)
    assert table.index.tolist() == ["a:b", "a:c"]
    assert table["n"].tolist() == [2, 1]
    assert table["base"].tolist() == [50.0, 0.0]
    assert table["calif"].tolist() == [100.0, 100.0]


def test_pairs_are_sorted_by_the_change_of_likelihood(responses):
    pairs = summaries.paired(responses, "calif")
    assert pairs["key"].tolist() == ["p", "q"]  # an undefined change comes last
    assert pairs["change"].iloc[0] == -3.0
    assert pairs["response_base"].iloc[0] == "base p"
    assert pairs["response_trained"].iloc[0] == "calif p"
    assert len(summaries.paired(responses, "if_rlvr")) == 0


# ------------------------------------------------------------------ beside the paper


def test_the_papers_numbers_stand_beside_ours_and_gaps_say_why():
    ours = summary(("base", "loglik", -2.0, 0.1), ("calif", "loglik", -2.2, 0.1))
    table = summaries.beside_paper(ours, "small", ["loglik"], ["qwen3-1.7b", "qwen3-4b"])
    assert table.groupby("source", sort=False).size().to_dict() == {"this run": 2, "paper": 6}
    assert table["configuration"].unique().tolist() == ["small", "Qwen3-1.7B", "Qwen3-4B"]
    assert table["value"].iloc[:5].tolist() == [-2.0, -2.2, -1.5, -5.91, -1.42]
    assert table["note"].iloc[5:].tolist() == [paper.NOT_PRINTED] * 3


def test_directions_are_compared_with_the_paper():
    ours = summary(
        ("base", "prompt_level_loose_acc", 10.0, 3.0),
        ("base", "loglik", -2.0, 0.1),
        ("if_rlvr", "prompt_level_loose_acc", 14.0, 4.0),
        ("if_rlvr", "loglik", -3.0, 0.1),
        ("calif", "prompt_level_loose_acc", 30.0, 0.0),
        ("calif", "loglik", -2.5, 0.1),
    )
    table = summaries.against_paper(ours).set_index(["comparison", "metric"])
    assert len(table) == 3 * 2
    rlvr = table.loc["IF-RLVR minus base"]
    # sqrt(3^2 + 4^2) = 5 exceeds the difference of 4
    assert rlvr.at["prompt_level_loose_acc", "spread"] == 5.0
    assert rlvr.at["prompt_level_loose_acc", "verdict"] == "within the spread"
    assert rlvr.at["prompt_level_loose_acc", "paper"] == 19.22
    assert rlvr.at["loglik", "verdict"] == "as in the paper"
    assert table.loc[("CaLIF minus base", "loglik"), "verdict"] == "opposite to the paper"
    last = table.loc[("CaLIF minus IF-RLVR", "loglik")]
    assert (last["difference"], last["paper"]) == (0.5, pytest.approx(-1.42 + 5.91))
    assert last["verdict"] == "as in the paper"


def test_configurations_are_averaged_and_each_is_compared_with_its_own():
    rows = [
        ("qwen3-1.7b", "base", -1.0),
        ("qwen3-1.7b", "if_rlvr", -2.0),
        ("qwen3-4b", "base", -2.0),
        ("qwen3-4b", "if_rlvr", -6.0),
    ]
    by_run = pd.DataFrame(rows, columns=["configuration", "method", "loglik"])
    for name in (*summaries.METRICS, "response_quality"):
        by_run[name] = by_run["loglik"]
    by_run = by_run.assign(judge="j", quality_unscored=0)
    summary = summaries.summary_table(pd.concat([by_run, by_run.assign(loglik=-3.0)]))
    both = summaries.over_configurations(summary)
    averages = both[both["configuration"] == "average of the 2"].set_index(["method", "metric"])
    # Means over runs are -2 and -2.5 for base, -2.5 and -4.5 for IF-RLVR.
    assert averages.loc[("base", "loglik"), "mean"] == -2.25
    assert averages.loc[("if_rlvr", "loglik"), "std"] == pytest.approx(2**0.5)
    gap = summary.copy()
    gap.loc[(gap["configuration"] == "qwen3-4b") & (gap["metric"] == "loglik"), "mean"] = np.nan
    note = summaries.over_configurations(gap).set_index(["configuration", "method", "metric"])
    assert note.loc[("average of the 2", "base", "loglik"), "note"] == (
        "not measured: 1 of 2 configurations have no number"
    )
    one = summary[summary["configuration"] == "qwen3-4b"]
    assert summaries.over_configurations(one) is one
    compared = summaries.against_paper(summary).set_index(["configuration", "metric"])
    assert compared.loc[("qwen3-1.7b", "loglik"), "paper"] == pytest.approx(-5.91 + 1.50)
    assert compared.loc[("qwen3-4b", "loglik"), "verdict"] == "the paper prints no number"
    names = summaries.beside_paper(both, "small", ["loglik"], ["average"])["configuration"]
    assert names.unique().tolist() == [
        "Qwen3-1.7B",
        "Qwen3-4B",
        "average of the 2",
        "average of the five",
    ]


def test_what_cannot_be_compared_says_why():
    ours = summary(
        ("base", "loglik", -2.0, np.nan),
        ("if_rlvr", "loglik", -3.0, np.nan),
        ("base", "prompt_level_strict_acc", 1.0, 0.1),
        ("if_rlvr", "prompt_level_strict_acc", 2.0, 0.1),
    )
    quality = pd.DataFrame(
        [
            (m, "response_quality", np.nan, np.nan, "", summaries.NO_JUDGE)
            for m in ("base", "if_rlvr")
        ],
        columns=ours.columns,
    )
    table = summaries.against_paper(pd.concat([ours, quality])).set_index("metric")
    assert table.at["loglik", "verdict"] == "one run: no spread to compare with"
    assert table.at["prompt_level_strict_acc", "verdict"] == "the paper prints no number"
    assert table.at["response_quality", "verdict"] == summaries.NO_JUDGE
    assert np.isnan(table.at["response_quality", "difference"])


def test_response_quality_is_compared_under_the_name_of_its_judge():
    ours = summary(
        ("base", "response_quality", 4.0, 0.1),
        ("if_rlvr", "response_quality", 3.0, 0.1),
        ("base", "loglik", -2.0, 0.1),
        ("if_rlvr", "loglik", -3.0, 0.1),
    )
    ours.loc[:1, "judge"] = "grader"
    compared = summaries.against_paper(ours).set_index("metric")
    assert compared["judge"].to_dict() == {"response_quality": "grader", "loglik": ""}
    assert compared.at["response_quality", "verdict"] == "as in the paper"
    assert compared.at["response_quality", "paper"] == -1.82
    beside = summaries.beside_paper(ours, "small", ["response_quality", "loglik"], ["qwen3-1.7b"])
    judges = beside.groupby(["source", "metric"])["judge"].unique().map(list).to_dict()
    assert judges == {
        ("this run", "response_quality"): ["grader"],
        ("this run", "loglik"): [""],
        ("paper", "response_quality"): ["GPT-5.6 Sol"],
        ("paper", "loglik"): [""],
    }


def test_a_reason_on_either_side_is_the_verdict():
    ours = summary(("base", "loglik", np.nan, np.nan), ("if_rlvr", "loglik", -3.0, 0.1))
    ours.loc[0, "note"] = "all answers are empty"
    assert summaries.against_paper(ours)["verdict"].tolist() == ["all answers are empty"]


# ------------------------------------------------------------------ training


def step_row(step, r_ver, loglik, below):
    zones = {"below": below, "inside": 1 - below, "above": 0.0, "reversed": 0.0, "unbounded": 0.0}
    return {
        "step": step,
        "r_ver": r_ver,
        "reward": r_ver,
        "loglik": loglik,
        "tokens": 10.0,
        "distinct_2": 0.9,
        "seconds": 1.0,
        "loss": 0.0,
    } | {f"zone/{zone}": share for zone, share in zones.items()}


@pytest.fixture
def training_runs(tmp_path):
    settings, runs = load_params("ci", {"training": {"steps": 3}}).settings, []
    for method, r_ver, loglik in (
        ("if_rlvr", [0.2, 0.6, 0.8], [-3.0, -5.0, -7.0]),
        ("calif", [0.2, 0.4, 0.6], [-3.0, None, -4.0]),
    ):
        run = Run(settings.train_stage(method, 0), tmp_path / method)
        rows = [
            step_row(i, r, v, 0.25) for i, (r, v) in enumerate(zip(r_ver, loglik, strict=True), 1)
        ]
        write_rows(run.folder / LOG, rows)
        rollouts = [(step, f"{method} {step}{letter}") for step in (1, 2, 3) for letter in "ab"]
        names = ("step", "completion")
        write_rows(run.folder / ROLLOUTS, [dict(zip(names, row, strict=True)) for row in rollouts])
        runs.append(run)
    return runs


def test_training_table_has_a_row_a_step_and_shares_of_every_zone(training_runs):
    table = training.training_table(training_runs)
    assert table["method"].tolist() == ["if_rlvr"] * 3 + ["calif"] * 3
    assert table["step"].tolist() == [1, 2, 3] * 2
    assert table["below"].tolist() == [0.25] * 6
    assert table["inside"].tolist() == [0.75] * 6
    assert np.isnan(table["loglik"].iloc[4])


def test_rollouts_of_the_first_and_the_last_step_in_their_order(training_runs):
    rows = ("1a", "1b", "3a", "3b")
    expected = [f"{method} {row}" for method in ("if_rlvr", "calif") for row in rows]
    assert training.rollout_table(training_runs)["completion"].tolist() == expected


def test_running_means_stay_within_their_run(training_runs):
    smooth = training.smoothed(training.training_table(training_runs), window=2)
    assert np.allclose(smooth["r_ver"], [0.2, 0.4, 0.7, 0.2, 0.3, 0.5])
    assert smooth["loglik"].tolist() == [-3.0, -4.0, -6.0, -3.0, -3.0, -4.0]
    assert smooth["step"].tolist() == [1, 2, 3] * 2


def test_arms_are_compared_at_the_level_that_both_reach(training_runs):
    table = training.at_equal_r_ver(training.training_table(training_runs))
    assert table["level"].tolist() == [0.6, 0.6]
    assert table["step"].tolist() == [2, 3]
    assert table["loglik"].tolist() == [-5.0, -4.0]


# ------------------------------------------------------------------ single texts


CONSTRAINTS = [
    Constraint("punctuation:no_comma"),
    Constraint("keywords:existence", {"keywords": ["one"]}),
]


def test_texts_are_scored_with_their_end_of_turn_and_rewarded(tiny):
    scorer, tokenizer = ReferenceScorer(tiny.model, tiny.tokenizer), tiny.tokenizer
    texts = {"short": "one", "long": "one two three four", "comma": "two, three", "none": " "}
    ids = {
        name: tokenizer(text, add_special_tokens=False)["input_ids"] for name, text in texts.items()
    }
    short, long, comma = scorer.score(
        ["x"] * 3, [[*ids[name], tokenizer.eos_token_id] for name in ("short", "long", "comma")]
    )
    # The short text lies on the upper bound, the long one outside, on whichever side it falls.
    bounds = {"l0": short - abs(long - short) / 2, "l1": short}
    outside = "below" if long < short else "above"
    table = score_stage.score_texts(scorer, "x", CONSTRAINTS, texts, **bounds)
    assert table.index.tolist() == list(texts)
    assert table["response"].tolist() == list(texts.values())
    assert table["tokens"].tolist() == [len(ids["short"]), len(ids["long"]), len(ids["comma"]), 0]
    assert table["l"].tolist()[:3] == pytest.approx([short, long, comma], abs=1e-5)
    assert np.isnan(table.at["none", "l"])
    assert table["zone"].tolist()[:2] == ["inside", outside]
    assert table.at["none", "zone"] == "unbounded"
    assert table["r_ver"].tolist() == table["IF-RLVR"].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert table["CaLIF"].tolist() == [1.1, 1.0 if outside == "below" else 0.0, 0.0, 0.0]


def test_the_reasoning_of_a_text_is_not_scored(tiny):
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    texts = {"bare": "one", "thought": "<think>a, b</think>one", "open": "<think>one"}
    table = score_stage.score_texts(scorer, "x", CONSTRAINTS, texts, l0=-99.0, l1=0.0)
    bare, thought, unfinished = (table.loc[name] for name in texts)
    assert thought["response"] == texts["thought"]
    assert bare["r_ver"] == thought["r_ver"] == 1.0
    assert bare["tokens"] == thought["tokens"]
    assert bare["l"] == pytest.approx(thought["l"], abs=1e-5)
    assert (unfinished["r_ver"], unfinished["tokens"]) == (0.0, 0)
    assert np.isnan(unfinished["l"])
