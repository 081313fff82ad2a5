"""Prompts that their rollouts share: loss and gradients are those of TRL's own trainer."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_trainer import REQUESTS, even_tokens, lora, make_config, rows
from transformers import AutoConfig, AutoModelForCausalLM
from trl import GRPOTrainer

from califkit.models import passes
from califkit.models.resolve import load_tokenizer, resolve
from califkit.training.groups import GroupTrainer, in_whole_groups

SMALL = {
    "vocab_size": 49_152,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
MODELS = {
    "llama": {"model_type": "llama"},
    "qwen3": {"model_type": "qwen3", "head_dim": 8},
    "olmo3": {"model_type": "olmo3", "sliding_window": 500},
    "narrow-window": {"model_type": "olmo3", "sliding_window": 16},
    "own-head": {"model_type": "llama", "tie_word_embeddings": False},
}


@pytest.fixture(scope="module")
def tokenizer(tiny_folder):
    return load_tokenizer(tiny_folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer) -> dict[str, Path]:
    """A random model of each kind."""
    found = {}
    for name, settings in MODELS.items():
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**SMALL | settings))
        found[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(found[name])
        tokenizer.save_pretrained(found[name])
    return found


def trainer_of(kind, folder, tokenizer, output, *, peft_config=None, **changes):
    from datasets import Dataset

    attention = changes.pop("attention", "sdpa")
    options = {"dtype": "float32", "attn_implementation": attention}
    return kind(
        model=str(folder),
        reward_funcs=even_tokens,
        args=make_config(output, model_init_kwargs=options, **changes),
        train_dataset=Dataset.from_dict(rows()),
        processing_class=tokenizer,
        peft_config=peft_config,
    )


def rollouts(tokenizer, lengths: list[list[int]]) -> dict[str, torch.Tensor]:
    """Inputs of a loss as TRL pads them, with columns that no row needs on either side."""
    rng = np.random.default_rng(0)
    end = tokenizer.eos_token_id
    prompts, answers = [], []
    for request, group in zip(REQUESTS, lengths, strict=False):
        ids = tokenizer(request * 3, add_special_tokens=False)["input_ids"]
        for length in group:
            prompts.append(ids)
            answers.append([*rng.integers(3, 40_000, size=length - 1).tolist(), end])
    width, height = max(map(len, prompts)) + 2, max(map(len, answers)) + 3

    def padded(row, size, left):
        fill, ones = [end] * (size - len(row)), [1] * len(row)
        zeros = [0] * len(fill)
        return (fill + row, zeros + ones) if left else (row + fill, ones + zeros)

    left = [padded(row, width, True) for row in prompts]
    right = [padded(row, height, False) for row in answers]
    return {
        "prompt_ids": torch.tensor([ids for ids, _ in left]),
        "prompt_mask": torch.tensor([mask for _, mask in left]),
        "completion_ids": torch.tensor([ids for ids, _ in right]),
        "completion_mask": torch.tensor([mask for _, mask in right]),
        "advantages": torch.tensor(rng.normal(size=len(prompts)), dtype=torch.float32),
        "num_items_in_batch": torch.tensor(float(sum(map(len, answers)))),
    }


def loss_and_gradients(trainer, inputs, spread: float = 0.02) -> SimpleNamespace:
    """Of one micro-batch, with the reference pass if there is a KL term."""
    trainer.current_gradient_accumulation_steps = 1
    inputs = dict(inputs)
    model = trainer.model
    model.train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # a policy that has left its reference
            if parameter.requires_grad:
                generator = torch.Generator().manual_seed(len(name))
                parameter.add_(spread * torch.randn(parameter.shape, generator=generator))
    if trainer.beta:
        width = inputs["prompt_ids"].shape[1]
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        with torch.no_grad():
            adapter_off = nullcontext() if trainer.ref_model else model.disable_adapter()
            with adapter_off:
                inputs["ref_per_token_logps"], *_ = trainer._get_per_token_logps_and_entropies(
                    trainer.ref_model or model, ids, mask, ids.shape[1] - width, batch_size=3
                )
    loss = trainer._compute_loss(model, inputs)
    loss.backward()
    return SimpleNamespace(
        loss=loss.item(),
        gradients={n: p.grad for n, p in model.named_parameters() if p.grad is not None},
        metrics={name: values[-1] for name, values in trainer._metrics["train"].items()},
    )


def assert_the_same(ours, theirs, each: float = 1e-5) -> None:
    """Loss, the gradient as a whole and that of ``each`` weight, relative to TRL's."""
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
    assert ours.gradients.keys() == theirs.gradients.keys()
    differences = {n: (ours.gradients[n] - g).norm() for n, g in theirs.gradients.items()}
    norms = {n: g.norm() for n, g in theirs.gradients.items()}
    for name, difference in differences.items():
        assert difference < each * norms[name], name
    whole = torch.stack([*differences.values()]).norm() / torch.stack([*norms.values()]).norm()
    assert whole < 1e-5
    assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-4, abs=1e-7)


