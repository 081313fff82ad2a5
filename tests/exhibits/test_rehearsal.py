"""A study of the paper's kind, rehearsed: tiny models of its architectures, every kind of stage."""

import json
import shutil
import urllib.request
from pathlib import Path

import pytest
import yaml

from califkit.exhibits import notebooks
from califkit.exhibits.rehearsal import rehearsal, study_stages, write_rehearsal
from califkit.judges.stand_in import stand_in, verdict
from califkit.models.miniature import write_miniature
from califkit.models.reasoning import final_answer, turn_end_id
from califkit.models.resolve import ModelError, load_config, load_model, load_tokenizer
from califkit.runs.arms import load_arms, training_runs
from califkit.runs.dispatch import compute_all
from califkit.runs.folders import open_run
from califkit.training.plan import configuration, n_parameters

ROOT = Path(__file__).resolve().parents[2]
QWEN, TULU = "Qwen/Qwen3-1.7B", "allenai/Llama-3.1-Tulu-3-8B-DPO"
TURN = [{"role": "user", "content": "Tea?"}]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A checkout's params and notebooks, where a rehearsal may write."""
    shutil.copytree(ROOT / "params", tmp_path / "params")
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    monkeypatch.setenv("CALIFKIT_ROOT", str(tmp_path))
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.mark.parametrize("name", [QWEN, "Qwen/Qwen3-4B", TULU])
def test_a_miniature_has_the_architecture_of_its_model(tmp_path, name):
    real = configuration(name)
    folder = write_miniature(real, tmp_path / "m")
    small = load_config(folder)
    assert type(small) is type(real)
    assert small.tie_word_embeddings == real.tie_word_embeddings
    assert small.max_position_embeddings == real.max_position_embeddings
    assert small.num_key_value_heads < small.num_attention_heads, "queries share keys, as there"
    assert n_parameters(small) == sum(p.numel() for p in load_model(folder).parameters()) < 1e7


def test_templates_write_what_their_families_write(tmp_path):
    def prompt(config, **options):
        opens = options.pop("opens_reasoning", False)
        tokenizer = load_tokenizer(write_miniature(config, tmp_path / "m", opens))
        shutil.rmtree(tmp_path / "m")
        return tokenizer, tokenizer.apply_chat_template(
            TURN, tokenize=False, add_generation_prompt=True, **options
        )

    _, off = prompt(configuration(QWEN), enable_thinking=False)
    assert off.endswith("assistant\n<think>\n\n</think>\n\n")
    qwen, on = prompt(configuration(QWEN), enable_thinking=True)
    assert on.endswith("<|im_start|>assistant\n") and qwen.eos_token == "<|im_end|>"
    tulu, text = prompt(configuration(TULU))
    assert text == "<|user|>\nTea?\n<|assistant|>\n"
    assert turn_end_id(tulu) == tulu.eos_token_id != tulu.pad_token_id
    from transformers import Olmo3Config

    olmo = Olmo3Config(num_attention_heads=32, num_key_value_heads=32)
    assert prompt(olmo)[1].endswith("<|im_start|>assistant\n")
    assert prompt(olmo, opens_reasoning=True)[1].endswith("<|im_start|>assistant\n<think>")


def test_a_miniature_ends_its_reasoning_and_its_turns(tmp_path):
    import torch

    folder = write_miniature(configuration(QWEN), tmp_path / "m")
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    ids = tokenizer.apply_chat_template(TURN, return_tensors="pt", return_dict=True)["input_ids"]
    shares = model(ids).logits[0, -1].softmax(-1)
    assert shares[tokenizer.convert_tokens_to_ids("</think>")].item() == pytest.approx(0.2, rel=0.1)
    assert shares[tokenizer.eos_token_id].item() == pytest.approx(0.04, rel=0.1)
    torch.manual_seed(0)
    drawn = model.generate(ids.repeat(32, 1), max_new_tokens=16, do_sample=True, top_k=0)
    answers = [
        final_answer(row[ids.shape[1] :], tokenizer, thinking=True, stop={tokenizer.eos_token_id})
        for row in drawn.tolist()
    ]
    assert sum(bool(answer.text) for answer in answers) > 8, "a quarter at least are answers"


def test_an_architecture_of_no_known_family(tmp_path):
    from transformers import MistralConfig

    with pytest.raises(ModelError, match="no miniature of mistral models; there are: qwen3"):
        write_miniature(MistralConfig(), tmp_path / "m")


