"""The table of bounds: built from the answers, kept with how it was measured, joined to prompts.

One Parquet file, a row a prompt. Its schema carries the metadata (key ``califkit``, JSON): model,
template, sampling, data, scorer, versions. Bounds that were measured in another way than training
expects are refused, with the name of the field.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from califkit.anchors.region import confidence_region
from califkit.anchors.rows import SIDES, AnchorError
from califkit.data.load import Instance
from califkit.metrics import nan_mean
from califkit.models.chat import template_date
from califkit.models.likelihood import scoring_precision
from califkit.models.resolve import load_tokenizer, resolve
from califkit.runs.folders import Run
from califkit.runs.settings import REGION_METHODS
from califkit.runs.stages import AnchorStage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


ANCHORS = "anchors.parquet"
BOUNDS = {"constrained": "l0", "natural": "l1"}

SCHEMA = 1
"""Version of the columns and of the metadata in `ANCHORS`."""

METADATA = b"califkit"
"""Key of the metadata in the Parquet schema."""

_NOT_COMPARED = ("dtype", "versions", "retries", "sampling.batch_size")
"""Metadata that does not say what the bounds mean."""


def request_sha256(request: str) -> str:
    """Fingerprint of a request, stored with its bounds and checked when they are joined."""
    return hashlib.sha256(request.encode()).hexdigest()


def anchor_table(
    instances: Sequence[Instance], rows: Iterable[dict[str, Any]], draws: int = 1
) -> pd.DataFrame:
    """One row a prompt, in the order of ``instances``, from the rows of all answers in any order.

    Columns: ``key``, ``request_sha256``, ``l0``, ``l1`` (nats per token, means over the samples
    that are there, NaN if none is), ``identical`` (whether a sample is the same on both sides); and
    for each side, with ``<side>_`` before the name: ``tokens`` and ``r_ver`` (means over samples),
    ``followed`` (list, share of samples that follow each constraint), and lists with one entry a
    sample: ``l`` (NaN where missing), ``tokens_each``, ``r_ver_each``, ``finish_each``,
    ``defect_each``.

    Memory: the rows are read as a stream; 95,373 prompts with one sample a side take about 0.3 GB.
    """
    place = {instance.key: i for i, instance in enumerate(instances)}
    sides = {side: _blank((len(instances), draws)) for side in SIDES}
    followed = {side: [np.zeros(len(i.constraints)) for i in instances] for side in SIDES}
    for row in rows:
        at = (place.get(row["key"], -1), row["draw"])
        if at[0] < 0 or at[1] >= draws:
            raise AnchorError(f"sample {row['draw']} of key {row['key']!r} is none of this run's")
        side = sides[row["side"]]
        side["l"][at] = np.nan if row["loglik"] is None else row["loglik"]
        side["tokens"][at] = row["n_tokens"]
        side["r_ver"][at] = row["r_ver"]
        side["answer"][at] = hash(row["answer"]) if row["answer"] else 0
        side["finish"][at] = row["finish_reason"]
        side["defect"][at] = row["defect"]
        followed[row["side"]][at[0]] += row["followed"]
    for name, side in sides.items():
        if (side["tokens"] < 0).any():
            i, draw = np.argwhere(side["tokens"] < 0)[0]
            raise AnchorError(f"no {name} answer {draw} of key {instances[i].key!r}")
    answers = [side["answer"] for side in sides.values()]
    same = (answers[0] == answers[1]) & (answers[0] != 0)
    columns: dict[str, Any] = {
        "key": [instance.key for instance in instances],
        "request_sha256": [request_sha256(i.request) for i in instances],
        **{bound: [nan_mean(l) for l in sides[name]["l"]] for name, bound in BOUNDS.items()},  # noqa: E741
        "identical": same.any(axis=1),
    }
    for name, side in sides.items():
        columns |= {
            f"{name}_tokens": side["tokens"].mean(axis=1),
            f"{name}_r_ver": side["r_ver"].mean(axis=1),
            f"{name}_followed": [counts / draws for counts in followed[name]],
            f"{name}_l": list(side["l"]),
            f"{name}_tokens_each": list(side["tokens"]),
            f"{name}_r_ver_each": list(side["r_ver"]),
            f"{name}_finish_each": list(side["finish"]),
            f"{name}_defect_each": list(side["defect"]),
        }
    return pd.DataFrame(columns)


def _blank(shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """What is kept of the answers of a side; ``tokens`` -1 means: no row yet."""
    return {
        "l": np.full(shape, np.nan),
        "tokens": np.full(shape, -1),
        "r_ver": np.zeros(shape),
        "answer": np.zeros(shape, dtype=np.int64),  # hash of the text, 0 without text
        "finish": np.full(shape, "", dtype=object),
        "defect": np.full(shape, "", dtype=object),
    }


def table_facts(table: pd.DataFrame) -> dict[str, Any]:
    """What the manifest says of the bounds: how many are missing, and why, or reversed."""
    return {
        "missing_bounds": int(table[["l0", "l1"]].isna().any(axis=1).sum()),
        "missing_answers": {side: dict(missing_answers(table, side)) for side in SIDES},
        "reversed_bounds": int((table["l0"] > table["l1"]).sum()),
    }


def missing_answers(table: pd.DataFrame, side: str) -> Counter[str]:
    """How many samples of a side have no answer, by reason."""
    empty = per_draw(table, f"{side}_defect_each") == "empty"
    reasons = {"length": "no answer before the token limit", "stop": "ended without an answer"}
    ended = per_draw(table, f"{side}_finish_each")[empty]
    return Counter(reasons[finish] for finish in sorted(ended))


def per_draw(table: pd.DataFrame, column: str) -> np.ndarray:
    """A list column as an array of shape (prompts, samples)."""
    return np.stack(table[column].to_numpy()) if len(table) else np.empty((0, 1))


def anchor_metadata(
    stage: AnchorStage, data_sha256: str | None, tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:
    """How bounds of a stage are measured on this machine, as stored with them and compared when
    they are loaded."""
    template = tokenizer.get_chat_template()
    settings = stage.anchors.model_dump(mode="json")
    return {
        "schema": SCHEMA,
        "model": stage.model,
        "thinking": stage.thinking,
        "engine": stage.engine,
        "chat_template_sha256": hashlib.sha256(template.encode()).hexdigest(),
        "template_date": template_date(tokenizer),
        "data_sha256": data_sha256,
        "sampling": settings["sampling"],
        "draws": settings["draws"],
        "retries": settings["retries"],
        "seed": settings["seed"],
        "scorer": {
            "precision": scoring_precision(),
            "l": "mean over the answer's tokens, end-of-turn token included",
            "context": "the request alone, thinking off",
        },
    }


def write_anchors(table: pd.DataFrame, path: Path, metadata: dict[str, Any]) -> None:
    """Write a table and its metadata as one Parquet file, atomically."""
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    stored = {**(arrow.schema.metadata or {}), METADATA: json.dumps(metadata).encode()}
    temporary = path.with_suffix(".tmp")
    pq.write_table(arrow.replace_schema_metadata(stored), temporary)
    temporary.replace(path)


def read_metadata(path: Path) -> dict[str, Any]:
    """How the bounds in a file were measured."""
    stored = (pq.read_schema(path).metadata or {}).get(METADATA)
    if stored is None:
        raise AnchorError(f"{path}: says nothing of how its bounds were measured")
    metadata = json.loads(stored)
    if (schema := metadata.get("schema")) != SCHEMA:
        raise AnchorError(f"{path}: schema version {schema}, expected {SCHEMA}")
    return metadata


def load_anchors(
    where: Run | Path, expected: AnchorStage | None = None, data_sha256: str | None = None
) -> pd.DataFrame:
    """The table of a complete anchor run, or of a Parquet file.

    ``expected`` and ``data_sha256`` say how the bounds must have been measured, and for which
    prompts; the precision must be the one that this machine scores in
    (`califkit.models.likelihood.scoring_precision`). `AnchorError` names the field that differs and
    both values.
    """
    if isinstance(where, Run) and not where.is_complete:
        raise AnchorError(f"the anchors in {where.folder} are not complete")
    path = where.folder / ANCHORS if isinstance(where, Run) else where
    found = _flat(read_metadata(path))
    if expected is not None:
        tokenizer = load_tokenizer(resolve(expected.model))
        wanted = _flat(anchor_metadata(expected, data_sha256, tokenizer))
        for field, value in wanted.items():
            ignored = field in _NOT_COMPARED or (field == "data_sha256" and value is None)
            if ignored or found.get(field) == value:
                continue
            was = repr(found[field]) if field in found else "not said"
            advice = "measure the anchors again with these settings"
            if field == "scorer.precision":
                advice = (
                    "rollouts on this machine are scored in the latter, so measure the anchors "
                    "again on a machine like this one, or train on one like theirs (with or "
                    "without a GPU)"
                )
            raise AnchorError(f"{path}: {field} is {was}, but {value!r} is expected; {advice}")
    return pd.read_parquet(path)


def _flat(metadata: dict[str, Any]) -> dict[str, Any]:
    flat = {}
    for key, value in metadata.items():
        nested = isinstance(value, dict) and key != "versions"
        flat |= {f"{key}.{k}": v for k, v in value.items()} if nested else {key: value}
    return flat


def join_anchors(instances: Sequence[Instance], table: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``instances``, in their order; an error names a prompt whose bounds are absent or
    were measured for another request."""
    joined = table.set_index("key").reindex([instance.key for instance in instances])
    for instance, stored in zip(instances, joined["request_sha256"], strict=True):
        if not isinstance(stored, str):
            raise AnchorError(f"no anchors for the prompt with key {instance.key!r}")
        if stored != request_sha256(instance.request):
            raise AnchorError(
                f"the anchors of key {instance.key!r} were measured for another request"
            )
    return joined.reset_index()


