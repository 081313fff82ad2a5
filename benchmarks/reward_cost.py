"""Seconds of a GRPO step with CaLIF beside one with r_ver alone, part by part.

    python benchmarks/reward_cost.py                      # SmolLM2, 4 prompts x 8 rollouts
    python benchmarks/reward_cost.py --steps 20 --lora 16
    python benchmarks/reward_cost.py --model Qwen/Qwen3-1.7B --tokens 512

One trainer (`califkit.training.groups`), one process. Steps come in pairs with the same prompts and
the same seed: one is rewarded with r_ver alone (``VerifierReward``, which scores no likelihood),
one with CaLIF; which of them goes first alternates, so that a machine's other load hits both alike.
The learning rate is 0: the arithmetic of a step stays, and both steps of a pair draw the same
rollouts.

Parts: generation; the KL pass (reference given request and constraints, which both arms have); the
x pass (reference given the request alone, which only CaLIF has); verifiers and the rest of the
reward; training (forward, backward, optimiser); other (tokenising, padding, advantages). The first
pair is a warm-up and not counted. On a GPU every part is synchronised; without one, CPU seconds are
shown beside wall seconds, since they do not count what else the machine does.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback, set_seed
from trl import GRPOConfig

from califkit import CalifReward
from califkit.data.composer import compose
from califkit.data.load import load_rows
from califkit.data.rows import constraints_json
from califkit.models.likelihood import ReferenceScorer
from califkit.models.resolve import resolve
from califkit.rewards.adapters import VerifierReward
from califkit.training.groups import GroupTrainer

ARMS = ("r_ver", "calif")
PARTS = ("generation", "KL pass", "x pass", "verifiers", "training", "other")
TARGET = 1.06  # CaLIF / r_ver


def wall() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Clock:
    """Seconds of each part of each step; parts inside parts are counted once, by the inner one.

    Parameters
    ----------
    now
        `wall`, or ``time.process_time``, which a machine's other load hardly moves.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.steps: list[dict[str, float]] = []
        self.current: dict[str, float] = defaultdict(float)
        self.started = 0.0
        self._inner = [0.0]

    def start(self) -> None:
        """Begin a step."""
        self.current = defaultdict(float)
        self.started = self.now()

    def stop(self) -> None:
        """End a step and keep its seconds."""
        parts = dict(self.current)
        parts["total"] = self.now() - self.started
        known = sum(parts.get(part, 0.0) for part in PARTS if part not in ("training", "other"))
        # `_prepare_inputs` is all that is not training; what no part of it claims is other.
        parts["training"] = parts["total"] - known - parts["other"]
        self.steps.append(parts)

    def timed(self, function: Callable, part: str | Callable[[], str]) -> Callable:
        """`function`, with its seconds added to a part."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            started = self.now()
            self._inner.append(0.0)
            try:
                return function(*args, **kwargs)
            finally:
                seconds = self.now() - started
                own = seconds - self._inner.pop()
                self._inner[-1] += seconds
                self.current[part if isinstance(part, str) else part()] += own

        return wrapper


class Switch:
    """The reward function of the trainer: the arm of the current step."""

    __name__ = "reward"

    def __init__(self, calif: CalifReward) -> None:
        self.arms = {"r_ver": VerifierReward(), "calif": calif}
        self.arm = "r_ver"

    def __call__(self, *args: Any, **kwargs: Any) -> list[float]:
        return self.arms[self.arm](*args, **kwargs)


class Pairs(TrainerCallback):
    """Chooses arm and seed before a step and keeps its seconds after it."""

    def __init__(self, switch: Switch, clocks: Sequence[Clock]) -> None:
        self.switch, self.clocks = switch, clocks
        self.arms: list[str] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        pair, second = divmod(state.global_step, 2)
        self.switch.arm = ARMS[(pair + second) % 2]
        self.arms.append(self.switch.arm)
        set_seed(pair)
        for clock in self.clocks:
            clock.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for clock in self.clocks:
            clock.stop()
        done = f"step {state.global_step} of {args.max_steps}"
        seconds = self.clocks[0].steps[-1]["total"]
        print(f"{done}, {self.switch.arm}: {seconds:.1f} s", file=sys.stderr, flush=True)


def make_rows(batches: int, prompts: int, seed: int, times: int = 2) -> Dataset:
    """Composed prompts, each batch `times` in a row, with bounds that put rollouts in all zones."""
    loaded = load_rows(compose(batches * prompts, seed, max_constraints=3), "composer")
    rng = random.Random(seed)
    rows = []
    for start in range(0, batches * prompts, prompts):
        batch = loaded.instances[start : start + prompts]
        bounds = [sorted(rng.uniform(-5, -1) for _ in range(2)) for _ in batch]
        for _ in range(times):
            rows += [
                {
                    "prompt": [{"role": "user", "content": i.prompt}],
                    "request": i.x,
                    "constraints": constraints_json(i.constraints),
                    "l0": l0,
                    "l1": l1,
                }
                for i, (l0, l1) in zip(batch, bounds, strict=True)
            ]
    return Dataset.from_list(rows)


def run(
    arguments: argparse.Namespace, folder: str
) -> tuple[list[str], list[dict[str, float]], list[dict[str, float]]]:
    """Train and time; returns the arm, wall seconds and CPU seconds of each counted step."""
    on_gpu = torch.cuda.is_available()
    rollouts = arguments.prompts * arguments.rollouts
    micro_batch = arguments.micro_batch or arguments.rollouts
    pairs = arguments.steps + 1
    config = GRPOConfig(
        output_dir=folder,
        max_steps=2 * pairs,
        learning_rate=0.0,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=rollouts // micro_batch,
        num_generations=arguments.rollouts,
        max_completion_length=arguments.tokens,
        beta=0.001,
        temperature=1.0,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        chat_template_kwargs={"enable_thinking": False},
        model_init_kwargs={"dtype": "float32"},
        bf16=on_gpu or arguments.bfloat16,
        use_cpu=not on_gpu,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    peft_config = None
    if arguments.lora:
        from peft import LoraConfig

        peft_config = LoraConfig(r=arguments.lora, target_modules="all-linear")
    calif = CalifReward(
        alpha=0.1,
        score_zero_reward=not arguments.paid_only,
        tokens_per_pass=arguments.tokens_per_pass,
    )
    switch, clocks = Switch(calif), (Clock(wall), Clock(time.process_time))
    rows = make_rows(pairs, arguments.prompts, arguments.seed)
    # Loads what the verifiers load at their first call.
    switch(rows["prompt"], ["Some text."] * len(rows), constraints=rows["constraints"])
    callback = Pairs(switch, clocks)
    trainer = GroupTrainer(
        model=str(resolve(arguments.model)),
        reward_funcs=switch,
        args=config,
        train_dataset=rows,
        peft_config=peft_config,
        callbacks=[callback],
    )
    trainer.remove_callback(PrinterCallback)
    calif.bind(trainer)
    for clock in clocks:
        time_parts(trainer, clock)
    trainer.train()
    return callback.arms[2:], *(clock.steps[2:] for clock in clocks)


def time_parts(trainer: GroupTrainer, clock: Clock) -> None:
    """Wrap the methods of a trainer that make up a step."""

    def log_probs_of() -> str:  # the trained forward has gradients, the KL pass has none
        return "training" if torch.is_grad_enabled() else "KL pass"

    for name, part in {
        "_generate": "generation",
        "_get_per_token_logps_and_entropies": log_probs_of,
        "_calculate_rewards": "verifiers",
        "_prepare_inputs": "other",
    }.items():
        setattr(trainer, name, clock.timed(getattr(trainer, name), part))
    scorer: ReferenceScorer = trainer.reward_funcs[0].arms["calif"].scorer
    scorer.score = clock.timed(scorer.score, "x pass")


def report(arms: list[str], steps: list[dict[str, float]], what: str) -> float:
    """Print medians part by part; returns the ratio of the medians of whole steps."""
    by_arm = {arm: [s for a, s in zip(arms, steps, strict=True) if a == arm] for arm in ARMS}
    medians = {
        arm: {part: statistics.median(s.get(part, 0.0) for s in rows) for part in (*PARTS, "total")}
        for arm, rows in by_arm.items()
    }
    print(f"\n{f'{what} seconds a step, median':<32}" + "".join(f"{arm:>10}" for arm in ARMS))
    for part in (*PARTS, "total"):
        print(f"{part:<32}" + "".join(f"{medians[arm][part]:>10.3f}" for arm in ARMS))
    ratios = [
        c["total"] / r["total"] for r, c in zip(by_arm["r_ver"], by_arm["calif"], strict=True)
    ]
    ratio = medians["calif"]["total"] / medians["r_ver"]["total"]
    print(
        f"CaLIF / r_ver: {ratio:.3f} (target {TARGET}); pair by pair: median "
        f"{statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}"
    )
    # Free of the noise of the parts that both arms share.
    x_pass = medians["calif"]["x pass"] / medians["r_ver"]["total"]
    print(f"x pass / whole step of r_ver: {x_pass:.3f}")
    return ratio


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--steps", type=int, default=10, help="counted steps an arm")
    parser.add_argument("--prompts", type=int, default=4, help="prompts a step")
    parser.add_argument("--rollouts", type=int, default=8, help="rollouts a prompt")
    parser.add_argument("--tokens", type=int, default=48, help="limit of a rollout")
    parser.add_argument("--micro-batch", type=int, help="rollouts a forward; default: a prompt's")
    parser.add_argument("--tokens-per-pass", type=int, default=2048, help="of the x pass")
    parser.add_argument(
        "--paid-only",
        action="store_true",
        help="score no rollouts with r_ver = 0",
    )
    parser.add_argument("--lora", type=int, help="rank of LoRA adapters; default: all weights")
    parser.add_argument("--bfloat16", action="store_true", help="autocast on a CPU, too")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> float:
    options = parse(arguments)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(
        f"{options.model} on {device}, {torch.get_num_threads()} threads, "
        f"{f'LoRA r={options.lora}' if options.lora else 'all weights'}: {options.prompts} prompts "
        f"x {options.rollouts} rollouts x {options.tokens} tokens, {options.steps} steps an arm"
    )
    with tempfile.TemporaryDirectory() as folder:
        arms, wall_seconds, cpu_seconds = run(options, folder)
    ratio = report(arms, wall_seconds, "wall")
    return ratio if torch.cuda.is_available() else report(arms, cpu_seconds, "CPU")


if __name__ == "__main__":
    main()
