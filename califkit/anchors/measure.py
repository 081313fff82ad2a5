"""The bounds l0 and l1 of every training prompt, measured once before training (paper section 2.2).

y0 answers request and constraints (``constrained``), y1 the request alone (``natural``). Both are
drawn from the frozen reference as rollouts are, and both are scored given the request alone:
l0 = l(y0; x), l1 = l(y1; x). With several samples a bound is their mean, or an end of a confidence
interval (`califkit.anchors.table.bounds_for`). An empty answer is drawn again a few times; if it
stays empty, it is missing, and that is counted. Verifier and l see the answer behind the reasoning
(section 2.5).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from califkit.anchors.rows import (
    SIDES,
    AnchorError,
    Shard,
    cut_torn_end,
    defect,
    done_units,
    read_draws,
    shard_name,
)
from califkit.anchors.table import (
    ANCHORS,
    anchor_metadata,
    anchor_table,
    load_anchors,
    per_draw,
    table_facts,
    write_anchors,
)
from califkit.data.load import Instance, Loaded
from califkit.data.prompts import training_prompts
from califkit.metrics import none_if_nan
from califkit.models.engines import Response, load_engine
from califkit.models.likelihood import ReferenceScorer
from califkit.models.reasoning import final_answer
from califkit.models.resolve import load_model, load_tokenizer, resolve
from califkit.models.sampling import resolved
from califkit.runs.folders import Run, open_run, versions
from califkit.runs.jsonl import RowLog
from califkit.runs.locks import locked
from califkit.runs.paths import check_writable, explaining_full_disk
from califkit.runs.settings import AnchorSettings, Execution
from califkit.runs.stages import AnchorStage
from califkit.runs.text import say
from califkit.runs.units import batches, progress, unit_seed
from califkit.verifiers import verify_all

BYTES_PER_TOKEN = 12
"""Of a row of an answer: a token's number, and its characters as response and as answer."""
BYTES_PER_ROW = 500
"""All the rest of such a row."""


@dataclass(frozen=True)
class Draw:
    """One answer to make: the prompt as sent depends on the side."""

    instance: Instance
    side: str
    number: int

    @property
    def prompt(self) -> str:
        return self.instance.prompt if self.side == "constrained" else self.instance.request


def compute_anchors(
    profile: str, stage: AnchorStage, execution: Execution, shard: Shard | None = None
) -> Run:
    """Stage: draw and score the reference answers.

    Writes rows (an answer: ``unit``, ``key``, ``side``, ``draw``, ``response`` and ``token_ids``
    with the reasoning, ``answer``, ``n_tokens`` of the answer, ``finish_reason``, ``loglik``,
    ``followed`` a constraint, ``r_ver``, ``defect``, ``tries``) and `ANCHORS` (see `anchor_table`).

    Several shards may run at the same time, each with its own index and the same count (None: the
    ``RANK`` of ``WORLD_SIZE`` processes that a launcher gave this one, else all); any sharding
    gives the same table. The shard that finds all units done merges them and completes
    the run. The others return before: their run is not complete yet. A second process with the
    same shard waits for the first. No model is loaded where all answers are there. `StorageError`
    if the disk has no room for those that are missing.
    """
    started = time.monotonic()
    run = open_run(profile, stage)
    if run.is_complete:
        return run
    if shard is None:
        shard = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    name = shard_name(shard)
    loaded = training_prompts(stage.data)
    units = draw_units(loaded.instances, stage.anchors.draws, stage.anchors.sampling.batch_size)
    sizes = [len(unit) for unit in units]
    check_writable(run.folder)
    with explaining_full_disk(run.folder), locked(run.folder / f".{name}.lock"):
        if run.is_complete:
            return run
        run.pin_data(loaded.sha256)
        cut_torn_end(run.folder / name, sizes)
        _run_shard(RowLog(run.folder / name), units, stage, execution, shard)
        done = done_units(run.folder, sizes)
        if len(done) < len(units):
            say(
                f"anchors: shard {shard[0]} of {shard[1]} is done, {len(done)} of {len(units)} "
                "batches are there; the last shard to end completes the run"
            )
            return run
        with run.computing() as needed:
            if needed:
                complete_anchors(run, loaded, started)
    return run


