"""l stays that of the starting policy, however the trainer holds it and however far it trains."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tiny_trainer import (
    likelihood,
    load,
    lora,
    make_config,
    make_trainer,
    save_trained_adapter,
    with_adapter,
)

from califkit.rewards.reference import NoReferenceError, check_adapter, find_reference
from califkit.rewards.trl import CalifReward

TEXTS = [("Name a drink.", "Tea and rain today"), ("Say hello.", "Hello, dear reader of this book")]


@dataclass
class Start:
    """A starting policy: what the trainer is given, and how to build the same policy anew."""

    model: Any
    policy: Any
    peft_config: Any = None


@pytest.fixture(scope="module")
def trained_adapter(tiny_folder, tmp_path_factory) -> Path:
    return save_trained_adapter(tiny_folder, tmp_path_factory.mktemp("adapter"))


def start_of(name: str, tiny_folder: Path, adapter: Path) -> Start:
    from peft import get_peft_model

    base = load(tiny_folder)
    match name:
        case "full":
            return Start(str(tiny_folder), base)
        case "lora":
            return Start(str(tiny_folder), base, lora())
        case "pissa":
            return Start(str(tiny_folder), base, lora(init_lora_weights="pissa"))
        case "fresh adapter":
            return Start(get_peft_model(load(tiny_folder), lora()), base)
        case "trained adapter":
            model = with_adapter(tiny_folder, adapter, is_trainable=True)
            return Start(model, with_adapter(tiny_folder, adapter))
    raise AssertionError(name)


def answers(tokenizer: Any) -> list[list[int]]:
    return [
        [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        for _, text in TEXTS
    ]


def scores(reward: CalifReward, tokenizer: Any) -> list[float]:
    return reward.scorer.score([x for x, _ in TEXTS], answers(tokenizer)).tolist()


def own_scores(model: Any, tokenizer: Any) -> list[float]:
    return [
        likelihood(model, tokenizer, x, ids)
        for (x, _), ids in zip(TEXTS, answers(tokenizer), strict=True)
    ]


def distance(a: list[float], b: list[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


CASES = [
    ("full", 0.01, "kl_model"),
    ("full", 0.0, "own_copy"),
    ("lora", 0.01, "adapter_off"),
    ("lora", 0.0, "adapter_off"),
    ("pissa", 0.01, "adapter_copy"),
    ("fresh adapter", 0.01, "adapter_copy"),
    ("fresh adapter", 0.0, "adapter_off"),
    ("trained adapter", 0.01, "adapter_copy"),
    ("trained adapter", 0.0, "adapter_copy"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "beta", "kind"), CASES)
def test_the_reference_is_the_starting_policy_before_and_after_training(
    tiny, tiny_folder, trained_adapter, tmp_path, name, beta, kind
):
    start = start_of(name, tiny_folder, trained_adapter)
    expected = own_scores(start.policy, tiny.tokenizer)
    reward = CalifReward()
    config = make_config(tmp_path, beta=beta, gradient_checkpointing=name != "lora")
    trainer = make_trainer(
        start.model, config, reward, tiny.tokenizer, peft_config=start.peft_config
    )
    reward.bind(trainer)
    assert reward.reference_kind == kind
    assert distance(own_scores(trainer.model, tiny.tokenizer), expected) < 1e-4
    trainable = {n for n, p in trainer.model.named_parameters() if p.requires_grad}
    assert not [n for n in trainable if ".ref" in n], "the copy is frozen"
    before = scores(reward, tiny.tokenizer)
    assert distance(before, expected) < 1e-5

    trainer.train()
    assert distance(own_scores(trainer.model, tiny.tokenizer), expected) > 1e-3, "it moved"
    after = scores(reward, tiny.tokenizer)
    assert distance(after, before) < 1e-5
    assert distance(after, expected) < 1e-5
    assert {n for n, p in trainer.model.named_parameters() if p.requires_grad} == trainable


@pytest.mark.parametrize(("beta", "kind"), [(0.01, "kl_model"), (0.0, "own_copy")])
def test_a_trainer_in_bfloat16_scores_in_float32_on_a_cpu(tiny, tiny_folder, tmp_path, beta, kind):
    """As the bounds were scored; accelerate wraps the model's ``forward`` in autocast."""
    reward = CalifReward()
    config = make_config(tmp_path, beta=beta, bf16=True)
    reward.bind(make_trainer(tiny_folder, config, reward, tiny.tokenizer))
    assert reward.reference_kind == kind
    expected = own_scores(tiny.model, tiny.tokenizer)
    assert distance(own_scores(reward.scorer.model, tiny.tokenizer), expected) > 1e-4, "wrapped"
    assert distance(scores(reward, tiny.tokenizer), expected) < 1e-5
    assert distance(own_scores(reward.scorer.model, tiny.tokenizer), expected) > 1e-4, "again"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "beta", "kind"),
    [
        ("full", 0.01, "kl_model"),
        ("full", 0.0, "own_copy"),
        ("lora", 0.01, "adapter_off"),
        ("trained adapter", 0.0, "adapter_copy"),
    ],
)
def test_so_it_does_while_it_trains(tiny, tiny_folder, trained_adapter, tmp_path, name, beta, kind):
    start = start_of(name, tiny_folder, trained_adapter)
    expected = own_scores(start.policy, tiny.tokenizer)
    reward, seen = CalifReward(), []
    trainer = make_trainer(
        start.model,
        make_config(tmp_path, beta=beta, bf16=True, max_steps=2),
        reward,
        tiny.tokenizer,
        peft_config=start.peft_config,
    )
    reward.bind(trainer)
    assert reward.reference_kind == kind
    wrapped = []

    def note(step: int, rows: list[dict[str, Any]]) -> None:
        wrapped.append("_original_forward" in vars(reward.scorer.model))
        seen.append(distance(scores(reward, tiny.tokenizer), expected))

    reward.on_rollouts = note
    trainer.train()
    assert wrapped == [True, True]
    assert max(seen) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "beta"),
    [("full", 0.01), ("full", 0.0), ("lora", 0.01), ("trained adapter", 0.0)],
)
def test_resuming_keeps_the_starting_policy(
    tiny, tiny_folder, trained_adapter, tmp_path, name, beta
):
    saves = {"save_strategy": "steps", "save_steps": 1, "beta": beta}
    for steps, checkpoint in ((2, None), (3, str(tmp_path / "checkpoint-2"))):
        start = start_of(name, tiny_folder, trained_adapter)
        expected = own_scores(start.policy, tiny.tokenizer)
        reward = CalifReward()
        config = make_config(tmp_path, max_steps=steps, **saves)
        trainer = make_trainer(
            start.model, config, reward, tiny.tokenizer, peft_config=start.peft_config
        )
        reward.bind(trainer)
        trainer.train(resume_from_checkpoint=checkpoint)
        trained = own_scores(trainer.model, tiny.tokenizer)
        assert distance(trained, expected) > 1e-3, "the policy moved"
        assert distance(scores(reward, tiny.tokenizer), expected) < 1e-5
    assert [row["step"] for row in trainer.state.log_history if "loss" in row] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.01, 0.0])
