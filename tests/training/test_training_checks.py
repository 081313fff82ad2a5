"""What is refused before the anchors of a training run are computed."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import tiny_params
from tiny_thinker import save_thinker

from califkit.runs.settings import Execution, ParamsError, RewardOptions
from califkit.runs.stages import TrainStage
from califkit.training import checks
from califkit.training.checks import check_gpu, check_settings


def stage_of(folder: Path, **changes) -> tuple[TrainStage, Execution]:
    params = tiny_params(folder, methods=["calif"], **changes)
    (stage,) = params.settings.train_stages()
    return stage, params.settings.execution


def check(stage: TrainStage, execution: Execution) -> None:
    check_settings("tiny", stage, execution)


REFUSED = {
    "processes": ({}, {"processes": 3}, "8 rollouts a step do not divide among 3 processes"),
    "vllm": ({"use_vllm": True}, {}, "the package vllm is not installed"),
    "deepspeed": ({}, {"deepspeed": "params/zero3.json"}, "deepspeed is not installed"),
    "tracker": ({}, {"report_to": ["trackio"]}, "report_to = trackio: the package trackio is"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused(tmp_path, monkeypatch, name):
    training, execution, message = REFUSED[name]
    monkeypatch.setattr(checks, "find_spec", lambda package: None)  # none is installed
    with pytest.raises(ParamsError, match=message):
        check(*stage_of(tmp_path, training=training, execution=execution))


def test_what_can_work_is_not(tmp_path):
    check(*stage_of(tmp_path, training={"lora": {"r": 4}}, execution={"processes": 2}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"zero_optimization": {"stage": 3}}', "stage3_gather_16bit_weights_on_model_save must"),
        ("{", "cannot be read"),
    ],
)
def test_a_deepspeed_configuration_that_saves_no_weights(tmp_path, monkeypatch, text, message):
    path = tmp_path / "ds.json"
    path.write_text(text)
    monkeypatch.setattr(checks, "find_spec", lambda package: True)
    with pytest.raises(ParamsError, match=message):
        check(*stage_of(tmp_path, execution={"deepspeed": str(path)}))


def test_deepspeed_wants_a_gpu_where_training_happens(tmp_path, monkeypatch):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.setattr(checks, "find_spec", lambda package: True)
    stage, execution = stage_of(tmp_path, execution={"deepspeed": "params/zero3.json"})
    with pytest.raises(ParamsError, match="there is no GPU"):
        check(stage, execution)
    cluster = execution.model_copy(update={"cluster": "slurm"})
    check(stage, cluster)  # its machines may have some
    with pytest.raises(ParamsError, match="there is no GPU"):
        check_gpu(cluster)  # on such a machine


def test_fewer_prompts_than_a_step_takes(tmp_path):
    stage, execution = stage_of(tmp_path)
    data = stage.anchors.data.model_copy(update={"n_prompts": 1})
    few = stage.model_copy(update={"anchors": stage.anchors.model_copy(update={"data": data})})
    with pytest.raises(ParamsError, match="n_prompts = 1 is less than .*prompts_per_step = 2"):
        check(few, execution)


def test_an_option_that_the_method_does_not_use(tmp_path):
    stage, execution = stage_of(tmp_path)
    changed = {"method": "direct_bonus", "reward": RewardOptions(reversed_bounds="keep")}
    with pytest.raises(ParamsError, match="method direct_bonus: .*reversed_bounds"):
        check(stage.model_copy(update=changed), execution)


def test_thinking_needs_a_model_that_marks_the_end_of_its_reasoning(tmp_path, tiny):
    with pytest.raises(ParamsError, match="thinking = true: .*tiny-random-llama has no </think>"):
        check(*stage_of(tmp_path, thinking=True))
    thinker = save_thinker(tiny, tmp_path / "thinker")
    check(*stage_of(tmp_path, thinking=True, model=str(thinker)))


def test_adapters_lie_on_linear_layers_that_exist(tmp_path):
    def check_names(*names: str) -> None:
        lora = {"r": 4, "target_modules": list(names)}
        check(*stage_of(tmp_path, training={"lora": lora}))

    check_names("q_proj", "mlp.down_proj", "layers.1.self_attn.v_proj")
    for wrong in ("q_prj", "proj", "mlp", "layers.2.self_attn.v_proj"):
        with pytest.raises(ParamsError, match=f"named '{wrong}'; there are: down_proj, gate_") as e:
            check_names("q_proj", wrong)
    assert "lm_head" not in str(e.value)


def test_the_checks_do_not_load_torch():
    code = "import sys, califkit.runs.dispatch; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout == "False\n", run.stderr
