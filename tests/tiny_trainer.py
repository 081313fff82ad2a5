"""A real ``GRPOTrainer`` of the tiny model, for tests."""

from pathlib import Path
from typing import Any

import numpy as np

from califkit.data.rows import constraints_json
from califkit.verifiers import Constraint

REQUESTS = ["Name a drink.", "Describe the weather at the sea.", "Say hello.", "Count to three."]
# Random tokens contain many letters, so some rollouts satisfy it and some do not.
MANY_E = constraints_json(
    [
        Constraint(
            "keywords:letter_frequency",
            {"letter": "e", "let_frequency": 3, "let_relation": "at least"},
        )
    ]
)


def rows(n: int = 4, **changes: Any) -> dict[str, list[Any]]:
    """Columns of a training set of n prompts; ``changes`` replaces or adds columns."""
    columns = {
        "prompt": [[{"role": "user", "content": f"{REQUESTS[i % 4]} ({i})"}] for i in range(n)],
        "key": [f"prompt-{i}" for i in range(n)],
        "request": [REQUESTS[i % 4] for i in range(n)],
        "constraints": [MANY_E] * n,
        "l0": [-20.0] * n,
        "l1": [0.0] * n,
    }
    return columns | changes


def even_tokens(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """A second reward that always differs between rollouts, so that the policy moves."""
    return [float(np.mean([token % 2 == 0 for token in ids])) for ids in completion_ids]


def make_config(folder: Path, **changes: Any) -> Any:
    """A few quick steps with a learning rate that moves the policy visibly."""
    from trl import GRPOConfig

    settings = {
        "max_steps": 3,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 6,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "beta": 0.01,
        "gradient_checkpointing": False,
        "remove_unused_columns": False,
        "bf16": False,
        "use_cpu": True,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
    }
    return GRPOConfig(output_dir=str(folder), **settings | changes)


def make_trainer(
    model: Any,
    config: Any,
    reward: Any,
    tokenizer: Any,
    *,
    data: dict[str, list[Any]] | None = None,
    peft_config: Any = None,
    kind: Any = None,
) -> Any:
    """A trainer of a model, or of the folder of one; TRL's own, or another ``kind``."""
    from datasets import Dataset
    from trl import GRPOTrainer

    return (kind or GRPOTrainer)(
        model=str(model) if isinstance(model, Path) else model,
        reward_funcs=[reward, even_tokens],
        args=config,
        train_dataset=Dataset.from_dict(data or rows()),
        processing_class=tokenizer,
        peft_config=peft_config,
    )


def load(folder: Path | str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def lora(**changes: Any) -> Any:
    from peft import LoraConfig

    settings = {"r": 4, "lora_alpha": 32, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    return LoraConfig(**settings | changes)


def save_trained_adapter(base: Path, folder: Path) -> Path:
    """Write a LoRA adapter whose B is not 0, as after training."""
    import torch
    from peft import get_peft_model

    model = get_peft_model(load(base), lora())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder)
    return folder


def with_adapter(base: Path | str, adapter: Path | str, **options: Any) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(load(base), adapter, **options)


def likelihood(model: Any, tokenizer: Any, request: str, answer: list[int]) -> float:
    """Mean log-probability of an answer from one unpadded forward pass with all logits."""
    import torch

    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": request}], tokenize=False, add_generation_prompt=True
    )
    prefix = tokenizer(text, add_special_tokens=False)["input_ids"]
    ids = torch.tensor([prefix + answer])
    training = model.training
    model.eval()
    with torch.no_grad():
        log_probs = model(input_ids=ids).logits[0].double().log_softmax(-1)
    model.train(training)
    at = range(len(prefix) - 1, len(prefix) + len(answer) - 1)
    return float(np.mean([log_probs[i, token].item() for i, token in zip(at, answer, strict=True)]))