def draw_units(instances: Sequence[Instance], draws: int, size: int) -> list[Sequence[Draw]]:
    """All answers to make, in batches. Prompts of like length share one, which saves padding."""
    wanted = [Draw(i, side, n) for i in instances for side in SIDES for n in range(draws)]
    wanted.sort(key=lambda d: (len(d.prompt), d.instance.key, d.side, d.number))
    return batches(wanted, size)


def bytes_needed(stage: AnchorStage, answers: int) -> int:
    """What the rows of so many answers take at most, each as long as the token limit allows."""
    return answers * (stage.anchors.sampling.max_tokens * BYTES_PER_TOKEN + BYTES_PER_ROW)


def _run_shard(
    log: RowLog,
    units: Sequence[Sequence[Draw]],
    stage: AnchorStage,
    execution: Execution,
    shard: Shard,
) -> None:
    """Append the rows of the shard's units that no file holds yet."""
    index, count = shard
    sizes = [len(unit) for unit in units]
    done = done_units(log.path.parent, sizes)
    own = range(index, len(units), count)
    todo = [number for number in own if number not in done]
    label = "anchors" if count == 1 else f"anchors {index} of {count}"
    ready = len(own) - len(todo)
    if ready:
        say(f"{label}: {ready} of {len(own)} batches are there, continuing")
    if not todo:
        return
    # Of all shards: they share the disk.
    missing = sum(size for number, size in enumerate(sizes) if number not in done)
    check_writable(log.path.parent, bytes_needed(stage, missing))
    with drawing(stage, execution) as (engine, scorer):
        for number in progress(todo, label, len(own), ready):
            log.append(draw_and_score(engine, scorer, number, units[number], stage.anchors))


@contextmanager
def drawing(stage: AnchorStage, execution: Execution) -> Iterator[tuple[Any, ReferenceScorer]]:
    """Engine and scorer of the reference. vLLM gives its memory back at the end: training starts
    engines of its own."""
    limit = execution.longest(stage.data, stage.anchors.sampling.max_tokens)
    with closing(load_engine(stage.model, stage.engine, stage.thinking, limit)) as engine:
        # vLLM keeps its weights to itself, so the scorer brings its own.
        model = load_model(resolve(stage.model)) if stage.engine == "vllm" else engine.model
        model.requires_grad_(False)  # else autocast keeps a copy of every weight
        yield engine, ReferenceScorer(model, engine.tokenizer, execution.tokens_per_pass)


def draw_and_score(
    engine: Any,
    scorer: ReferenceScorer,
    number: int,
    unit: Sequence[Draw],
    settings: AnchorSettings,
    stream: Sequence[int] = (),
) -> list[dict[str, Any]]:
    """The rows of a unit; ``stream`` continues the seed and keeps other samples of the same prompts
    apart."""
    responses, tries = _draw_until_answered(engine, unit, settings, number, stream)
    scores = scorer.score(
        [draw.instance.request for draw in unit], [r.answer.token_ids for r in responses]
    )
    return [
        _row(number, draw, response, score, count)
        for draw, response, score, count in zip(unit, responses, scores, tries, strict=True)
    ]


def _row(unit: int, draw: Draw, response: Response, score: float, tries: int) -> dict[str, Any]:
    followed = verify_all(draw.instance.constraints, response.answer.text)
    return {
        "unit": unit,
        "key": draw.instance.key,
        "side": draw.side,
        "draw": draw.number,
        "response": response.text,
        "token_ids": response.token_ids,
        "answer": response.answer.text,
        "n_tokens": response.n_tokens,
        "finish_reason": response.finish_reason,
        "loglik": none_if_nan(score),
        "followed": followed,
        "r_ver": sum(followed) / max(len(followed), 1),
        "defect": defect(response.answer.text, response.n_tokens),
        "tries": tries,
    }


