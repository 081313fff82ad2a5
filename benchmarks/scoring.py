"""Memory and speed of scoring answers: whole logits, TRL's fused head, and califkit's scorer.

Three ways to the same number, the average log-likelihood of each answer:

* *naive*: logits of all rows at once in float32, log-softmax, gather; * *trl*: the fused
language-model head that TRL's trainers use, all rows at once; * *califkit*:
`califkit.models.likelihood.ReferenceScorer` with its defaults. The requests differ, so no
  prefix is shared.

Every run has a process of its own: it loads the model, scores one short row to warm up, notes its
memory, then scores all rows. The number is the peak above what was noted (resident memory on a CPU,
allocated memory on a GPU). The scorers take turns, so that other load hits all of them; speed is
the median over the turns, memory the largest.

    python benchmarks/scoring.py
    python benchmarks/scoring.py --threads 2 --repeats 5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SCORERS = ("naive", "trl", "califkit")
TARGET = 1 / 6  # of the naive scorer's memory, at no less than its speed


# --- one run, in a process of its own ----------------------------------------------------------
def make_rows(
    scorer: Any, args: argparse.Namespace
) -> tuple[list[str], list[list[int]], list[list[int]]]:
    """Requests, their prefix ids and answers: rows of ``args.length`` tokens, request included."""
    import numpy as np

    tokenizer = scorer.tokenizer
    rng = np.random.default_rng(0)
    words = ["tea", "rain", "sea", "wind", "stone", "light", "road", "salt"]
    requests, prefixes, answers = [], [], []
    for _ in range(args.rows):
        request = str(rng.choice(words))
        while len(scorer.prefix_ids(f"{request} {words[0]}")) <= args.request:
            request += f" {rng.choice(words)}"
        prefix = scorer.prefix_ids(request)
        requests.append(request)
        prefixes.append(prefix)
        answers.append(rng.integers(3, len(tokenizer), size=args.length - len(prefix)).tolist())
    return requests, prefixes, answers


def naive(model: Any, ids: Any, first: list[int]) -> list[float]:
    import torch

    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    log_probs = torch.log_softmax(logits, dim=-1).gather(2, ids[:, 1:, None]).squeeze(2)
    return [row[start - 1 :].mean().item() for row, start in zip(log_probs, first, strict=True)]


def fused(model: Any, ids: Any, first: list[int]) -> list[float]:
    labels = ids.clone()
    for row, start in zip(labels, first, strict=True):
        row[:start] = -100
    log_probs = model(input_ids=ids, labels=labels, fused_lm_head=True).log_probs
    length = log_probs.shape[1] - ids.shape[1]  # -1 if it has no column for the first token
    return [
        row[start + length :].mean().item() for row, start in zip(log_probs, first, strict=True)
    ]


class PeakMemory:
    """Bytes above what was in use at the start; resident memory is sampled every 2 ms."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __enter__(self) -> PeakMemory:
        if self.device == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()
            self.start = torch.cuda.memory_allocated()
            return self
        import psutil

        memory = psutil.Process().memory_info
        self.start = self.peak = memory().rss
        self.stop = threading.Event()

        def sample() -> None:
            while not self.stop.wait(0.002):
                self.peak = max(self.peak, memory().rss)

        self.thread = threading.Thread(target=sample, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.device == "cuda":
            import torch

            self.peak = torch.cuda.max_memory_allocated()
        else:
            self.stop.set()
            self.thread.join()

    @property
    def bytes(self) -> int:
        return self.peak - self.start


def run_once(args: argparse.Namespace) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from califkit.models.likelihood import ReferenceScorer
    from califkit.models.resolve import load_tokenizer, resolve

    logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    folder = resolve(args.model)
    dtype = getattr(torch, args.dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(args.device).eval()
    limit = {"tokens_per_pass": args.tokens_per_pass} if args.tokens_per_pass else {}
    scorer = ReferenceScorer(model, load_tokenizer(folder), **limit)
    requests, prefixes, answers = make_rows(scorer, args)

    if args.scorer == "trl":
        from trl.trainer.utils import add_fused_lm_head

        add_fused_lm_head(model)
    whole: Callable = {"naive": naive, "trl": fused}.get(args.scorer)

    def score(length: int | None = None, rows: int | None = None) -> list[float]:
        if whole is None:
            return scorer.score(requests[:rows], [a[:length] for a in answers[:rows]]).tolist()
        ids = [p + a[:length] for p, a in zip(prefixes[:rows], answers[:rows], strict=True)]
        with torch.no_grad():
            tensor = torch.tensor(ids, device=args.device)
            return whole(model, tensor, [len(prefix) for prefix in prefixes[:rows]])

    score(length=8, rows=1)
    with PeakMemory(args.device) as memory:
        wall, cpu = time.perf_counter(), time.process_time()
        values = score()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    device = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    return {
        "values": values,
        "bytes": memory.bytes,
        "wall": wall,
        "cpu": cpu,
        "tokens": sum(map(len, prefixes)) + sum(map(len, answers)),
        "device": device,
        "tokens_per_pass": scorer.tokens_per_pass,
    }


# --- the table ---------------------------------------------------------------------------------
def run_in_process(scorer: str, args: argparse.Namespace) -> dict[str, Any]:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in vars(args).items() if value]
    threads = {"OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, __file__, *options, f"--scorer={scorer}"],
        env=os.environ | threads,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def report(runs: dict[str, list[dict[str, Any]]], args: argparse.Namespace) -> None:
    first = runs["califkit"][0]
    print(
        f"{args.model}, {args.rows} rows x {args.length} tokens (request {args.request}), "
        f"{args.dtype}, {first['device']}, threads: {args.threads}, runs each: {args.repeats}, "
        f"tokens_per_pass {first['tokens_per_pass']}\n"
    )
    clock = "wall" if args.device == "cuda" else "cpu"
    print(f"scorer    peak MiB  of naive   tokens/s ({clock})  of naive   tokens/s (wall)")
    memory = {name: max(run["bytes"] for run in runs[name]) for name in SCORERS}
    speed = {
        name: {
            kind: first["tokens"] / statistics.median(run[kind] for run in runs[name])
            for kind in ("wall", "cpu")
        }
        for name in SCORERS
    }
    for name in SCORERS:
        print(
            f"{name:8} {memory[name] / 2**20:9,.0f} {memory[name] / memory['naive']:9.3f} "
            f"{speed[name][clock]:16,.0f} {speed[name][clock] / speed['naive'][clock]:9.2f} "
            f"{speed[name]['wall']:17,.0f}"
        )
    both = (
        memory["califkit"] <= TARGET * memory["naive"]
        and speed["califkit"][clock] >= speed["naive"][clock]
    )
    print(f"\ntarget, 1/6 of naive memory at no less speed: {'met' if both else 'missed'}")
    exact = runs["naive"][0]["values"]
    for name in SCORERS[1:]:
        values = runs[name][0]["values"]
        worst = max(abs(a - b) for a, b in zip(values, exact, strict=True))
        print(f"largest difference of l, {name} and naive: {worst:.1e} nats")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024, help="tokens a row, request included")
    parser.add_argument("--request", type=int, default=64, help="tokens of the templated request")
    parser.add_argument("--repeats", type=int, default=3, help="processes per scorer")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--device", choices=["cpu", "cuda"], help="cuda where there is one")
    parser.add_argument("--tokens-per-pass", type=int, help="default: the scorer's own")
    parser.add_argument("--scorer", choices=SCORERS, help="one run, printed as JSON")
    args = parser.parse_args()
    if args.device is None:
        import torch

        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.scorer:
        print(json.dumps(run_once(args)))
        return 0
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in SCORERS}
    for turn in range(args.repeats):
        for name in SCORERS:
            print(f"run {turn + 1} of {args.repeats}: {name}", file=sys.stderr, flush=True)
            runs[name].append(run_in_process(name, args))
    report(runs, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
