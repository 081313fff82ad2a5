"""CPU seconds of a GRPO step with CaLIF, part by part: plain TRL against this project's trainer.

    python benchmarks/grpo_step.py                 # SmolLM2, 3 prompts x 8 rollouts x 32 tokens
    python benchmarks/grpo_step.py --steps 5 --prompts 4

Variants: TRL's ``GRPOTrainer`` in float32; `califkit.training.groups.GroupTrainer` in float32; the
same under bfloat16 autocast. Each has a process of its own, one thread, the same prompts, seeds and
reward; the learning rate is 0, so that steps stay comparable. They take turns, so that other load
hits all of them; CPU seconds hardly count it in any case. A process makes a step to warm up, then
those that count; what is shown are medians over steps and turns, and the largest resident memory.

Parts: draw (generation); policy pass (forward and backward); reference pass (of the KL term); x
pass (l of each rollout given the request alone); optimiser (clipping included); other (verifiers,
tokenising, padding).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

VARIANTS = ("trl", "float32", "bfloat16")
PARTS = ("draw", "policy pass", "reference pass", "x pass", "optimiser", "other")
TARGETS = {"float32": 2.5, "bfloat16": 3.5}  # times faster than plain TRL


# --- one variant, in a process of its own --------------------------------------------------------
def run_once(options: argparse.Namespace) -> dict[str, Any]:
    """Train a few steps; the CPU seconds of each part of each, and the peak of resident memory."""
    import torch
    from reward_cost import make_rows
    from transformers import PrinterCallback, TrainerCallback, set_seed
    from trl import GRPOConfig, GRPOTrainer

    from califkit import CalifReward
    from califkit.models.resolve import resolve
    from califkit.training.groups import GroupTrainer

    torch.set_num_threads(1)
    steps: list[dict[str, float]] = []
    now = time.process_time

    class Clock(TrainerCallback):
        """A dict of seconds for each step."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            set_seed(state.global_step)
            steps.append({"total": -now()})

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            steps[-1]["optimiser"] = steps[-1].get("optimiser", 0.0) - now()

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            steps[-1]["optimiser"] += now()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            steps[-1]["total"] += now()

    def time_part(owner: Any, name: str, part: str) -> None:
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = now()
            result = function(*args, **kwargs)
            # Passes with gradients are a part of the training step.
            if part != "reference pass" or not torch.is_grad_enabled():
                steps[-1][part] = steps[-1].get(part, 0.0) + now() - started
            return result

        setattr(owner, name, timed)

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            max_steps=options.steps + 1,
            learning_rate=0.0,
            per_device_train_batch_size=options.rollouts,
            gradient_accumulation_steps=options.prompts,
            num_generations=options.rollouts,
            max_completion_length=options.tokens,
            beta=0.001,
            shuffle_dataset=False,
            gradient_checkpointing=False,
            model_init_kwargs={"dtype": "float32"},
            bf16=options.variant == "bfloat16",
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        reward = CalifReward(alpha=0.1)
        kind = GRPOTrainer if options.variant == "trl" else GroupTrainer
        trainer = kind(
            model=str(resolve(options.model)),
            reward_funcs=reward,
            args=config,
            train_dataset=make_rows(options.steps + 1, options.prompts, options.seed, times=1),
            callbacks=[Clock()],
        )
        trainer.remove_callback(PrinterCallback)
        reward.bind(trainer)
        time_part(trainer, "_generate", "draw")
        time_part(trainer, "_get_per_token_logps_and_entropies", "reference pass")
        time_part(reward.scorer, "score", "x pass")
        time_part(trainer, "_prepare_inputs", "all but training")
        time_part(trainer.accelerator, "clip_grad_norm_", "optimiser")
        trainer.train()
    for step in steps:
        inner = step["draw"] + step["reference pass"] + step["x pass"]
        step["other"] = step["all but training"] - inner
        step["policy pass"] = step["total"] - step["all but training"] - step["optimiser"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"steps": steps[1:], "peak": peak}


# --- the table -----------------------------------------------------------------------------------
def run_in_process(variant: str, options: argparse.Namespace) -> dict[str, Any]:
    arguments = [f"--{name}={value}" for name, value in vars(options).items() if value is not None]
    done = subprocess.run(
        [sys.executable, __file__, *arguments, f"--variant={variant}"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def report(found: dict[str, list[dict[str, Any]]]) -> None:
    def median(variant: str, part: str) -> float:
        return statistics.median(s[part] for turn in found[variant] for s in turn["steps"])

    variants = list(found)
    print(f"\n{'CPU seconds a step, median':<28}" + "".join(f"{v:>12}" for v in variants))
    for part in (*PARTS, "total"):
        print(f"{part:<28}" + "".join(f"{median(v, part):>12.3f}" for v in variants))
    peaks = {v: max(turn["peak"] for turn in turns) for v, turns in found.items()}
    print(f"{'peak memory, MiB':<28}" + "".join(f"{peaks[v]:>12.0f}" for v in variants))
    for variant in variants[1:]:
        ratios = [
            f"{part} {median('trl', part) / median(variant, part):.2f}"
            for part in PARTS
            if median(variant, part) > 0.02
        ]
        total = median("trl", "total") / median(variant, "total")
        memory = peaks[variant] / peaks["trl"]
        print(
            f"{variant}: {total:.2f} times as fast as TRL (goal {TARGETS[variant]}), "
            f"{memory:.2f} of its memory; {', '.join(ratios)}"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--steps", type=int, default=3, help="counted steps a turn")
    parser.add_argument("--turns", type=int, default=1, help="processes a variant")
    parser.add_argument("--prompts", type=int, default=3, help="prompts a step")
    parser.add_argument("--rollouts", type=int, default=8, help="rollouts a prompt")
    parser.add_argument("--tokens", type=int, default=32, help="limit of a rollout")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variant", choices=VARIANTS, help="only this one, in this process")
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.variant:
        print(json.dumps(run_once(options)))
        return
    print(
        f"{options.model}, one thread: {options.prompts} prompts x {options.rollouts} rollouts x "
        f"{options.tokens} tokens, {options.turns} turns of {options.steps} steps; load "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    found: dict[str, list[dict[str, Any]]] = {variant: [] for variant in VARIANTS}
    for turn in range(options.turns):
        for variant in VARIANTS:
            found[variant].append(run_in_process(variant, options))
            print(f"turn {turn + 1}, {variant}: done", file=sys.stderr, flush=True)
    report(found)


if __name__ == "__main__":
    main()
