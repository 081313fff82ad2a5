"""One process of a training run in several; ``test_distributed`` starts it with torchrun.

``python distributed_worker.py spec.json`` trains a tiny policy for a few steps, then scores fixed
rollouts that are dealt out to the processes, and writes ``<rank>.json`` beside the spec.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from tiny_trainer import (
    MANY_E,
    REQUESTS,
    likelihood,
    lora,
    make_config,
    make_trainer,
    with_adapter,
)

from califkit.rewards.trl import CalifReward, RewardError
from califkit.training.groups import GroupTrainer

DEEPSPEED = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 3},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
TEXTS = ["Tea or beer, please, dear reader", "Eel", "Rain", "See the green trees here"] * 4
PROBE = ("Name a drink.", "Tea and rain today")
DEALT = {"even": (8, 8), "uneven": (5, 11)}
"""Rollouts of each process."""


def rollouts(tokenizer: Any, texts: list[str]) -> dict[str, list[Any]]:
    """Four rollouts each of four prompts, as TRL hands them over."""
    end = tokenizer.eos_token_id
    n = len(texts)
    return {
        "prompts": [[{"role": "user", "content": REQUESTS[i // 4]}] for i in range(n)],
        "completions": texts,
        "completion_ids": [
            [*tokenizer(text, add_special_tokens=False)["input_ids"], end] for text in texts
        ],
        "key": [f"prompt-{i // 4}" for i in range(n)],
        "request": [REQUESTS[i // 4] for i in range(n)],
        "constraints": [MANY_E] * n,
        "l0": [-20.0, -20.0, 0.0, None] * 4,
        "l1": [0.0, -15.0, -1.0, 0.0] * 4,
    }


def batches(tokenizer: Any) -> dict[str, dict[str, list[Any]]]:
    """Fixed rollouts by name; in the second all of the first process are empty."""
    return {
        "texts": rollouts(tokenizer, TEXTS),
        "some empty": rollouts(tokenizer, [""] * 8 + TEXTS[8:]),
    }


def share(batch: dict[str, list[Any]], deal: tuple[int, ...], rank: int) -> dict[str, list[Any]]:
    start = sum(deal[:rank])
    return {name: values[start : start + deal[rank]] for name, values in batch.items()}


def score_dealt(reward: CalifReward, tokenizer: Any, rank: int, world: int) -> dict[str, Any]:
    """Rewards of this process, rows and metrics of every batch and every way to deal it out."""
    found = {}
    reward._trainer.model.train()
    for name, batch in batches(tokenizer).items():
        for dealt, deal in DEALT.items():
            rows, metrics = [], {}
            reward.on_rollouts = lambda step, step_rows, rows=rows: rows.extend(step_rows)
            own = share(batch, deal if world > 1 else (16,), rank)
            rewards = reward(**own, log_metric=metrics.__setitem__)
            found[f"{name}, {dealt}"] = {"rewards": rewards, "rows": rows, "metrics": metrics}
    return found


def broken(batch: dict[str, list[Any]], rank: int) -> dict[str, list[Any]]:
    """The batch, with constraints on the second process that cannot be read."""
    return batch | {"constraints": ["["] * len(batch["key"])} if rank == 1 else batch


def policy_of(spec: dict[str, Any]) -> tuple[Any, Any]:
    """What the trainer is given: a model or its folder, and the adapter to make."""
    if spec["case"] == "trained adapter":
        return with_adapter(spec["model"], spec["adapter"], is_trainable=True), None
    return spec["model"], lora() if spec["case"] == "lora" else None


def deepspeed_on_cpu() -> dict[str, Any]:
    """Options of a configuration that trains with ZeRO-3 through gloo.

    With ``use_cpu=True`` accelerate leaves DeepSpeed out, and without it chooses no backend on a
    machine that has no accelerator; so the processes are joined here.
    """
    from accelerate import PartialState

    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    PartialState(backend="gloo")
    return {
        "deepspeed": DEEPSPEED,
        "use_cpu": False,
        "accelerator_config": {"use_configured_state": True},
    }


def main(path: Path) -> None:
    import torch.distributed as dist
    from transformers import AutoTokenizer

    spec = json.loads(path.read_text())
    tokenizer = AutoTokenizer.from_pretrained(spec["model"])
    steps: list[list[dict[str, Any]]] = []
    reward = CalifReward(tokens_per_pass=64, on_rollouts=lambda step, rows: steps.append(rows))
    # A prompt has four rollouts and each process holds two, so groups are split. The configuration
    # comes before the model: with it ZeRO-3 splits weights as they are loaded.
    options = deepspeed_on_cpu() if spec["deepspeed"] else {}
    config = make_config(
        path.parent, per_device_train_batch_size=2, max_steps=2, beta=spec["beta"], **options
    )
    model, peft_config = policy_of(spec)
    trainer = make_trainer(
        model, config, reward, tokenizer, peft_config=peft_config, kind=GroupTrainer
    )
    reward.bind(trainer)
    rank, world = dist.get_rank(), dist.get_world_size()
    assert world == 2, f"started as {world} processes"
    policy = trainer.accelerator.unwrap_model(trainer.model)
    answer = tokenizer(PROBE[1], add_special_tokens=False)["input_ids"]
    batch = batches(tokenizer)["texts"]

    if spec["scenario"] == "broken data":
        trainer.model.train()
        reward(**broken(share(batch, DEALT["even"], rank), rank))
    trainer.train()
    if spec["scenario"] == "broken pass":
        own = share(batch, DEALT["even"], rank)
        if rank == 1:
            own["completion_ids"][0] = [10**9, *own["completion_ids"][0]]
        reward(**own)
    result = {
        "steps": steps,
        "log": [row for row in trainer.state.log_history if "loss" in row],
        "policy": likelihood(policy, tokenizer, PROBE[0], answer),
        "lockstep": reward.scorer.lockstep,
        "reference": float(reward.scorer.score([PROBE[0]], [answer])[0]),
    }
    try:
        reward(**broken(share(batch, DEALT["even"], rank), rank))
    except RewardError as error:
        result["error"] = str(error)
    result["scored"] = score_dealt(reward, tokenizer, rank, world)  # after the error, as before it
    (path.parent / f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    # The result is written; threads of gloo that meet the end of the interpreter abort it at times.
    sys.stdout.flush()
    os._exit(0)
