"""``params/paper.yaml`` is the paper: its configurations, arms and sweeps, and 31 training runs."""

import json
from collections import Counter
from pathlib import Path

import pytest

from califkit.exhibits.methods import arm_names
from califkit.runs.arms import Arm, load_arms, training_runs
from califkit.runs.params import load_params
from califkit.runs.stages import TrainStage, stage_hash

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATIONS = {
    "qwen3-1.7b": "Qwen/Qwen3-1.7B",
    "qwen3-1.7b-thinking": "Qwen/Qwen3-1.7B",
    "qwen3-4b": "Qwen/Qwen3-4B",
    "qwen3-4b-thinking": "Qwen/Qwen3-4B",
    "tulu3-8b-dpo": "allenai/Llama-3.1-Tulu-3-8B-DPO",
}


@pytest.fixture(scope="module")
def arms() -> dict[tuple[str, str], Arm]:
    return {(arm.configuration, arm.name): arm for arm in load_arms("paper")}


def run_of(arm: Arm) -> TrainStage:
    (stage,) = arm.params.settings.train_stages()
    return stage


def test_the_paper_takes_31_training_runs(arms):
    """10 main, 4 with judges, 5 ablations, 5 further alphas, 6 further betas, 1 without KL term."""
    runs = training_runs(arms.values())
    assert len(runs) == len(arms) == 31
    assert Counter(stage.method for stage in runs.values()) == {
        **{"if_rlvr": 5 + 6, "calif": 5 + 5 + 1, "self_judge": 2, "stronger_judge": 2},
        **dict.fromkeys(["direct_bonus", "no_lower", "no_upper"], 1),
        **dict.fromkeys(["inner_region", "outer_region"], 1),
    }
    anchors = {stage_hash(stage.anchors): stage.anchors for stage in runs.values()}
    draws = Counter(anchor.anchors.draws for anchor in anchors.values())
    assert draws == {1: 5, 8: 1}, (
        "one set a configuration, and one of eight samples for the regions"
    )


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_both_methods_of_a_configuration_differ_in_the_reward_alone(arms, name):
    """Paper, section 3."""
    verifier, calif = (run_of(arms[name, method]) for method in ("if_rlvr", "calif"))
    assert (verifier.method, calif.method) == ("if_rlvr", "calif")
    assert (verifier.alpha, calif.alpha) == (None, 0.1)
    assert verifier.training == calif.training
    assert verifier.anchors == calif.anchors
    training, anchors = calif.training, calif.anchors
    thinking = "thinking" in name
    assert anchors.model == CONFIGURATIONS[name]
    assert training.prompts_per_step == 1024
    assert training.rollouts_per_prompt == 8
    assert training.temperature == 1.0
    assert training.beta == 0.001
    assert training.lora is None
    assert training.learning_rate == (1e-6 if thinking else 5e-7)
    assert training.max_completion_tokens == (8192 if thinking else 2048)
    assert anchors.thinking == thinking
    assert anchors.data.source == "hub:allenai/IF_multi_constraints_upto5"
    # Bounds and rollouts are drawn alike.
    sampling = anchors.anchors.sampling
    assert sampling.max_tokens == training.max_completion_tokens
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    # All usable prompts of at most 2,048 tokens: 93,882 by the authors' count, 91 steps an epoch.
    assert anchors.data.n_prompts is None
    assert (anchors.data.max_prompt_tokens, anchors.data.tokenizer) == (2048, anchors.model)
    assert 93_882 // training.prompts_per_step == 91
    assert training.steps == 91 * (3 if name == "qwen3-4b-thinking" else 4)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_evaluation_draws_as_in_the_paper(arms, name):
    """Paper, section 4: three seeds; thinking models draw otherwise."""
    scores = arms[name, "calif"].params.settings.score_stages()
    assert len(scores) == 3 * 2  # base, CaLIF
    expected = (0.6, 0.95, 20, 16384) if "thinking" in name else (0.7, 0.8, 20, 2048)
    for stage in scores:
        how = stage.responses.evaluation.sampling
        assert (how.temperature, how.top_p, how.top_k, how.max_tokens) == expected
        assert stage.responses.evaluation.n_prompts == 300  # all of the benchmark, or an error


@pytest.mark.parametrize(
    ("group", "main", "values"),
    [
        ("alpha", "calif", [0.001, 0.01, 0.1, 0.2, 0.5, 1.0]),
        ("beta", "if_rlvr", [0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05]),
    ],
)
def test_the_sweeps_of_figure_8_run_through_the_main_arms(arms, group, main, values):
    swept = [run_of(arm) for arm in arms.values() if arm.group == group]
    runs = [run_of(arms["qwen3-1.7b", main]), *swept]
    read = {"alpha": lambda run: run.alpha, "beta": lambda run: run.training.beta}[group]
    assert sorted(map(read, runs)) == values
    fixed = {"alpha": lambda run: run.training.beta, "beta": lambda run: run.alpha}[group]
    assert len(set(map(fixed, runs))) == 1
    assert {stage_hash(run.anchors) for run in runs} == {stage_hash(runs[0].anchors)}


def test_calif_without_a_kl_term(arms):
    stage, main = (run_of(arms["qwen3-1.7b", name]) for name in ("calif_beta_0", "calif"))
    assert (stage.method, stage.alpha, stage.training.beta) == ("calif", 0.1, 0.0)
    assert stage.training.model_copy(update={"beta": 0.001}) == main.training


def test_judges_are_the_base_policy_and_a_stronger_model(arms):
    """Paper, section 2.4."""
    for name in ("tulu3-8b-dpo", "qwen3-4b-thinking"):
        own, stronger = (run_of(arms[name, m]).judge for m in ("self_judge", "stronger_judge"))
        assert own.model == CONFIGURATIONS[name]
        assert stronger.model == "Qwen/Qwen3-30B-A3B"


def test_tables_can_tell_policies_with_judges_apart(arms):
    """They are keys of dictionaries there; a judge's extra body is a dictionary itself."""
    policies = [run_of(arm) for arm in arms.values()]
    assert len({policy: arm_names(policies)[policy] for policy in policies}) == 31
    judged = run_of(arms["qwen3-4b-thinking", "self_judge"])
    assert judged in {judged.model_copy(deep=True)}


def test_all_runs_fit_eight_processes(arms):
    for arm in arms.values():
        execution = arm.params.settings.execution
        assert (execution.cluster, execution.processes) == ("slurm", 8)
        assert (execution.deepspeed is not None) == (not arm.configuration.startswith("qwen3-1.7b"))
        training = run_of(arm).training
        rollouts = training.prompts_per_step * training.rollouts_per_prompt
        assert rollouts % (training.micro_batch_size * execution.processes) == 0


def test_the_h100_profile_is_the_first_configuration(arms):
    assert load_params("h100").settings.train_stages() == [
        run_of(arms["qwen3-1.7b", name]) for name in ("if_rlvr", "calif")
    ]


def test_the_deepspeed_configuration_saves_weights():
    """Otherwise the checkpoints of the larger models hold no policy."""
    zero = json.loads((ROOT / "params" / "zero3.json").read_text())["zero_optimization"]
    assert zero["stage"] == 3
    assert zero["stage3_gather_16bit_weights_on_model_save"] is True
