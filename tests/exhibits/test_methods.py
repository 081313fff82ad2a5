"""Names of arms: only training seeds share one."""

import json

import pytest

from califkit.evaluation.scores import SCORES
from califkit.exhibits.methods import arm_names, label, look
from califkit.exhibits.summary import metrics_by_run, summary_table
from califkit.runs.arms import load_arms
from califkit.runs.folders import Run
from califkit.runs.params import load_params


def sweep(*alphas: float) -> list:
    settings = [{"methods": ["calif"], "alpha": a, "train_seeds": [0, 1]} for a in alphas]
    return [stage for s in settings for stage in load_params("ci", s).settings.train_stages()]


def test_policies_of_one_method_are_named_by_what_differs():
    names = arm_names([None, *sweep(0.1, 0.5)])
    assert list(names.values()) == [
        "base",
        *["calif, alpha=0.1"] * 2,
        *["calif, alpha=0.5"] * 2,
    ]
    assert set(arm_names([None, *sweep(0.5)]).values()) == {"base", "calif"}
    assert look("calif, alpha=0.5").colour == look("calif").colour
    assert label("calif, alpha=0.5") == "CaLIF, alpha=0.5"
    with pytest.raises(KeyError, match="'other'"):
        look("other, alpha=0.5")


def test_options_of_the_reward_and_of_the_anchors_are_told():
    arms = {arm.name: arm for arm in load_arms("laptop")}
    chosen = [arms[name].params.settings.train_stages()[0] for name in ("calif", "calif_variant")]
    chosen += arms["one_draw"].params.settings.train_stages()
    names = list(arm_names(chosen).values())
    assert (
        names[1] == "calif, reward.reversed_bounds=keep, reward.ceiling_margin=0.7, anchors.draws=4"
    )
    assert names[2].endswith("anchors.draws=1")


def test_a_sweep_is_not_averaged_as_if_it_were_seeds(scored_sweep):
    """Three alphas with two seeds each: three rows of n = 2."""
    table = summary_table(metrics_by_run(scored_sweep))
    rows = table[table["metric"] == "loglik"]
    assert dict(zip(rows["method"], rows["runs"], strict=True)) == {
        "calif, alpha=0.1": 2,
        "calif, alpha=0.2": 2,
        "calif, alpha=0.5": 2,
    }
    # -1, -3 under the first alpha, and 10 and 20 lower under the others.
    assert rows["mean"].tolist() == [-2.0, -12.0, -22.0]


@pytest.fixture
def scored_sweep(tmp_path):
    """Scores of six policies, one answer each."""
    runs = []
    for number, alpha in enumerate((0.1, 0.2, 0.5)):
        settings = {"methods": ["calif"], "alpha": alpha, "train_seeds": [0, 1], "eval_seeds": [0]}
        stages = load_params("ci", settings).settings.score_stages()
        for stage in stages[1:]:  # without base
            folder = tmp_path / f"{alpha}-{stage.responses.policy.seed}"
            folder.mkdir()
            loglik = -1.0 - 2 * stage.responses.policy.seed - 10 * number
            row = {"key": "a", "ids": ["x:y"], "strict": [True], "loose": [True], "loglik": loglik}
            row |= {"tokens": 3, "distinct_2": 1.0, "finish_reason": "stop"}
            (folder / SCORES).write_text(json.dumps(row) + "\n")
            (folder / "manifest.json").write_text(json.dumps({"left_out": 0}))
            runs.append(Run(stage, folder))
    return runs
