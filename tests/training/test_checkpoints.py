"""How much room a training run needs, from the headers of the weights."""

import pytest
import torch
from safetensors.torch import save_file
from tiny_runs import tiny_params

from califkit.runs.folders import StaleRunError
from califkit.runs.settings import Execution
from califkit.training import checkpoints


@pytest.fixture
def model(tmp_path):
    """11 + 20 parameters, in bfloat16 and in two files."""
    folder = tmp_path / "model"
    folder.mkdir()
    one = {"a": torch.zeros(2, 3, dtype=torch.bfloat16), "b": torch.zeros(5, dtype=torch.bfloat16)}
    save_file(one, folder / "model-1.safetensors")
    save_file({"c": torch.zeros(4, 5, dtype=torch.bfloat16)}, folder / "model-2.safetensors")
    return folder


def needed(tmp_path, model, keep=1, **training) -> int:
    (stage,) = tiny_params(tmp_path, methods=["calif"], training=training).settings.train_stages()
    execution = Execution(keep_checkpoints=keep)
    return checkpoints.bytes_needed(stage, execution, model, tmp_path / "run")


# 3 steps of 2 prompts x 4 rollouts of 8 tokens; 5 bytes of text a token and 400 of other columns.
ROLLOUTS = 3 * 2 * 4 * (8 * 5 + 400)


def test_parameters_are_counted_in_all_files(model):
    assert checkpoints.n_parameters(model) == 31
    assert checkpoints.n_adapter_parameters(model, r=2) == 2 * (2 + 3) + 2 * (4 + 5)


def test_the_count_is_that_of_the_model(tiny, tiny_folder):
    stored = {p.data_ptr(): p.numel() for p in tiny.model.parameters()}
    assert checkpoints.n_parameters(tiny_folder) == sum(stored.values())


def test_all_weights_take_three_times_their_float32_in_each_checkpoint(tmp_path, model):
    """Weights and two moments; one checkpoint more while the next is written; and the policy."""
    assert needed(tmp_path, model) == 4 * 31 * (3 * 2 + 1) + ROLLOUTS
    assert needed(tmp_path, model, keep=3) == 4 * 31 * (3 * 4 + 1) + ROLLOUTS


def test_adapters_take_little_but_the_policy_is_whole(tmp_path, model):
    assert needed(tmp_path, model, lora={"r": 2}) == 4 * (28 * 3 * 2 + 31) + ROLLOUTS


def test_rollouts_grow_with_steps_and_tokens(tmp_path, model):
    more = needed(tmp_path, model, steps=30, max_completion_tokens=2048)
    assert more - needed(tmp_path, model) == 30 * 8 * (2048 * 5 + 400) - ROLLOUTS


def test_what_is_there_already_is_not_needed_again(tmp_path, model):
    there = tmp_path / "run" / "checkpoints" / "checkpoint-2"
    there.mkdir(parents=True)
    (there / "model.safetensors").write_bytes(b"0" * 100)
    assert needed(tmp_path, model) == 4 * 31 * 7 + ROLLOUTS - 100
    (tmp_path / "run" / "rollouts.jsonl").write_bytes(b"0" * 1000)
    assert needed(tmp_path, model) == 4 * 31 * 7 + ROLLOUTS - 1100
    (there / "optimizer.pt").write_bytes(b"0" * 100_000)
    assert needed(tmp_path, model) == 0


def test_a_run_goes_on_with_as_many_processes_as_it_was_begun_with(tmp_path):
    folder = tmp_path / "checkpoints"
    checkpoints.check_processes(tmp_path, 1)  # nothing is there
    (folder / "checkpoint-2").mkdir(parents=True)
    (folder / "facts.json").write_text('{"processes": 8}')
    checkpoints.check_processes(tmp_path, 1)  # killed inside the first checkpoint: begins again
    (folder / "checkpoint-2" / "trainer_state.json").write_text('{"global_step": 2}')
    checkpoints.check_processes(tmp_path, 8)
    with pytest.raises(StaleRunError, match="begun with 8 processes and cannot go on with 4") as e:
        checkpoints.check_processes(tmp_path, 4)
    assert "set execution.processes = 8" in str(e.value) and str(tmp_path) in str(e.value)


def test_a_policy_is_copied_without_the_state_of_its_training(tmp_path):
    state = ["optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]
    state += ["training_args.bin", "latest", "zero_to_fp32.py", "global_step5/x.pt"]
    kept = ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"]
    for name in state + kept:
        path = tmp_path / "checkpoint-5" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    checkpoints.copy_policy(tmp_path / "checkpoint-5", tmp_path / "policy")
    assert {p.name for p in (tmp_path / "policy").iterdir()} == set(kept)