UNEVEN = [[1, 9, 4, 12], [7, 7, 2, 1]]
ENDS_ONLY = [[1, 1, 1, 1], [5, 3, 8, 2]]


@pytest.mark.parametrize("adapter", [False, True], ids=["all-weights", "lora"])
@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("lengths", [UNEVEN, ENDS_ONLY], ids=["uneven", "ends-only"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "olmo3"])
def test_loss_and_gradients_are_those_of_trl(
    folders, tokenizer, tmp_path, name, lengths, beta, adapter
):
    inputs = rollouts(tokenizer, lengths)
    found = []
    for kind in (GroupTrainer, GRPOTrainer):
        peft_config = lora() if adapter else None
        trainer = trainer_of(
            kind, folders[name], tokenizer, tmp_path, beta=beta, peft_config=peft_config
        )
        found.append(loss_and_gradients(trainer, inputs))
    assert_the_same(*found)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [False, True], ids=["all-weights", "lora"])
def test_loss_and_gradients_of_smollm2(tokenizer, tmp_path, adapter):
    inputs = rollouts(tokenizer, [[1, 9, 24, 12], [7, 7, 2, 1], [1, 1, 1, 1]])
    found = []
    for kind in (GroupTrainer, GRPOTrainer):
        options = {"beta": 0.1, "peft_config": lora() if adapter else None}
        folder = resolve("smollm2-135m-instruct")
        trainer = trainer_of(kind, folder, tokenizer, tmp_path, **options)
        found.append(loss_and_gradients(trainer, inputs, spread=0.001))
    # TRL's own gradients of single weights are up to 1.7e-5 away from those in float64.
    assert_the_same(*found, each=3e-5)


@pytest.mark.parametrize(
    ("name", "options", "shares"),
    [
        ("llama", {}, "prompts are shared by their answers"),
        ("own-head", {}, "prompts are shared by their answers"),
        ("olmo3", {}, "prompts are shared by answers that end within 500 tokens"),
        ("llama", {"gradient_checkpointing": True}, "prompts are shared by their answers"),
        ("narrow-window", {}, "prompts are shared by answers that end within 16 tokens"),
        ("llama", {"attention": "eager"}, "no prompt is shared: attention eager takes no"),
    ],
)
def test_each_prompt_once_where_the_mask_allows_it(
    folders, tokenizer, tmp_path, name, options, shares
):
    """Else a row an answer; in either case without padding that no row needs."""
    inputs = rollouts(tokenizer, UNEVEN)
    ours = trainer_of(GroupTrainer, folders[name], tokenizer, tmp_path, **options)
    theirs = trainer_of(GRPOTrainer, folders[name], tokenizer, tmp_path, **options)
    assert str(ours.sharing).startswith(shares)
    shapes = []
    ours.model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)),
        with_kwargs=True,
    )
    assert_the_same(loss_and_gradients(ours, inputs), loss_and_gradients(theirs, inputs))
    prompts = inputs["prompt_mask"].sum(1).tolist()
    together = [prompts[4 * g] - 1 + sum(UNEVEN[g]) for g in (0, 1)]
    apart = [p - 1 + n for p, n in zip(prompts, sum(UNEVEN, []), strict=True)]
    shared = "no prompt" not in shares and "16" not in shares
    assert shapes[0] == ((2, max(together)) if shared else (8, max(apart)))