def _draw_until_answered(
    engine: Any, unit: Sequence[Draw], settings: AnchorSettings, number: int, stream: Sequence[int]
) -> tuple[list[Response], list[int]]:
    """Responses, and how often each was drawn: what comes out empty is drawn again, every try from
    its own seed."""
    responses: dict[int, Response] = {}
    tries = [0] * len(unit)
    for attempt in range(settings.retries + 1):
        todo = [i for i in range(len(unit)) if i not in responses or responses[i].is_empty]
        if not todo:
            break
        drawn = engine.generate(
            [unit[i].prompt for i in todo],
            settings.sampling,
            unit_seed(settings.seed, number, attempt, *stream),
        )
        for i, response in zip(todo, drawn, strict=True):
            responses[i] = response
            tries[i] += 1
    return [responses[i] for i in range(len(unit))], tries


def complete_anchors(run: Run, loaded: Loaded, started: float, **origin: Any) -> None:
    """Write the table of all units and declare the run complete; ``origin`` says where answers that
    were not drawn here come from."""
    stage = run.stage
    table = anchor_table(loaded.instances, read_draws(run.folder), stage.anchors.draws)
    facts = anchor_metadata(stage, loaded.sha256, load_tokenizer(resolve(stage.model)))
    # The weights are float32 wherever a model is loaded (`califkit.models.resolve.load_model`).
    facts |= {"dtype": "float32", "versions": versions(), **origin}
    write_anchors(table, run.folder / ANCHORS, facts)
    run.finish(
        started,
        rows=len(table),
        data=loaded.summary(),
        data_sha256=loaded.sha256,
        model=stage.model,
        template_date=facts["template_date"],
        sampling=resolved(stage.anchors.sampling, stage.engine),
        **table_facts(table),
        **origin,
    )


def self_test(
    run: Run,
    instances: Sequence[Instance],
    scorer: ReferenceScorer,
    n: int = 32,
    tolerance: float = 0.02,
    seed: int = 0,
) -> float:
    """Score stored answers again with the scorer of a training run, before its first step.

    ``n`` answers to ``instances`` are taken from a complete anchor run, evenly spread over the
    prompts and on both sides in turn; ``seed`` shifts the choice. Returns the largest difference,
    in nats per token; `AnchorError` if one exceeds the tolerance, or no answer can be scored. To
    the tolerance come 0.1 nats over the root of an answer's length where the scorer computes in
    bfloat16: its rounding differs from token to token, and a mean over few of them by more.
    """
    requests = {instance.key: instance.request for instance in instances}
    table = load_anchors(run)
    table = table[table["key"].isin(requests)]
    # Sample 0 stands for all samples; half a step apart, the sides take different prompts.
    shift = np.random.default_rng(seed).random()
    wanted = set()
    for side, count, start in zip(
        SIDES, (n - n // 2, n // 2), (shift, (shift + 0.5) % 1), strict=True
    ):
        keys = table["key"][~np.isnan(per_draw(table, f"{side}_l")[:, 0])]
        count = min(count, len(keys))
        picks = ((np.arange(count) + start) * len(keys) / max(count, 1)).astype(int)
        wanted |= {(key, side, 0) for key in keys.iloc[picks]}
    rows = [r for r in read_draws(run.folder) if (r["key"], r["side"], r["draw"]) in wanted]
    if not rows:
        raise AnchorError(f"{run.folder}: holds no answer to these prompts that could be scored")
    answers = [
        final_answer(row["token_ids"], scorer.tokenizer, thinking=run.stage.thinking).token_ids
        for row in rows
    ]
    again = scorer.score([requests[row["key"]] for row in rows], answers)
    stored = np.array([row["loglik"] for row in rows])
    differences = np.nan_to_num(np.abs(again - stored), nan=np.inf)
    rounding = 0.0 if scorer.precision == "float32" else 0.1
    allowed = tolerance + rounding / np.sqrt([max(1, len(answer)) for answer in answers])
    worst = int((differences - allowed).argmax())
    if differences[worst] > allowed[worst]:
        raise AnchorError(
            f"{run.folder}: the {rows[worst]['side']} answer of key {rows[worst]['key']!r} has "
            f"l = {stored[worst]:.4f}, scored again {again[worst]:.4f} (tolerance "
            f"{allowed[worst]:.3f}); "
            "likely causes: another model, another chat template, or another precision than the "
            "anchors were measured with"
        )
    return float(differences.max())
