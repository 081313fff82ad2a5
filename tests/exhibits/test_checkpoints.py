"""Figure 3: pairs of checkpoints, scored by a named reference."""

import json

import numpy as np
import pandas as pd
import pytest
from tiny_runs import params_file

from califkit import exhibits
from califkit.data.load import DataError
from califkit.evaluation.scores import SCORES
from califkit.exhibits.checkpoints import changes, pair_table
from califkit.exhibits.plots.results import checkpoint_pairs
from califkit.generation import benchmark_prompts
from califkit.models.likelihood import ReferenceScorer
from califkit.models.resolve import load_model, load_tokenizer, resolve
from califkit.runs.dispatch import run_stage
from califkit.runs.jsonl import read_jsonl
from califkit.runs.params import ParamsError, load_params
from califkit.runs.stages import stage_hash


def rows(pair: str, before: dict[str, float], after: dict[str, float]) -> list[dict]:
    return [
        {"pair": pair, "side": side, "metric": metric, "mean": mean, "std": np.nan, "note": "why"}
        for side, means in (("before", before), ("after", after))
        for metric, mean in means.items()
    ]


TABLE = pd.DataFrame(
    [
        *rows(
            "x",
            {"loglik": -1.0, "response_quality": np.nan},
            {"loglik": -2.5, "response_quality": 4},
        ),
        *rows("y", {"loglik": -2.0}, {"loglik": -1.0}),
    ]
)


def test_changes_are_after_minus_before_and_compared_by_sign():
    table = changes(TABLE).set_index(["pair", "metric"])
    assert table.loc[("x", "loglik"), ["change", "verdict"]].tolist() == [-1.5, "as in the paper"]
    assert table.loc[("y", "loglik"), ["change", "verdict"]].tolist() == [
        1.0,
        "not as in the paper",
    ]
    assert table.loc[("x", "response_quality"), "verdict"] == "not measured"
    assert table.loc[("x", "loglik"), "paper"] == "lower"


@pytest.fixture
def another_model(tmp_path):
    """The tiny model with the sign of its head turned round: other weights, the same tokens."""
    folder = resolve("tiny-random-llama")
    model = load_model(folder)
    model.lm_head.weight.data.neg_()
    model.save_pretrained(tmp_path / "another")
    load_tokenizer(folder).save_pretrained(tmp_path / "another")
    return tmp_path / "another"


def exhibit_of(tmp_path, monkeypatch, **pair):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    file = params_file(tmp_path, pairs=[{"name": "mine", **pair}], execution={"workers": 0})
    return exhibits.open(str(file), {}, False)


@pytest.mark.slow
def test_the_first_of_a_pair_scores_both(tmp_path, monkeypatch, another_model):
    pair = {"before": "tiny-random-llama", "after": str(another_model)}
    exhibit = exhibit_of(tmp_path, monkeypatch, **pair)
    table = pair_table(exhibit)
    assert set(table["reference"]) == {"tiny-random-llama"}
    assert set(table["model"]) == set(pair.values())
    assert len(checkpoint_pairs(table)) == 3
    (_, stage) = exhibit.settings.checkpoint_stages(exhibit.settings.pairs[0])
    run = run_stage(exhibit.profile, stage, exhibit.settings.execution)
    scores = read_jsonl(run.folder / SCORES)
    texts = read_jsonl(next((tmp_path / "runs").glob(f"*/generation/*-{hash_of(stage)}/*.jsonl")))
    # The l of the second's answers, measured once more under the first by hand.
    folder = resolve("tiny-random-llama")
    scorer = ReferenceScorer(load_model(folder), load_tokenizer(folder))
    by_key = {row["key"]: row for row in texts}
    requests = {i.key: i.x for i in benchmark_prompts(stage.responses.evaluation).instances}
    for row in scores:
        ids = by_key[row["key"]]["token_ids"]
        expected = scorer.score([requests[row["key"]]], [ids])[0]
        assert row["loglik"] == pytest.approx(float(expected), abs=1e-4)


def hash_of(stage) -> str:
    return stage_hash(stage.responses)


@pytest.mark.slow
def test_a_reference_with_other_tokens_is_refused(tmp_path, monkeypatch, another_model):
    vocabulary = another_model / "tokenizer.json"
    content = json.loads(vocabulary.read_text())
    words = content["model"]["vocab"]
    first, second, *_ = words
    words[first], words[second] = words[second], words[first]
    vocabulary.write_text(json.dumps(content))
    pair = {"before": "tiny-random-llama", "after": "tiny-random-llama"}
    exhibit = exhibit_of(tmp_path, monkeypatch, **pair, reference=str(another_model))
    with pytest.raises(DataError, match="another: has other tokens than tiny-random-llama"):
        pair_table(exhibit)


def test_pairs_have_names_of_their_own():
    pair = {"name": "a", "before": "x", "after": "y"}
    with pytest.raises(ParamsError, match="settings.pairs: two pairs of one name: a, a"):
        load_params("ci", {"pairs": [pair, pair]})
