"""What is exported for a hub: complete, loadable, and its cards say what the manifests say."""

import pandas as pd
import pytest
import yaml
from tiny_runs import tiny_params
from transformers import AutoModelForCausalLM, AutoTokenizer

from califkit.exhibits.cards import ExportError, export_policy
from califkit.runs import dispatch
from califkit.runs.jsonl import read_jsonl


def card(path) -> tuple[dict, str]:
    _, head, text = path.read_text().split("---\n", 2)
    return yaml.safe_load(head), text


@pytest.mark.slow
def test_a_policy_with_anchors_and_responses(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    params = tiny_params(tmp_path, methods=["calif"])
    settings = params.settings
    (stage,) = settings.train_stages()
    out = tmp_path / "out"
    with pytest.raises(ExportError, match="has no weights here"):
        export_policy("tiny", stage, settings, out)
    scores = settings.score_stages()
    dispatch.compute_all("tiny", scores, settings.execution.model_copy(update={"workers": 0}))
    paths = export_policy("tiny", stage, settings, out)
    assert [path.relative_to(out).parts[0] for path in paths] == ["policy", "anchors", "responses"]
    AutoModelForCausalLM.from_pretrained(out / "policy")
    AutoTokenizer.from_pretrained(out / "policy")
    head, text = card(paths[0])
    assert head["base_model"] == "tiny-random-llama" and "calif" in head["tags"]
    assert "| learning_rate | 0.001 |" in text and "| alpha | 0.1 |" in text
    assert "no judge was asked" in text and "6 prompts of ifbench, 1 run(s)" in text
    _, text = card(paths[1])
    bounds = pd.read_parquet(out / "anchors" / "anchors.parquet")
    assert (
        len(bounds) == 6 and f"Reversed bounds (l0 > l1): {(bounds.l0 > bounds.l1).sum()};" in text
    )
    (responses,) = (out / "responses").glob("*.jsonl")
    assert len(read_jsonl(responses)) == 6 and responses.name in card(paths[2])[1]
    assert str(tmp_path) not in "".join(path.read_text() for path in paths)
    with pytest.raises(ExportError, match="is not empty"):
        export_policy("tiny", stage, settings, out)


def test_the_command_names_what_there_is(tmp_path, califkit):
    code, _, err = califkit("export", "--out", tmp_path / "o", "--profile", "ci", "--method", "foo")
    assert code == 2 and "trains no foo seed 0; it trains: if_rlvr seed 0, calif seed 0" in err
