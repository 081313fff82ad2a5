"""Anchors from elsewhere, and for elsewhere.

`import_cache` makes an anchor run of a cache of the method's authors (one JSON file, ``metadata``
and ``items``), `export_anchors` writes bounds and answers as a Parquet file of plain columns.

Their numbering is the other way round: ``ref0`` answers the request alone, so it is the paper's y1
and l1, and they keep summed negative log-likelihoods. A cache does not say which prompt an item
belongs to but by its place after a shuffle, and not how l was computed. So nothing is taken on
trust: some answers are scored again here, and only a reading that gives the cache's own numbers is
taken. No cache of theirs was at hand when this was written: what is known of the layout is that an
item holds, for each side, a list of token ids, a sum, a count and a perplexity, and these are told
apart by what they are.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from califkit.anchors.measure import Draw, complete_anchors, draw_units
from califkit.anchors.rows import SIDES, AnchorError, defect, read_draws, shard_name
from califkit.anchors.table import ANCHORS, load_anchors, read_metadata, write_anchors
from califkit.data.load import Instance, Loaded, load_source
from califkit.data.prompts import training_prompts
from califkit.models.likelihood import ReferenceScorer
from califkit.models.reasoning import final_answer
from califkit.models.resolve import load_model, load_tokenizer, resolve
from califkit.runs.folders import Run, open_run
from califkit.runs.jsonl import RowLog
from califkit.runs.locks import locked
from califkit.runs.paths import check_writable
from califkit.runs.settings import Execution
from califkit.runs.stages import AnchorStage
from califkit.runs.text import one_line, say, short
from califkit.verifiers import verify_all

SIDE_OF = {"ref0": "natural", "ref1": "constrained"}
"""Their prefix of an item's fields -> our side."""

_CHECKED = 16
_TOLERANCE = 0.02  # nats per token, and what their sums in bfloat16 may be off:
_ROUNDING = 0.004


@dataclass(frozen=True)
class Stored:
    """One answer of a cache: all its token ids, and its l."""

    token_ids: list[int]
    loglik: float


Item = dict[str, Stored | None]
"""By side; None where the cache has no answer."""