def test_a_verdict_fits_its_schema_and_follows_from_the_prompt():
    schema = {
        "type": "object",
        "properties": {
            "score": {"type": "integer"},
            "order": {"enum": ["first", "second", "tie"]},
            "met": {"type": "array", "items": {"type": "boolean"}},
        },
    }
    prompts = [f"Prompt {i}\n1. Tea?\n2. Cake?\n" for i in range(40)]
    verdicts = [verdict(schema, prompt) for prompt in prompts]
    assert verdicts == [verdict(schema, prompt) for prompt in prompts]
    assert {v["score"] for v in verdicts} <= set(range(1, 11))
    assert len({v["score"] for v in verdicts}) > 5
    assert {v["order"] for v in verdicts} == {"first", "second", "tie"}
    assert all(len(v["met"]) == 2 for v in verdicts)


def test_the_stand_in_speaks_http():
    schema = {"type": "object", "properties": {"score": {"type": "integer"}}}
    asked = {
        "model": "m",
        "messages": [{"role": "user", "content": "Grade this."}],
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
    }
    with stand_in() as port:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(asked).encode()
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as reply:
            message = json.load(reply)["choices"][0]["message"]
    assert 1 <= json.loads(message["content"])["score"] <= 10


def test_the_papers_rehearsal_has_all_its_arms_and_none_of_its_size(project):
    written = write_rehearsal("paper", "local", "http://127.0.0.1:1/v1")
    assert [what.partition(":")[0] for what in written.left_out] == ["vLLM and GPUs", "ZeRO-3"]
    real, small = load_arms("paper"), load_arms(written.profile)
    assert [arm.label for arm in small] == [arm.label for arm in real]
    stages = training_runs(small).values()
    assert len(stages) == len(training_runs(real)) == 31
    for stage in stages:
        assert stage.training.steps == 2 and stage.training.max_completion_tokens == 16
        assert (Path(stage.anchors.model) / "config.json").is_file()
        assert stage.anchors.data.tokenizer == stage.anchors.model
    models = {Path(stage.anchors.model).name for stage in stages}
    assert models == {"Qwen--Qwen3-1.7B", "Qwen--Qwen3-4B", "allenai--Llama-3.1-Tulu-3-8B-DPO"}
    for before, after in zip(real, small, strict=True):
        a, b = before.params.settings, after.params.settings
        kept = ("thinking", "methods", "alpha", "reward", "train_seeds", "self_judge")
        assert [getattr(b, name) for name in kept] == [getattr(a, name) for name in kept]
        assert b.training.beta == a.training.beta
        assert b.execution.processes == 2 and b.execution.cluster == "local"


def test_with_gpus_a_rehearsal_keeps_vllm_and_zero3(project):
    written = write_rehearsal("paper", "slurm", "http://node:1/v1", gpus=2)
    assert written.left_out == ()
    for arm in load_arms(written.profile):
        settings = arm.params.settings
        assert settings.engine == "vllm" and settings.training.use_vllm
        large = arm.configuration.startswith(("qwen3-4b", "tulu3"))
        assert settings.execution.deepspeed == ("params/zero3.json" if large else None)
        assert settings.execution.slurm["gpus_per_node"] == settings.execution.processes == 2


@pytest.mark.slow
@pytest.mark.notebook
def test_a_rehearsal_goes_through_to_its_exhibits(project):
    study = {
        "base": "paper",
        "profile": "small",
        "settings": {"execution": {"workers": 0}},  # jobs have tests of their own
        "configurations": {"thinking": {"thinking": True}},
        "groups": {"main": {"arms": {name: {"methods": [name]} for name in ("if_rlvr", "calif")}}},
    }
    (project / "params" / "small.yaml").write_text(yaml.safe_dump(study))
    with rehearsal("small") as written:
        params, stages = study_stages(written.profile)
        runs = compute_all(written.profile, stages, params.settings.execution)
        kinds = {run.stage.kind for run in runs}
        assert kinds == {"training", "scores", "identification", "quality", "rubrics"}
        trained = [run for run in runs if run.stage.kind == "training"]
        assert [run.manifest()["rows"] for run in trained] == [2, 2]
        assert all(run.stage.anchors.thinking for run in trained)
        anchors = open_run(written.profile, trained[0].stage.anchors)
        assert anchors.manifest()["rows"] == 12
        report = notebooks.execute(written.profile, ["05_campaign", "fig5_main_results"])
    assert [result.status for result in report.results] == ["ok", "ok"]
    assert (project / "figures" / written.profile / "fig5_main_results.png").is_file()
