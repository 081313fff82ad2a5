"""Score a file of responses under a reference: l, verdicts, zone and reward, row by row, resumable.

What the rows may look like: `califkit.evaluation.scorable`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from califkit.anchors.region import zones
from califkit.data.load import DataError
from califkit.evaluation.responses import IFBENCH
from califkit.evaluation.scorable import Scorable, ScorableFile
from califkit.metrics import distinct_2, nan_mean, none_if_nan
from califkit.models.engines import stop_token_ids
from califkit.models.reasoning import answer_text, final_answer, text_ids
from califkit.rewards.rules import RewardRule
from califkit.runs.jsonl import RowLog, read_jsonl, write_json
from califkit.runs.units import progress, resume_units
from califkit.verifiers import fraction_followed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from califkit.models.likelihood import ReferenceScorer


UNIT = 64
"""Rows that are scored and appended together."""


@dataclass(frozen=True)
class Settings:
    """What decides the numbers of a score file, beside the responses themselves.

    Attributes
    ----------
    reference
        Model name or folder, as `califkit.models.resolve.resolve` takes it.
    semantics, alpha
        Of r_ver and of the CaLIF reward.
    end
        Whether a response without ``token_ids`` gets the end-of-turn token behind its text. A row
        whose ``finish_reason`` is ``length`` never does.
    thinking
        Whether responses were drawn in thinking mode, so that one without ``</think>`` has no
        answer. Reasoning before that marker is left out in any case.
    """

    reference: str
    semantics: str = "published"
    alpha: float = 0.1
    end: bool = True
    thinking: bool = False


def score_file(
    rows: ScorableFile, output: Path, settings: Settings, tokens_per_pass: int = 2048
) -> None:
    """Score a response file and append to a JSONL file; the same call continues it.

    Parameters
    ----------
    rows
        The responses.
    output
        One row a response, in the order of ``rows``: ``line``, ``key``, ``loglik`` (l, in nats per
        token; null for an answer without text), ``tokens`` (of the answer, without the end-of-turn
        token), ``distinct_2``, ``r_ver``, ``l0``, ``l1``, ``zone``, ``reward`` (null where
        constraints or bounds are not known), ``request_source``, ``ids_from`` (``file`` or
        ``text``). Beside it, ``<output>.settings.json`` says how they were made.
    settings
        What decides the numbers.
    tokens_per_pass
        Padded tokens in one forward pass of the reference; bounds memory only.

    Raises
    ------
    DataError
        Before the model is loaded: for a row that cannot be used, an unreadable file, or an output
        that was made with other settings.
    """
    from transformers import AutoConfig

    from califkit.models.likelihood import ReferenceScorer
    from califkit.models.resolve import load_model, load_tokenizer, resolve

    _check_output(output, rows, settings)
    folder = resolve(settings.reference)
    n = rows.check(AutoConfig.from_pretrained(folder).get_text_config().vocab_size)
    tokenizer = load_tokenizer(folder)
    write_json(_settings_path(output), _identity(rows, settings))
    log = RowLog(output)
    sizes = [min(UNIT, n - start) for start in range(0, n, UNIT)]
    done = resume_units(log, sizes)
    if done == len(sizes):
        return
    if done:
        print(f"score: {sum(sizes[:done])} of {n} rows are there, continuing", flush=True)
    scorer = ReferenceScorer(load_model(folder), tokenizer, tokens_per_pass)
    stream = islice(rows, sum(sizes[:done]), None)
    for number in progress(range(done, len(sizes)), "score", len(sizes), done):
        log.append(score_rows(list(islice(stream, sizes[number])), scorer, settings))


def score_rows(
    rows: list[Scorable], scorer: ReferenceScorer, settings: Settings
) -> list[dict[str, Any]]:
    """One row of `score_file`'s output a response."""
    stop = stop_token_ids(scorer.model.generation_config, scorer.tokenizer)
    answers = [_answer(row, scorer.tokenizer, settings) for row in rows]
    loglik = scorer.score([row.request for row in rows], answers)
    l0, l1 = (np.array([getattr(row, name) for row in rows]) for name in ("l0", "l1"))
    r_ver = np.array([_r_ver(row, settings) for row in rows])
    zone = zones(loglik, l0, l1)
    known = ~np.isnan(r_ver) & ~np.isnan(l0) & ~np.isnan(l1)
    rewards = np.full(len(rows), np.nan)
    rule = RewardRule("calif", settings.alpha)
    rewards[known] = rule(r_ver[known], loglik[known], l0[known], l1[known])
    scored = []
    for i, (row, ids) in enumerate(zip(rows, answers, strict=True)):
        text_ids = ids[:-1] if ids and ids[-1] in stop else ids
        scored.append(
            {
                "line": row.line,
                "key": row.key,
                "loglik": none_if_nan(loglik[i]),
                "tokens": len(text_ids),
                "distinct_2": none_if_nan(distinct_2(text_ids)),
                "r_ver": none_if_nan(r_ver[i]),
                "l0": none_if_nan(l0[i]),
                "l1": none_if_nan(l1[i]),
                "zone": str(zone[i]) if not np.isnan([l0[i], l1[i]]).any() else None,
                "reward": none_if_nan(rewards[i]),
                "request_source": row.request_source,
                "ids_from": "text" if row.token_ids is None else "file",
            }
        )
    return scored


