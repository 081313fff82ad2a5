"""Fig. 3: two checkpoints, one reference."""

import numpy as np
import pandas as pd
import pytest

from califkit.evaluation.scores import SCORES
from califkit.exhibits.checkpoints import (
    CLAIMS,
    checkpoint_claims,
    checkpoint_table,
    pair_stages,
)
from califkit.generation import RESPONSES, benchmark_prompts
from califkit.models.likelihood import ReferenceScorer
from califkit.models.resolve import ModelError, load_model, load_tokenizer, resolve
from califkit.runs.dispatch import check_stages, compute_all
from califkit.runs.folders import open_run
from califkit.runs.jsonl import read_jsonl
from califkit.runs.params import Params, load_params
from califkit.runs.settings import ParamsError

BEFORE = "tiny-random-llama"


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))


@pytest.fixture
def after(tmp_path) -> str:
    """Another checkpoint of the same family: its output layer is half as sharp."""
    folder = tmp_path / "after"
    model = load_model(resolve(BEFORE))
    model.get_output_embeddings().weight.data *= 0.5
    model.save_pretrained(folder)
    load_tokenizer(resolve(BEFORE)).save_pretrained(folder)
    return str(folder)


def params(*pairs: dict, **changes) -> Params:
    return load_params("ci", {"checkpoints": list(pairs), "identification": None} | changes)


def test_both_sides_are_scored_by_the_first_model_of_the_pair(after):
    asked = params({"name": "tiny", "before": BEFORE, "after": after})
    stages = pair_stages(asked.settings)
    scored = compute_all(asked.profile, stages, asked.settings.execution)
    table = checkpoint_table(asked.settings, scored, [])
    assert table["method"].tolist() == ["base"] * 3 + ["if_rlvr"] * 3
    assert set(table["reference"]) == {BEFORE}
    assert table["model"].tolist() == [BEFORE] * 3 + [after] * 3
    last = scored[-1]
    answers = read_jsonl(open_run("ci", last.stage.responses).folder / RESPONSES)
    requests = {i.key: i.x for i in benchmark_prompts(last.stage.responses.evaluation).instances}
    scores = {row["key"]: row["loglik"] for row in read_jsonl(last.folder / SCORES)}
    found = np.array([scores[row["key"]] for row in answers], dtype=float)
    assert np.isfinite(found).sum() > len(found) / 2
    for name, is_reference in ((BEFORE, True), (after, False)):
        folder = resolve(name)
        scorer = ReferenceScorer(load_model(folder), load_tokenizer(folder))
        ids = [row["token_ids"] for row in answers]
        expected = scorer.score([requests[row["key"]] for row in answers], ids)
        assert np.allclose(found, expected, atol=1e-4, equal_nan=True) == is_reference


def test_without_pairs_it_is_the_profiles_own_base_and_if_rlvr():
    settings = params().settings
    stages = pair_stages(settings)
    assert stages == [s for s in settings.score_stages() if s.responses.method != "calif"]


def test_a_reference_that_reads_other_tokens_is_refused_before_anything_is_drawn(after, tmp_path):
    tokenizer = load_tokenizer(resolve(BEFORE))
    tokenizer.add_tokens(["a-new-token"])
    tokenizer.save_pretrained(after)
    asked = params({"name": "tiny", "before": BEFORE, "after": after})
    with pytest.raises(ModelError, match=f"reference {BEFORE} has another vocabulary than {after}"):
        check_stages("ci", pair_stages(asked.settings), asked.settings.execution)
    assert not (tmp_path / "runs").exists()


def test_two_pairs_of_one_name_are_refused():
    pair = {"name": "tiny", "before": BEFORE, "after": BEFORE}
    with pytest.raises(ParamsError, match="two pairs of one name"):
        params(pair, pair)


def test_claims_tell_the_papers_direction_from_the_other_and_from_noise():
    def side(method: str, satisfaction: float, quality: float, loglik: float) -> list[dict]:
        means = dict(zip(CLAIMS, (satisfaction, quality, loglik), strict=True))
        row = {"pair": "p", "method": method, "std": 0.3, "note": ""}
        return [row | {"metric": metric, "mean": mean} for metric, mean in means.items()]

    table = pd.DataFrame([*side("base", 20.0, 5.0, -1.0), *side("if_rlvr", 30.0, 6.0, -1.2)])
    claims = checkpoint_claims(table)
    assert claims["difference"].tolist() == pytest.approx([10.0, 1.0, -0.2])
    assert claims["paper"].tolist() == ["higher", "lower", "lower"]
    verdicts = ["as in the paper", "not as in the paper", "within the spread"]
    assert claims["verdict"].tolist() == verdicts
