"""Every training run of the paper is ``params/h100.yaml`` with a few settings changed."""

import json
from pathlib import Path
from typing import Any

import pytest

from califkit.runs.params import load_params
from califkit.runs.stages import TrainStage, stage_hash

ROOT = Path(__file__).resolve().parents[1]
ABLATIONS = ("direct_bonus", "no_lower", "no_upper", "inner_region", "outer_region")
ALPHAS = (0.001, 0.01, 0.1, 0.2, 0.5, 1.0)
BETAS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)

THINKING = {
    "thinking": True,
    "training": {"learning_rate": 1e-6, "max_completion_tokens": 8192},
    "anchors": {"sampling": {"max_tokens": 8192}},
    "evaluation": {"sampling": {"temperature": 0.6, "top_p": 0.95, "max_tokens": 16384}},
}
LARGE = {"execution": {"deepspeed": "params/zero3.json"}}
THREE_EPOCHS = THINKING | {"training": THINKING["training"] | {"steps": 273}}
CONFIGURATIONS = {
    "Qwen3-1.7B": {},
    "Qwen3-1.7B thinking": THINKING,
    "Qwen3-4B": {"model": "Qwen/Qwen3-4B", **LARGE},
    "Qwen3-4B thinking": {"model": "Qwen/Qwen3-4B", **LARGE, **THREE_EPOCHS},
    "Tulu 3 8B DPO": {"model": "allenai/Llama-3.1-Tulu-3-8B-DPO", **LARGE},
}


def stages(change: dict[str, Any]) -> list[TrainStage]:
    return load_params("h100", change).settings.train_stages()


def only(change: dict[str, Any]) -> TrainStage:
    (stage,) = stages(change)
    return stage


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_both_methods_of_a_configuration_differ_in_the_reward_alone(name):
    """Paper, section 3."""
    verifier, calif = stages(CONFIGURATIONS[name])
    assert (verifier.method, calif.method) == ("if_rlvr", "calif")
    assert (verifier.alpha, calif.alpha) == (None, 0.1)
    assert verifier.training == calif.training
    assert verifier.anchors == calif.anchors
    training, anchors = calif.training, calif.anchors
    thinking = "thinking" in name
    assert training.prompts_per_step == 1024
    assert training.rollouts_per_prompt == 8
    assert training.temperature == 1.0
    assert training.beta == 0.001
    assert training.lora is None
    assert training.learning_rate == (1e-6 if thinking else 5e-7)
    assert training.max_completion_tokens == (8192 if thinking else 2048)
    assert anchors.thinking == thinking
    assert anchors.data.source == "hub:allenai/IF_multi_constraints_upto5"
    assert anchors.anchors.draws == 1
    # Bounds and rollouts are drawn alike.
    sampling = anchors.anchors.sampling
    assert sampling.max_tokens == training.max_completion_tokens
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    epochs = training.steps * training.prompts_per_step / anchors.data.n_prompts
    assert epochs == (3 if name == "Qwen3-4B thinking" else 4)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_evaluation_draws_as_in_the_paper(name):
    """Paper, section 4: three seeds; thinking models draw otherwise."""
    scores = load_params("h100", CONFIGURATIONS[name]).settings.score_stages()
    assert len(scores) == 3 * 3  # base, IF-RLVR, CaLIF
    expected = (0.6, 0.95, 20, 16384) if "thinking" in name else (0.7, 0.8, 20, 2048)
    for stage in scores:
        sampling = stage.responses.evaluation.sampling
        assert (
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            sampling.max_tokens,
        ) == expected
        assert stage.responses.evaluation.n_prompts is None  # all of the benchmark


def test_the_alpha_sweep():
    sweep = [only({"methods": ["calif"], "alpha": alpha}) for alpha in ALPHAS]
    assert [stage.alpha for stage in sweep] == list(ALPHAS)
    assert len({stage_hash(stage) for stage in sweep}) == len(ALPHAS)
    assert len({stage_hash(stage.anchors) for stage in sweep}) == 1
    assert {stage.training.beta for stage in sweep} == {0.001}
    assert stages({})[1] == sweep[2]  # the main run is a point of the sweep


def test_the_beta_sweep():
    sweep = [only({"methods": ["if_rlvr"], "training": {"beta": beta}}) for beta in BETAS]
    assert [stage.training.beta for stage in sweep] == list(BETAS)
    assert len({stage_hash(stage) for stage in sweep}) == len(BETAS)
    assert stages({})[0] == sweep[1]


def test_calif_without_a_kl_term():
    stage = only({"methods": ["calif"], "training": {"beta": 0.0}})
    assert (stage.method, stage.alpha, stage.training.beta) == ("calif", 0.1, 0.0)
    assert stage.training.model_copy(update={"beta": 0.001}) == stages({})[1].training


def test_the_ablations():
    """Paper, section 6: the region methods measure eight draws a side, the others one."""
    runs = stages({"methods": list(ABLATIONS)})
    assert [stage.method for stage in runs] == list(ABLATIONS)
    draws = [stage.anchors.anchors.draws for stage in runs]
    assert draws == [1, 1, 1, 8, 8]
    assert {stage.alpha for stage in runs} == {0.1}


def test_all_runs_fit_eight_processes():
    for change in CONFIGURATIONS.values():
        execution = load_params("h100", change).settings.execution
        assert (execution.cluster, execution.processes) == ("slurm", 8)
        for stage in stages(change):
            training = stage.training
            rollouts = training.prompts_per_step * training.rollouts_per_prompt
            assert rollouts % (training.micro_batch_size * execution.processes) == 0


def test_the_deepspeed_configuration_saves_weights():
    """Otherwise the checkpoints of the larger models hold no policy."""
    zero = json.loads((ROOT / "params" / "zero3.json").read_text())["zero_optimization"]
    assert zero["stage"] == 3
    assert zero["stage3_gather_16bit_weights_on_model_save"] is True