@dataclass(frozen=True)
class Summary:
    """Means over a score file; NaN where no row has the number.

    ``empty`` is the share of answers without text, which have no l. The three counters are numbers
    of rows.
    """

    rows: int
    loglik: float
    empty: float
    tokens: float
    distinct_2: float
    r_ver: float
    reward: float
    zones: Counter[str]
    request_sources: Counter[str]
    ids_from: Counter[str]


def summarise(output: Path) -> Summary:
    """The means of a score file."""
    rows = read_jsonl(output)

    def mean(name: str) -> float:
        return nan_mean([math.nan if row[name] is None else row[name] for row in rows])

    return Summary(
        rows=len(rows),
        empty=sum(row["loglik"] is None for row in rows) / len(rows),
        zones=Counter(row["zone"] for row in rows if row["zone"] is not None),
        request_sources=Counter(row["request_source"] for row in rows),
        ids_from=Counter(row["ids_from"] for row in rows),
        **{name: mean(name) for name in ("loglik", "tokens", "distinct_2", "r_ver", "reward")},
    )


# --- the answer -----------------------------------------------------------------------------------


def _answer(row: Scorable, tokenizer: PreTrainedTokenizerBase, settings: Settings) -> list[int]:
    """Token ids that l is the mean over; none for an answer without text."""
    if row.token_ids is not None:
        return final_answer(row.token_ids, tokenizer, thinking=settings.thinking).token_ids
    end = settings.end and not row.was_cut
    return text_ids(answer_text(row.response, settings.thinking), tokenizer, end)


def _r_ver(row: Scorable, settings: Settings) -> float:
    if row.constraints is None:
        return math.nan
    text = answer_text(row.response, settings.thinking)
    return fraction_followed(row.constraints, text, settings.semantics, unterminated="empty")


# --- the output -----------------------------------------------------------------------------------


def _settings_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.settings.json")


def _identity(rows: ScorableFile, settings: Settings) -> dict[str, Any]:
    """What a score file is made of: other values, another file."""
    source = rows.constraints
    return {
        **asdict(settings),
        "constraints": source,
        "constraints_sha256": None if source in (None, IFBENCH) else _sha256(Path(source)),
        "responses_sha256": _sha256(rows.path),
    }


def _check_output(output: Path, rows: ScorableFile, settings: Settings) -> None:
    """Refuse an output that another call made; nothing is written here."""
    if not output.parent.is_dir():
        raise DataError(f"{output}: the folder {output.parent} does not exist")
    path = _settings_path(output)
    if not path.exists():
        if output.exists():
            raise DataError(f"{output}: exists and was not made by this command; give a new file")
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    wanted = _identity(rows, settings)
    for name, value in wanted.items():
        if found.get(name) != value:
            raise DataError(
                f"{output}: was made with {name} = {found.get(name)!r}, not {value!r}; "
                "give a new file"
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