@pytest.mark.parametrize("chunk", [3, 256])
def test_logits_are_made_of_answer_positions_a_chunk_at_a_time(
    folders, tokenizer, tmp_path, monkeypatch, chunk
):
    monkeypatch.setattr(passes, "CHUNK", chunk)
    inputs = rollouts(tokenizer, UNEVEN)
    ours = trainer_of(GroupTrainer, folders["llama"], tokenizer, tmp_path, beta=0.0)
    theirs = trainer_of(GRPOTrainer, folders["llama"], tokenizer, tmp_path, beta=0.0)
    seen = []
    head = ours.model.get_output_embeddings()
    project = head.forward
    monkeypatch.setattr(head, "forward", lambda h: seen.append(len(h)) or project(h), raising=False)
    assert_the_same(loss_and_gradients(ours, inputs), loss_and_gradients(theirs, inputs))
    answer_tokens = sum(map(sum, UNEVEN))
    assert max(seen) <= chunk
    last = answer_tokens % chunk or chunk  # the only one whose logits are kept for the backward
    again = answer_tokens - last if chunk < answer_tokens else 0
    assert sum(seen) == answer_tokens + again


@pytest.mark.parametrize("micro_batch", [2, 6, 12])
def test_a_run_is_that_of_trl(folders, tokenizer, tmp_path, micro_batch):
    """Micro-batches of half a group, of one and a half, and of all groups."""
    logs = []
    for kind in (GroupTrainer, GRPOTrainer):
        trainer = trainer_of(
            kind,
            folders["qwen3"],
            tokenizer,
            tmp_path,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=12 // micro_batch,
            learning_rate=1e-3,
        )
        trainer.train()
        logs.append([row for row in trainer.state.log_history if "loss" in row])
    for ours, theirs in zip(*logs, strict=True):
        for name in ("reward", "entropy", "grad_norm", "completions/mean_length", "kl"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-7), name
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-6)
    assert len(logs[0]) == 3


@pytest.mark.parametrize("adapter", [False, True])
def test_rollouts_do_not_depend_on_the_model_s_generation_config(
    folders, tokenizer, tmp_path, adapter
):
    """TRL's own trainer, which fills it in, draws otherwise; then `bind` refuses."""
    drawn = {}
    for kind in (GroupTrainer, GRPOTrainer):
        peft_config = lora() if adapter else None
        trainer = trainer_of(kind, folders["llama"], tokenizer, tmp_path, peft_config=peft_config)
        model = trainer.accelerator.unwrap_model(trainer.model)
        own = (model.get_base_model() if adapter else model).generation_config
        prompts = [tokenizer(request)["input_ids"] for request in REQUESTS]
        for settings in (
            {},
            {"min_p": 0.95},
            {"no_repeat_ngram_size": 1, "forced_eos_token_id": 7},
        ):
            own.update(**settings)
            torch.manual_seed(5)
            drawn[kind, str(settings)] = trainer._generate_single_turn(prompts, None, {}, 4)[0]
            saved = trainer.model.generation_config.to_dict()
            assert settings.items() <= saved.items(), "the policy is saved with its own settings"
    ours = [rows for (kind, _), rows in drawn.items() if kind is GroupTrainer]
    theirs = [rows for (kind, _), rows in drawn.items() if kind is GRPOTrainer]
    assert ours == [theirs[0]] * 3
    assert theirs[0] != theirs[1] != theirs[2]


def test_micro_batches_hold_whole_groups_and_answers_of_like_length():
    micro_batches = [
        {
            "prompt_ids": torch.tensor([[0, 7], [8, 9], [0, 5]]),
            "prompt_mask": torch.tensor([[0, 1], [1, 1], [0, 1]]),
            "completion_mask": torch.tensor([[1, 1], [1, 0], [1, 0]]),
            "advantages": torch.tensor([0.0, 1.0, 2.0]),
            "num_items_in_batch": torch.tensor(9.0),
        },
        {
            "prompt_ids": torch.tensor([[0, 5], [0, 7], [8, 9]]),
            "prompt_mask": torch.tensor([[0, 1], [0, 1], [1, 1]]),
            "completion_mask": torch.tensor([[1, 1], [1, 0], [1, 1]]),
            "advantages": torch.tensor([3.0, 4.0, 5.0]),
            "num_items_in_batch": torch.tensor(9.0),
        },
    ]
    first, second = in_whole_groups(micro_batches)
    assert first["advantages"].tolist() == [2.0, 3.0, 4.0]
    assert second["advantages"].tolist() == [0.0, 1.0, 5.0]
    assert second["prompt_ids"].tolist() == [[0, 7], [8, 9], [8, 9]]
    assert first["num_items_in_batch"].item() == 9.0
