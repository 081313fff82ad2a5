"""The bounds l0 and l1 of every training prompt, measured once before training (paper section 2.2).

y0 answers request and constraints (``constrained``), y1 the request alone (``natural``). Both are
drawn from the frozen reference at temperature 1 and both are scored given the request alone:
l0 = l(y0; x), l1 = l(y1; x). With several draws a bound is their mean. An empty answer is drawn
again a few times; if it stays empty, the prompt has no bound on that side and that is counted.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from califkit.data import DataError, Instance
from califkit.generate import (
    Response,
    TransformersEngine,
    batches,
    run_units,
    unit_seed,
)
from califkit.likelihood import ReferenceScorer
from califkit.metrics import nan_mean, none_if_nan
from califkit.params import AnchorStage, Execution
from califkit.prompts import training_prompts
from califkit.runs import RowLog, Run, open_run
from califkit.verifiers import fraction_followed

DRAWS = "draws.jsonl"
ANCHORS = "anchors.parquet"
SIDES = ("constrained", "natural")


class AnchorError(DataError):
    """Bounds that do not belong to the prompts they are asked for."""


@dataclass(frozen=True)
class _Draw:
    """One answer to make: the prompt as sent depends on the side."""

    instance: Instance
    side: str
    number: int

    @property
    def prompt(self) -> str:
        return self.instance.prompt if self.side == "constrained" else self.instance.request


def request_sha256(request: str) -> str:
    """Fingerprint of a request, stored with its bounds and checked when they are joined."""
    return hashlib.sha256(request.encode()).hexdigest()


def compute_anchors(profile: str, stage: AnchorStage, execution: Execution) -> Run:
    """Stage: draw and score the reference answers.

    Writes `DRAWS` (a row an answer: ``key``, ``side``, ``draw``, ``response``, ``token_ids``,
    ``n_tokens``, ``finish_reason``, ``loglik``, ``r_ver``, ``tries``) and `ANCHORS` (a row a
    prompt: ``key``, ``request_sha256``, ``l0``, ``l1`` and what the answers were like).
    """
    started = time.monotonic()
    run = open_run(profile, stage)
    with run.computing() as needed:
        if not needed:
            return run
        loaded = training_prompts(stage.data)
        run.pin_data(loaded.sha256)
        engine = TransformersEngine.load(stage.model)
        scorer = ReferenceScorer(engine.model, engine.tokenizer, execution.tokens_per_pass)
        settings = stage.anchors
        draws = [
            _Draw(instance, side, number)
            for instance in loaded.instances
            for side in SIDES
            for number in range(settings.draws)
        ]
        draws.sort(key=lambda d: (len(d.prompt), d.instance.key, d.side, d.number))

        def compute(number: int, unit: Sequence[_Draw]) -> list[dict[str, Any]]:
            responses, tries = _draw_until_answered(engine, unit, settings, number)
            scores = scorer.score(
                [d.instance.request for d in unit],
                [[] if r.is_empty else r.token_ids for r in responses],
            )
            return [
                {
                    "key": draw.instance.key,
                    "side": draw.side,
                    "draw": draw.number,
                    "response": response.text,
                    "token_ids": response.token_ids,
                    "n_tokens": response.n_tokens,
                    "finish_reason": response.finish_reason,
                    "loglik": none_if_nan(score),
                    "r_ver": fraction_followed(
                        draw.instance.constraints, response.text, unterminated="empty"
                    ),
                    "tries": count,
                }
                for draw, response, score, count in zip(unit, responses, scores, tries, strict=True)
            ]

        log = RowLog(run.folder / DRAWS)
        run_units(log, batches(draws, settings.sampling.batch_size), compute, "anchors")
        table = anchor_table(loaded.instances, log.rows())
        _write_parquet(table, run.folder / ANCHORS)
        run.finish(
            started,
            rows=len(table),
            data=loaded.summary(),
            data_sha256=loaded.sha256,
            model=stage.model,
            missing_bounds=int(table[["l0", "l1"]].isna().any(axis=1).sum()),
            reversed_bounds=int((table["l0"] > table["l1"]).sum()),
        )
    return run


def anchor_table(instances: Sequence[Instance], draws: list[dict[str, Any]]) -> pd.DataFrame:
    """One row a prompt, in the order of ``instances``, from the rows of `DRAWS`."""
    frame = pd.DataFrame(draws)
    frame["loglik"] = frame["loglik"].astype(float)
    by_side = {side: frame[frame["side"] == side].groupby("key") for side in SIDES}
    keys = [instance.key for instance in instances]
    columns: dict[str, Any] = {
        "key": keys,
        "request_sha256": [request_sha256(i.request) for i in instances],
    }
    for side, bound in zip(SIDES, ("l0", "l1"), strict=True):
        groups = by_side[side]
        columns[bound] = groups["loglik"].apply(nan_mean).reindex(keys).to_numpy()
        columns[f"{side}_tokens"] = groups["n_tokens"].mean().reindex(keys).to_numpy()
        columns[f"{side}_r_ver"] = groups["r_ver"].mean().reindex(keys).to_numpy()
    return pd.DataFrame(columns)


def load_anchors(run: Run) -> pd.DataFrame:
    """The table of a complete anchor run."""
    if not run.is_complete:
        raise AnchorError(f"the anchors in {run.folder} are not complete")
    return pd.read_parquet(run.folder / ANCHORS)


def join_anchors(instances: Sequence[Instance], table: pd.DataFrame) -> pd.DataFrame:
    """Bounds in the order of ``instances``; an error names a prompt whose bounds are absent or were
    measured for another request."""
    indexed = table.set_index("key")
    for instance in instances:
        if instance.key not in indexed.index:
            raise AnchorError(f"no anchors for the prompt with key {instance.key!r}")
        if indexed.at[instance.key, "request_sha256"] != request_sha256(instance.request):
            raise AnchorError(
                f"the anchors of key {instance.key!r} were measured for another request"
            )
    return indexed.loc[[i.key for i in instances]].reset_index()


def _draw_until_answered(
    engine: TransformersEngine, unit: Sequence[_Draw], settings: Any, number: int
) -> tuple[list[Response], list[int]]:
    """Draw a batch, then draw again what came out empty, each try from its own seed."""
    responses: list[Response] = []
    tries = [1] * len(unit)
    for attempt in range(settings.retries + 1):
        todo = [i for i in range(len(unit)) if not responses or responses[i].is_empty]
        if not todo:
            break
        drawn = engine.generate(
            [unit[i].prompt for i in todo],
            settings.sampling,
            unit_seed(settings.seed, number, attempt),
        )
        if not responses:
            responses = list(drawn)
            continue
        for i, response in zip(todo, drawn, strict=True):
            responses[i] = response
            tries[i] += 1
    return responses, tries


def _write_parquet(table: pd.DataFrame, path: Path) -> None:
    temporary = path.with_suffix(".tmp")
    table.to_parquet(temporary, index=False)
    temporary.replace(path)
