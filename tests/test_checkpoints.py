"""How much room a training run needs, from the headers of the weights."""

import pytest
import torch
from safetensors.torch import save_file
from tiny_runs import tiny_params

from califkit import checkpoints
from califkit.params import Execution


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
    done = tmp_path / "done"
    return checkpoints.bytes_needed(stage, Execution(keep_checkpoints=keep), model, done)


def test_parameters_are_counted_in_all_files(model):
    assert checkpoints.n_parameters(model) == 31
    assert checkpoints.n_adapter_parameters(model, r=2) == 2 * (2 + 3) + 2 * (4 + 5)


def test_the_count_is_that_of_the_model(tiny, tiny_folder):
    stored = {p.data_ptr(): p.numel() for p in tiny.model.parameters()}
    assert checkpoints.n_parameters(tiny_folder) == sum(stored.values())


def test_all_weights_take_three_times_their_float32_in_each_checkpoint(tmp_path, model):
    """Weights and two moments; one checkpoint more while the next is written; and the policy."""
    assert needed(tmp_path, model) == 4 * 31 * (3 * 2 + 1)
    assert needed(tmp_path, model, keep=3) == 4 * 31 * (3 * 4 + 1)


def test_adapters_take_little_but_the_policy_is_whole(tmp_path, model):
    assert needed(tmp_path, model, lora={"r": 2}) == 4 * (28 * 3 * 2 + 31)


def test_what_is_there_already_is_not_needed_again(tmp_path, model):
    (tmp_path / "done" / "checkpoint-2").mkdir(parents=True)
    (tmp_path / "done" / "checkpoint-2" / "model.safetensors").write_bytes(b"0" * 100)
    assert needed(tmp_path, model) == 4 * 31 * 7 - 100
    (tmp_path / "done" / "checkpoint-2" / "optimizer.pt").write_bytes(b"0" * 10_000)
    assert needed(tmp_path, model) == 0


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
