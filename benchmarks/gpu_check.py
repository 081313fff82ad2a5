"""What has to be seen on a GPU before a long run: one command, under six minutes.

NOT RUN ON A GPU YET. Only `--tiny`, on a CPU, has been.

    python benchmarks/gpu_check.py           # SmolLM2 on the GPU
    python benchmarks/gpu_check.py --tiny    # the same code in small, wherever it runs
    python benchmarks/gpu_check.py --part lora

Parts, each in a process of its own with a time limit:

* *likelihood*: answers drawn on the device; l there, in the scorer's precision (bfloat16 autocast
  on a GPU), beside l in float32 on the CPU;
* *full*, *lora*: five GRPO steps with CaLIF, transformers generation, bfloat16 autocast; l as the
  reward saw it in the first and in the last step beside l in float32 on the CPU, under the model
  that training started from;
* *cost*: ``reward_cost.py``, all weights and LoRA;
* *scoring*: ``scoring.py``.

A part that fails or takes too long is named at the end, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIMITS = {"likelihood": 50, "full": 60, "lora": 60, "cost": 110, "scoring": 70}  # seconds
PROMPTS, ROLLOUTS = 4, 8
REQUESTS = [
    "Describe the sea.",
    "Explain how bread is made.",
    "Write a short letter to a friend.",
    "Sum up the water cycle.",
]


def model_name(tiny: bool) -> str:
    return "tiny-random-llama" if tiny else "smollm2-135m-instruct"


def compare(what: str, found: list[float], exact: list[float]) -> None:
    """Print how far two lists of likelihoods are apart."""
    gaps = [abs(a - b) for a, b in zip(found, exact, strict=True) if a == a and b == b]
    mean = sum(a - b for a, b in zip(found, exact, strict=True) if a == a and b == b) / len(gaps)
    print(
        f"{what}: {len(gaps)} answers, largest difference {max(gaps):.2e}, mean {mean:+.2e} nats",
        flush=True,
    )


def cpu_scorer(name: str) -> Any:
    """The scorer that the others are held against: float32, on the CPU."""
    from califkit.models.likelihood import ReferenceScorer
    from califkit.models.resolve import load_model, load_tokenizer, resolve

    folder = resolve(name)
    return ReferenceScorer(load_model(folder).to("cpu"), load_tokenizer(folder))


def likelihood(tiny: bool) -> None:

    from califkit.models.engines import load_engine
    from califkit.models.likelihood import ReferenceScorer
    from califkit.runs.settings import Sampling

    name = model_name(tiny)
    engine = load_engine(name)
    requests = REQUESTS * (1 if tiny else 8)
    responses = engine.generate(requests, Sampling(max_tokens=8 if tiny else 128), seed=0)
    answers = [response.answer.token_ids for response in responses]
    exact = cpu_scorer(name).score(requests, answers).tolist()
    device = engine.model.device.type
    for rows, tokens in (("one by one", 1), ("with a shared prefix", 2048)):
        scorer = ReferenceScorer(engine.model, engine.tokenizer, tokens_per_pass=tokens)
        found = scorer.score(requests, answers).tolist()
        where = f"{device} {scorer.precision}, {rows}"
        compare(f"l, {where}, and CPU float32", found, exact)


def train(tiny: bool, lora: bool) -> None:
    import torch
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from califkit import CalifReward, Constraint
    from califkit.anchors.bounds import measure_bounds
    from califkit.data.rows import constraints_json
    from califkit.models.resolve import resolve

    name, tokens, steps = model_name(tiny), 8 if tiny else 64, 2 if tiny else 5
    on_gpu = torch.cuda.is_available()
    prompts = [f"{x} Use no comma." for x in REQUESTS]
    l0, l1 = measure_bounds(name, prompts, REQUESTS, max_tokens=tokens)
    rows = {
        "prompt": [[{"role": "user", "content": prompt}] for prompt in prompts],
        "request": REQUESTS,
        "constraints": [constraints_json([Constraint("punctuation:no_comma")])] * len(REQUESTS),
        "l0": l0,
        "l1": l1,
    }
    peft_config = None
    if lora:
        from peft import LoraConfig

        peft_config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
    reward = CalifReward(alpha=0.1)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            max_steps=steps,
            learning_rate=1e-4 if lora else 1e-5,  # large enough to move the policy in five steps
            per_device_train_batch_size=ROLLOUTS,
            gradient_accumulation_steps=PROMPTS,
            num_generations=ROLLOUTS,
            max_completion_length=tokens,
            beta=0.001,
            temperature=1.0,
            bf16=on_gpu,
            use_cpu=not on_gpu,
            model_init_kwargs={"dtype": "float32"},
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_steps=1,
        )
        trainer = GRPOTrainer(
            model=str(resolve(name)),
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_dict(rows),
            peft_config=peft_config,
        )
        trainer.remove_callback(PrinterCallback)  # the log is printed below, in short
        reward.bind(trainer)
        seen = []
        score = reward.scorer.score

        def kept(requests: list[str], answers: list[list[int]]) -> Any:
            found = score(requests, answers)
            seen.append((requests, answers, found.tolist()))
            return found

        reward.scorer.score = kept
        started = time.perf_counter()
        trainer.train()
        seconds = (time.perf_counter() - started) / steps
    for entry in trainer.state.log_history:
        if "loss" in entry:
            names = ("loss", "reward", "r_ver", "loglik", "kl")
            print(", ".join(f"{name} {float(entry[name]):.4f}" for name in names), flush=True)
    memory = f", peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if on_gpu else ""
    print(f"{seconds:.2f} s a step{memory}")
    exact = cpu_scorer(name)
    for label, (requests, answers, found) in {"first": seen[0], "last": seen[-1]}.items():
        compare(
            f"l in the {label} step, and CPU float32 under the starting policy",
            found,
            exact.score(requests, answers).tolist(),
        )


def cost(tiny: bool) -> None:
    import reward_cost

    small = ["--tokens=8", "--prompts=2", "--rollouts=2"] if tiny else ["--tokens=128"]
    steps = 1 if tiny else 10
    for lora in ([], ["--lora=16"]):
        reward_cost.main([f"--model={model_name(tiny)}", f"--steps={steps}", *small, *lora])


def scoring(tiny: bool) -> None:
    script = HERE / "scoring.py"
    small = ["--rows=2", "--length=64", "--request=40"] if tiny else []
    model = f"--model={model_name(tiny)}"
    subprocess.run([sys.executable, str(script), model, "--repeats=1", *small], check=True)


PARTS = {
    "likelihood": likelihood,
    "full": lambda tiny: train(tiny, lora=False),
    "lora": lambda tiny: train(tiny, lora=True),
    "cost": cost,
    "scoring": scoring,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="a random two-layer model, no limits")
    parser.add_argument("--part", choices=PARTS, help="only this part, in this process")
    options = parser.parse_args()
    if options.part:
        PARTS[options.part](options.tiny)
        return 0

    import torch

    if torch.cuda.is_available():
        print(f"device: {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    elif options.tiny:
        print(f"device: CPU, torch {torch.__version__}", flush=True)
    else:
        print("there is no GPU here; with --tiny the check runs on the CPU", file=sys.stderr)
        return 1
    failed = []
    for part, limit in LIMITS.items():
        print(f"\n=== {part}", flush=True)
        started = time.perf_counter()
        command = [sys.executable, __file__, "--part", part, *(["--tiny"] if options.tiny else [])]
        try:
            done = subprocess.run(command, timeout=None if options.tiny else limit)
            if done.returncode:
                failed.append(f"{part} (exit code {done.returncode})")
        except subprocess.TimeoutExpired:
            failed.append(f"{part} (over {limit} s)")
        print(f"=== {part}: {time.perf_counter() - started:.0f} s", flush=True)
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nall parts ran")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
