"""What a run will take, held against what torch really allocates and against published sizes."""

import pytest
import torch
from tiny_runs import tiny_params
from transformers import AutoConfig, AutoModelForCausalLM

from califkit.runs.arms import load_arms
from califkit.runs.settings import Execution, ParamsError
from califkit.training import plan


@pytest.fixture
def stage(tmp_path):
    return tiny_params(tmp_path, methods=["calif"]).settings.train_stages()[0]


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("Qwen/Qwen3-1.7B", 1.7),
        ("Qwen/Qwen3-4B", 4.0),
        ("allenai/Llama-3.1-Tulu-3-8B-DPO", 8.0),
    ],
)
def test_the_table_of_models_has_the_sizes_that_their_names_say(model, billions):
    count = plan.n_parameters(plan.configuration(model))
    assert round(count / 1e9, 1) == billions


def test_weights_gradients_and_optimizer_are_what_torch_allocates(stage, tiny_folder):
    """One step of plain AdamW in float32 on the tiny model."""
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.zeros(1, 8, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    weights = list(model.parameters())
    moments = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
    found = {
        "weights": sum(p.nbytes for p in weights),
        "gradients": sum(p.grad.nbytes for p in weights if p.grad is not None),
        "optimizer": sum(t.nbytes for t in moments),
        "reference": sum(p.nbytes for p in weights),
    }
    parts = plan.memory(stage, Execution()).parts
    assert {name: parts[name] for name in found} == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_are_what_torch_keeps(tiny_folder, mixed, checkpointing):
    """Of four layers, and of more tokens than one and two layers were counted at."""
    config = AutoConfig.from_pretrained(tiny_folder, num_hidden_layers=4)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).model.train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    tokens = 200
    found = plan.kept_bytes(model, 2 * tokens, mixed) - plan.kept_bytes(model, tokens, mixed)
    layer, ends = plan.activation_bytes(config, mixed)
    inputs = 4 * config.hidden_size * 4  # of four layers, in float32
    expected = (inputs if checkpointing else 4 * layer) + ends
    assert found / tokens == pytest.approx(expected, rel=0.1)


def test_sleep_and_sharding_take_less(stage):
    large = stage.model_copy(
        update={
            "training": stage.training.model_copy(update={"use_vllm": True}),
            "anchors": stage.anchors.model_copy(update={"model": "Qwen/Qwen3-4B"}),
        }
    )
    execution = Execution(processes=8, gpu_memory_gb=80)
    asleep = plan.memory(large, execution)
    awake = execution.model_copy(
        update={"vllm": execution.vllm.model_copy(update={"sleep": False})}
    )
    share = 0.6 * 80e9
    assert plan.memory(large, awake).training == pytest.approx(asleep.training + share)
    sharded = plan.memory(large, execution.model_copy(update={"deepspeed": "params/zero3.json"}))
    # Of 4.02 billion parameters: 2 + 2 + 12 + 2 bytes each, over eight GPUs.
    static = sum(sharded.parts[n] for n in ("weights", "gradients", "optimizer", "reference"))
    assert static == pytest.approx(4.02e9 * 18 / 8, rel=0.01)


def test_what_cannot_fit_is_refused_with_the_setting_that_would(stage):
    small = Execution(gpu_memory_gb=0.5)
    plan.check_memory("tiny", stage, small)
    large = stage.model_copy(
        update={
            "anchors": stage.anchors.model_copy(update={"model": "Qwen/Qwen3-1.7B"}),
            "training": stage.training.model_copy(
                update={"max_completion_tokens": 8192, "gradient_checkpointing": False}
            ),
        }
    )
    plan.check_memory("tiny", large, Execution())  # no GPU is described
    with pytest.raises(ParamsError, match=r"training takes \d+ GB of 75 GB .*; it fits with train"):
        plan.check_memory("tiny", large, Execution(gpu_memory_gb=80))
    with pytest.raises(ParamsError, match="no single setting makes it fit"):
        plan.check_memory("tiny", large, Execution(gpu_memory_gb=8))
    drawn = large.model_copy(
        update={"training": stage.training.model_copy(update={"use_vllm": True})}
    )
    little = Execution(gpu_memory_gb=80, vllm={"gpu_memory_utilization": 0.08})
    # 6.4 GB less 3.44 GB of weights, at 2 x 28 layers x 8 heads x 128 x 2 = 114,688 bytes a token.
    with pytest.raises(ParamsError, match="vLLM has room for 25799 tokens, and one sequence may"):
        plan.check_memory("tiny", drawn, little)


def test_the_paper_s_runs_fit_their_gpus():
    for arm in load_arms("paper"):
        for stage in arm.params.settings.train_stages():
            plan.check_memory("paper", stage, arm.params.settings.execution)


def test_more_tokens_take_more_hours_and_all_gpus_count(stage):
    one = plan.work(stage, Execution())
    longer = stage.training.model_copy(
        update={"max_completion_tokens": 2 * stage.training.max_completion_tokens}
    )
    two = plan.work(stage.model_copy(update={"training": longer}), Execution(processes=2))
    assert two.drawn == 2 * one.drawn and two.gpu_hours > one.gpu_hours
    assert two.gpu_hours == pytest.approx(2 * two.hours)


def test_the_command_plans_without_weights_or_network(tmp_path, califkit, monkeypatch):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    code, out, err = califkit("plan", "--profile", "paper")
    assert code == 0, err
    assert "prompts: not read: cannot load the data set" in out
    assert sum(line.startswith("training ") for line in out.splitlines()) == 31
    assert "an estimate, not measured" in out
    code, _, err = califkit("plan", "--profile", "h100", "--set", "training.micro_batch_size=64")
    assert code == 2 and "it fits with training.micro_batch_size = " in err
    assert not (tmp_path / "runs").exists()