def test_a_run_started_from_a_checkpoint_has_it_as_reference(tiny, tiny_folder, tmp_path, beta):
    config = make_config(tmp_path / "first")
    first = make_trainer(tiny_folder, config, CalifReward(), tiny.tokenizer)
    first.reward_funcs[0].bind(first)
    first.train()
    first.save_model(tmp_path / "moved")

    reward = CalifReward()
    config = make_config(tmp_path, beta=beta, max_steps=1)
    trainer = make_trainer(tmp_path / "moved", config, reward, tiny.tokenizer)
    reward.bind(trainer)
    trainer.train()
    moved = own_scores(load(tmp_path / "moved"), tiny.tokenizer)
    assert distance(moved, own_scores(tiny.model, tiny.tokenizer)) > 1e-3
    assert distance(scores(reward, tiny.tokenizer), moved) < 1e-5


def test_a_model_built_in_memory_has_no_reference_to_load(tiny, tmp_path):
    from transformers import AutoModelForCausalLM

    config = tiny.model.config.__class__.from_dict(tiny.model.config.to_dict())
    config._name_or_path = ""
    model = AutoModelForCausalLM.from_config(config)
    trainer = make_trainer(model, make_config(tmp_path, beta=0.0), CalifReward(), tiny.tokenizer)
    with pytest.raises(NoReferenceError, match="built in memory"):
        find_reference(trainer)
    trainer.model.config._name_or_path = str(tmp_path / "gone")
    with pytest.raises(NoReferenceError, match="gone"):
        find_reference(trainer)


@pytest.mark.parametrize("beta", [0.01, 0.0])
def test_a_path_with_other_weights_than_the_policy_is_refused(tiny, tiny_folder, tmp_path, beta):
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tiny_folder))
    trainer = make_trainer(model, make_config(tmp_path, beta=beta), CalifReward(), tiny.tokenizer)
    with pytest.raises(NoReferenceError, match="not that of the policy"):
        find_reference(trainer)


def test_a_policy_in_another_precision_is_the_same_policy(tiny, tiny_folder, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    config = make_config(tmp_path, model_init_kwargs={"dtype": "bfloat16"})
    trainer = make_trainer(model, config, CalifReward(), tiny.tokenizer)
    reference = find_reference(trainer)
    assert next(reference.model.parameters()).dtype == torch.bfloat16


def test_a_trainer_that_has_trained_has_no_starting_policy(tiny, tiny_folder, tmp_path):
    trainer = make_trainer(tiny_folder, make_config(tmp_path), CalifReward(), tiny.tokenizer)
    trainer.state.global_step = 7
    with pytest.raises(NoReferenceError, match="at step 7"):
        find_reference(trainer)


def test_an_adapter_of_the_name_ref_that_is_no_copy_is_refused(
    tiny, tiny_folder, trained_adapter, tmp_path
):
    model = with_adapter(tiny_folder, trained_adapter, is_trainable=True)
    model.add_adapter("ref", lora())
    trainer = make_trainer(model, make_config(tmp_path, beta=0.0), CalifReward(), tiny.tokenizer)
    with pytest.raises(NoReferenceError, match="'ref'"):
        find_reference(trainer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_modules": ["q_proj", "lm_head"]}, "lm_head"),
        ({"target_modules": ["embed_tokens"]}, "embed_tokens"),
        ({"modules_to_save": ["model.embed_tokens"]}, "embed_tokens"),
        ({"target_modules": r".*\.(q_proj|lm_head)"}, "lm_head"),
        ({"bias": "lora_only"}, "bias='lora_only'"),
    ],
)
def test_an_adapter_that_hides_the_starting_policy_is_refused(changes, message):
    with pytest.raises(NoReferenceError, match=message):
        check_adapter(lora(**changes))


def test_an_adapter_of_the_blocks_is_accepted():
    check_adapter(lora())
    check_adapter(lora(target_modules=["q_proj", "v_proj"]))