def read_cache(path: Path) -> tuple[dict[str, Any], dict[str, Item]]:
    """The metadata and the items of a cache, by key. `AnchorError` names the item at fault."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise AnchorError(f"{path}: not a readable cache: {one_line(error)}") from error
    items = content.get("items") if isinstance(content, dict) else None
    if isinstance(items, list):
        items = {str(place): item for place, item in enumerate(items)}
    if not isinstance(items, dict) or not items:
        raise AnchorError(f"{path}: holds no items; expected an object with metadata and items")
    metadata = content.get("metadata")
    read = {key: _item(f"{path}, item {key!r}", item) for key, item in items.items()}
    return (metadata if isinstance(metadata, dict) else {}), read


def _item(where: str, item: Any) -> Item:
    if not isinstance(item, Mapping):
        raise AnchorError(f"{where}: {short(item)} is no object")
    return {
        side: _stored(where, prefix, [v for k, v in item.items() if k.startswith(prefix)])
        for prefix, side in SIDE_OF.items()
    }


def _stored(where: str, prefix: str, values: Sequence[Any]) -> Stored | None:
    """The list, and which of the numbers is the sum and which the count: the third, a perplexity,
    is exp(sum / count)."""
    lists = [v for v in values if isinstance(v, list)]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(lists) != 1 or any(type(i) is not int or i < 0 for i in lists[0]):
        raise AnchorError(f"{where}: {prefix} has {len(lists)} lists of token ids, expected one")
    if not lists[0] or len(numbers) < 3 or not all(map(math.isfinite, numbers)):
        return None  # their cache is incomplete there as well
    read = {
        (total, int(count))
        for total, count, perplexity in itertools.permutations(numbers, 3)
        if count == int(count) >= 1
        and total >= 0
        and math.isclose(perplexity, math.exp(min(total / count, 700)), rel_tol=0.01)
    }
    if len(read) != 1:
        raise AnchorError(
            f"{where}: {prefix}: of {short(numbers)} no one reading as sum, number of tokens and "
            "perplexity = exp(sum / number) is right"
        )
    ((total, count),) = read
    return Stored(lists[0], -total / count)


def import_cache(
    path: Path,
    profile: str,
    stage: AnchorStage,
    execution: Execution,
    shuffle_seed: int = 1,
    validation: int = 512,
) -> Run:
    """Complete the anchor run of a stage with the answers and bounds of a cache.

    An item's key is the key of a prompt, or its place after the data set was shuffled with
    ``shuffle_seed``, counted from the first row or from the first one behind those of
    ``validation``: whichever comes closest to the cache's own l when `_CHECKED` answers are scored
    again.

    Raises
    ------
    AnchorError
        If the run has rows already, the cache cannot be read, or no reading gives its numbers.
    """
    started = time.monotonic()
    run = open_run(profile, stage)
    if stage.anchors.draws != 1:
        raise AnchorError(f"anchors.draws = {stage.anchors.draws}: a cache has one answer a side")
    if run.is_complete or any(run.folder.glob("draws*.jsonl")):
        raise AnchorError(f"{run.folder}: has anchors already; delete it to import others")
    metadata, items = read_cache(path)
    loaded = training_prompts(stage.data)
    model = load_model(resolve(stage.model))
    scorer = ReferenceScorer(model, load_tokenizer(resolve(stage.model)), execution.tokens_per_pass)
    found = _join(loaded, stage, items, shuffle_seed, validation, scorer)
    check_writable(run.folder)
    with locked(run.folder / ".import.lock"):
        log = RowLog(run.folder / shard_name((0, 1)))
        run.pin_data(loaded.sha256)
        units = draw_units(loaded.instances, 1, stage.anchors.sampling.batch_size)
        for number, unit in enumerate(units):
            log.append([_row(number, draw, found, scorer, stage) for draw in unit])
        origin = {"file": path.name, "sha256": _sha256(path), "metadata": metadata}
        with run.computing() as needed:
            if needed:
                complete_anchors(run, loaded, started, imported=origin)
    return run


def _join(
    loaded: Loaded,
    stage: AnchorStage,
    items: Mapping[str, Item],
    shuffle_seed: int,
    validation: int,
    scorer: ReferenceScorer,
) -> dict[str, Item]:
    """The items by the key of their prompt, read in the way that gives their own l."""
    best, closest, problems = None, math.inf, []
    for name, found in _readings(loaded, stage, items, shuffle_seed, validation):
        shared = [instance for instance in loaded.instances if instance.key in found]
        if not shared:
            problems.append(f"{name}: no item belongs to a prompt")
            continue
        excess, worst = _worst(shared, found, stage, scorer)
        if excess <= min(closest, 0):
            best, closest = (name, found, len(shared)), excess
        problems.append(f"{name}: {worst}")
    if best is None:
        raise AnchorError(
            "the cache does not fit these prompts and this model; " + "; ".join(problems)
        )
    name, found, count = best
    say(f"anchors: {count} of {len(loaded.instances)} prompts, joined by {name}")
    return found


def _readings(
    loaded: Loaded,
    stage: AnchorStage,
    items: Mapping[str, Item],
    shuffle_seed: int,
    validation: int,
) -> Iterator[tuple[str, dict[str, Item]]]:
    yield "the key of the prompt", dict(items)
    if stage.data.source == "composer":
        return  # has no rows to shuffle
    whole = load_source(stage.data.source, stage.data.revision, split="train")
    left_out = {row.row for row in whole.quarantined}
    rows = (row for row in range(1, whole.n_rows + 1) if row not in left_out)
    key_of_row = {row - 1: i.key for row, i in zip(rows, whole.instances, strict=True)}
    # What `datasets` shuffles by.
    order = np.random.default_rng(shuffle_seed).permutation(whole.n_rows)
    for behind in dict.fromkeys((0, validation)):
        places = {
            key_of_row[int(row)]: items[str(place - behind)]
            for place, row in enumerate(order)
            if int(row) in key_of_row and str(place - behind) in items
        }
        yield f"the place after a shuffle with seed {shuffle_seed}, less {behind}", places


def _worst(
    instances: Sequence[Instance],
    found: Mapping[str, Item],
    stage: AnchorStage,
    scorer: ReferenceScorer,
) -> tuple[float, str]:
    """Of some answers scored again: by how much the worst exceeds its tolerance, in nats a token
    (not above 0 if all are within it), and the worst in words."""
    stored = [
        (instance, side, one)
        for instance in instances
        for side in SIDES
        if (one := found[instance.key][side]) is not None
    ]
    if not stored:
        return math.inf, "no answer of it can be scored"
    picks = np.unique(np.linspace(0, len(stored) - 1, min(_CHECKED, len(stored))).astype(int))
    chosen = [stored[i] for i in picks]
    ids = [_answer(one.token_ids, scorer, stage).token_ids for _, _, one in chosen]
    again = scorer.score([instance.request for instance, _, _ in chosen], ids)
    theirs = np.array([one.loglik for _, _, one in chosen])
    allowed = _TOLERANCE + _ROUNDING * np.abs(theirs)
    excess = np.nan_to_num(np.abs(again - theirs) - allowed, nan=np.inf)
    worst = int(excess.argmax())
    instance, side, _ = chosen[worst]
    return float(excess[worst]), (
        f"the {side} answer of key {instance.key!r} has l = {theirs[worst]:.4f}, scored here "
        f"{again[worst]:.4f} (tolerance {allowed[worst]:.3f})"
    )


def _answer(token_ids: list[int], scorer: ReferenceScorer, stage: AnchorStage) -> Any:
    end = scorer.tokenizer.eos_token_id
    return final_answer(token_ids, scorer.tokenizer, thinking=stage.thinking, stop={end})


def _row(
    unit: int, draw: Draw, found: Mapping[str, Item], scorer: ReferenceScorer, stage: AnchorStage
) -> dict[str, Any]:
    """A row of `draws.jsonl`; an answer that the cache lacks is an empty one."""
    one = found.get(draw.instance.key, dict.fromkeys(SIDES))[draw.side]
    ids = one.token_ids if one else []
    answer = _answer(ids, scorer, stage)
    followed = verify_all(draw.instance.constraints, answer.text)
    return {
        "unit": unit,
        "key": draw.instance.key,
        "side": draw.side,
        "draw": draw.number,
        "response": scorer.tokenizer.decode(ids),
        "token_ids": ids,
        "answer": answer.text,
        "n_tokens": len(answer.content_ids),
        "finish_reason": "stop" if answer.ends else "length",
        "loglik": one.loglik if one and answer.text else None,
        "followed": followed,
        "r_ver": sum(followed) / max(len(followed), 1),
        "defect": defect(answer.text, len(answer.content_ids)),
        "tries": 1,
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def export_anchors(run: Run, instances: Sequence[Instance], path: Path) -> int:
    """Write the bounds and the answers of a complete anchor run as Parquet; the number of rows.

    A row an answer, plain columns: ``key``, ``request``, ``prompt``, ``side`` (``constrained``: l0,
    ``natural``: l1), ``draw``, ``answer``, ``loglik`` (nats a token, null where there is no
    answer), ``tokens``, ``r_ver``, ``finish_reason``, ``l0`` and ``l1`` of its prompt. The schema
    holds how they were measured, as JSON under ``califkit``.
    """
    bounds = load_anchors(run).set_index("key")[["l0", "l1"]]
    texts = {i.key: (i.request, i.prompt) for i in instances}
    rows = [
        {
            "key": row["key"],
            "request": texts[row["key"]][0],
            "prompt": texts[row["key"]][1],
            "side": row["side"],
            "draw": row["draw"],
            "answer": row["answer"],
            "loglik": row["loglik"],
            "tokens": row["n_tokens"],
            "r_ver": row["r_ver"],
            "finish_reason": row["finish_reason"],
        }
        for row in read_draws(run.folder)
    ]
    if not rows:
        raise AnchorError(f"{run.folder}: a recorded run has bounds, but not the answers to export")
    table = pd.DataFrame(rows).sort_values(["key", "side", "draw"], ignore_index=True)
    write_anchors(table.join(bounds, on="key"), path, read_metadata(run.folder / ANCHORS))
    return len(table)