def bounds_for(method: str, table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """l0 and l1 as a method uses them, shape (prompts,) each; NaN where there is none.

    The region methods take ends of 95 % confidence intervals over the samples (paper section 6),
    with Student's t (A6), and prompts complete in all samples only; all others take the means.
    """
    if method not in REGION_METHODS:
        return table["l0"].to_numpy(), table["l1"].to_numpy()
    sides = (per_draw(table, f"{side}_l") for side in SIDES)
    return confidence_region(*sides, kind=method.removesuffix("_region"))


def degenerate(table: pd.DataFrame) -> np.ndarray:
    """Prompts whose anchors are not worth training on, shape (prompts,), bool.

    Some sample is empty, has fewer than ten tokens, or is a repetition loop; or both sides of one
    are the same; or a bound is missing. A constrained loop that follows all its constraints is what
    was asked for and no defect (some constraints want repetition).
    """
    bad = table["identical"].to_numpy() | table[["l0", "l1"]].isna().any(axis=1).to_numpy()
    for side in SIDES:
        defects = per_draw(table, f"{side}_defect_each")
        broken = defects != ""
        if side == "constrained":
            broken &= (defects != "loop") | (per_draw(table, f"{side}_r_ver_each") < 1)
        bad |= broken.any(axis=1)
    return bad
