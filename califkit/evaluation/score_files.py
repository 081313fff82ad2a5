"""Score a file of responses under a reference: l, verdicts, zone and reward, row by row, resumable.

What the rows may look like: `califkit.evaluation.response_files`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pydantic

from califkit.data.load import DataError
from califkit.evaluation.identification import (
    Identification,
    identification,
    loglik_given_requests,
    other_requests,
)
from califkit.evaluation.response_files import IFBENCH, Responses, Row, answered
from califkit.metrics import nan_mean
from califkit.models.engines import stop_token_ids
from califkit.models.reasoning import Answer, final_answer, text_answer
from califkit.models.resolve import (
    ModelError,
    load_config,
    load_model,
    load_tokenizer,
    readable,
    resolve,
)
from califkit.rewards.rules import RewardRule
from califkit.rewards.score import score_answers
from califkit.runs.jsonl import RowLog, whole_lines, write_json
from califkit.runs.text import say, short
from califkit.runs.units import progress, resume_units

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from califkit.models.likelihood import ReferenceScorer


UNIT = 64
"""Rows that are scored and appended together."""


@dataclass(frozen=True)
class Settings:
    """What decides the numbers of a score file, beside the responses themselves.

    ``end`` puts an end-of-turn token behind responses without ``token_ids``, unless they were cut
    at the token limit. ``identify`` is the number of requests of the file, its own among them, that
    each answer is held against (`califkit.evaluation.identification`).
    """

    reference: str
    semantics: str = "published"
    alpha: float = 0.1
    end: bool = True
    thinking: bool = False
    identify: int | None = None


class Identified(pydantic.BaseModel, extra="forbid"):
    """What request identification takes of a row: a digest of its request, and over how many
    ``tokens`` l is the mean given that request, then given the others (null without an answer)."""

    request: str
    tokens: int
    loglik: list[pydantic.FiniteFloat] | None


class Scored(pydantic.BaseModel, extra="forbid"):
    """One row of a score file.

    ``loglik`` is l in nats per token, null for an answer without text; ``tokens`` counts the answer
    without the end-of-turn token; ``r_ver``, ``zone`` and ``reward`` are null where constraints or
    bounds are not known; ``cut`` (at the token limit) where the response does not say.
    """

    line: int
    key: str | None
    loglik: pydantic.FiniteFloat | None
    tokens: pydantic.NonNegativeInt
    distinct_2: pydantic.FiniteFloat | None
    r_ver: pydantic.FiniteFloat | None
    l0: pydantic.FiniteFloat | None
    l1: pydantic.FiniteFloat | None
    zone: str | None
    reward: pydantic.FiniteFloat | None
    request_source: Literal["column", "split", "prompt"]
    ids_from: Literal["file", "text"]
    cut: bool | None = None
    filter: str | None = None
    identification: Identified | None = None


def score_file(
    responses: Responses,
    output: Path,
    settings: Settings,
    tokens_per_pass: int = 2048,
    rows: Sequence[Row] | None = None,
) -> list[Scored]:
    """Score a response file and append to a JSONL file; the same call continues it.

    ``responses`` are opened for scoring; ``rows`` are those of them to score (None: all). The
    output, which is also returned, gets a `Scored` a response, in their order, and beside it
    ``<output>.settings.json``, which says how they were made. ``tokens_per_pass`` (padded tokens in
    one forward pass of the reference) bounds memory only. Before anything is written: `ModelError`
    for a reference that cannot be used, `DataError` for token ids that it does not have, and for an
    output that was made with other settings or is damaged.
    """
    made_of = asdict(settings) | _identity(responses, rows)
    _check_output(output, made_of)
    folder = resolve(settings.reference)
    vocabulary = load_config(folder).get_text_config().vocab_size
    largest, line = responses.largest_id
    if largest >= max(vocabulary, 0):
        raise DataError(
            f"{responses.path}, line {line}: 'token_ids' holds {largest}, but the reference has "
            f"{vocabulary} tokens; were they made by another model?"
        )
    n = responses.n_answered if rows is None else len(rows)
    rows = responses if rows is None else rows
    others = _other_requests(rows, settings)
    scores = _read_scores(output, rows, n)
    if len(scores) == n:
        return scores
    scorer = _open_scorer(folder, next(answered(rows)).request, tokens_per_pass)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(_settings_path(output), made_of)
    log = RowLog(output)
    sizes = [min(UNIT, n - start) for start in range(0, n, UNIT)]
    done = resume_units(log, sizes)
    if done:
        say(f"score: {sum(sizes[:done])} of {n} rows are there, continuing")
    stream = islice(answered(rows), sum(sizes[:done]), None)
    for number in progress(range(done, len(sizes)), "score", len(sizes), done):
        log.append(score_rows(list(islice(stream, sizes[number])), scorer, settings, others))
    return _read_scores(output, rows, n)


def _open_scorer(folder: Path, request: str, tokens_per_pass: int) -> ReferenceScorer:
    """The reference; its chat template is tried on a request before anything is written."""
    from califkit.models.likelihood import ReferenceScorer

    tokenizer, model = load_tokenizer(folder), load_model(folder)
    with readable(folder, "as a reference"):
        scorer = ReferenceScorer(model, tokenizer, tokens_per_pass)
        if scorer.prefix_ids(request) == scorer.prefix_ids(f"{request} And why?"):
            raise ModelError(f"model {folder}: its chat template leaves the request out")
    return scorer


def _other_requests(rows: Iterable[Row], settings: Settings) -> Mapping[str, list[str]]:
    """Request -> those that its answers are held against; nothing unless it is asked for."""
    if settings.identify is None:
        return {}
    try:
        return other_requests({r.request: r.request for r in answered(rows)}, settings.identify, 0)
    except DataError as error:
        raise DataError(f"identify = {settings.identify}: {error}") from error


def score_rows(
    rows: list[Row],
    scorer: ReferenceScorer,
    settings: Settings,
    others: Mapping[str, list[str]] | None = None,
) -> list[dict[str, Any]]:
    """One row of `score_file`'s output a response."""
    stop = stop_token_ids(scorer.model.generation_config, scorer.tokenizer)
    answers = [_answer(row, scorer.tokenizer, stop, settings) for row in rows]
    values = score_answers(
        scorer,
        RewardRule("calif", settings.alpha),
        [row.request for row in rows],
        answers,
        [row.constraints for row in rows],
        [row.l0 for row in rows],
        [row.l1 for row in rows],
        settings.semantics,
    )
    scored = []
    for row, value in zip(rows, values, strict=True):
        bounded = value["l0"] is not None and value["l1"] is not None
        scored.append(
            {
                "line": row.line,
                "key": row.key,
                "loglik": value["loglik"],
                "tokens": value["answer_tokens"],
                **{name: value[name] for name in ("distinct_2", "r_ver", "l0", "l1")},
                "zone": value["zone"] if bounded else None,
                "reward": value["reward"] if bounded else None,
                "request_source": row.request_source,
                "ids_from": "text" if row.token_ids is None else "file",
                "cut": row.was_cut,
                "filter": row.filter,
            }
        )
    if others:
        candidates = [others[row.request] for row in rows]
        ids = [answer.token_ids for answer in answers]
        given_others = loglik_given_requests(scorer, candidates, ids)
        for i, (row, entry) in enumerate(zip(rows, scored, strict=True)):
            loglik = [entry["loglik"], *given_others[i].tolist()] if ids[i] else None
            digest = hashlib.sha256(row.request.encode()).hexdigest()[:12]
            entry["identification"] = {"request": digest, "tokens": len(ids[i]), "loglik": loglik}
    return scored


@dataclass(frozen=True)
class Summary:
    """Means over scored rows; NaN where no row has the number.

    ``empty`` is the share of answers without text, which have no l. The counters are numbers of
    rows. ``identification`` is None where it was not asked for.
    """

    rows: int
    loglik: float
    empty: float
    tokens: float
    distinct_2: float
    r_ver: float
    reward: float
    zones: Counter[str]
    identification: Identification | None


def summarise(rows: Sequence[Scored]) -> Summary:
    """The means over rows of a score file."""

    def mean(name: str) -> float:
        return nan_mean(
            [math.nan if getattr(row, name) is None else getattr(row, name) for row in rows]
        )

    return Summary(
        rows=len(rows),
        empty=nan_mean([row.loglik is None for row in rows]),
        zones=Counter(row.zone for row in rows if row.zone is not None),
        identification=_identification([row.identification for row in rows if row.identification]),
        **{name: mean(name) for name in ("loglik", "tokens", "distinct_2", "r_ver", "reward")},
    )


def _identification(rows: Sequence[Identified]) -> Identification | None:
    known = [row.loglik for row in rows if row.loglik is not None]
    if not known:
        return None
    unknown = [math.nan] * len(known[0])
    return identification(
        [unknown if row.loglik is None else row.loglik for row in rows],
        [row.tokens for row in rows],
        [row.request for row in rows],
    )


def _answer(
    row: Row, tokenizer: PreTrainedTokenizerBase, stop: set[int], settings: Settings
) -> Answer:
    """Verdicts are about the text of the row; l is about its token ids, where it has them."""
    of_text = text_answer(
        row.response, tokenizer, thinking=settings.thinking, end=settings.end and not row.was_cut
    )
    if row.token_ids is None:
        return of_text
    of_ids = final_answer(row.token_ids, tokenizer, thinking=settings.thinking, stop=stop)
    return replace(of_ids, text=of_text.text)


def _settings_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.settings.json")


def _identity(responses: Responses, rows: Sequence[Row] | None) -> dict[str, Any]:
    """What a score file is made of beside its settings: other values, another file."""
    source = responses.constraints
    made_of = {
        "constraints": source,
        "constraints_sha256": None if source in (None, IFBENCH) else _sha256(Path(source)),
        "responses_sha256": _sha256(responses.path),
    }
    if responses.filters != [None]:
        made_of["filters"] = responses.filters
    if rows is not None:
        lines = json.dumps([row.line for row in rows])
        made_of["lines_sha256"] = hashlib.sha256(lines.encode()).hexdigest()
    return made_of


def _check_output(output: Path, made_of: Mapping[str, Any]) -> None:
    """Refuse an output that another call made; nothing is written here."""
    path = _settings_path(output)
    if not path.exists():
        if output.exists():
            raise DataError(f"{output}: exists and was not made by this command; give a new file")
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damaged(output, f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise _damaged(output, f"{path}: expected a JSON object, found {short(found)}")
    for name, value in made_of.items():
        if found.get(name) != value:
            raise DataError(
                f"{output}: was made with {name} = {short(found.get(name))}, not {value!r}; "
                "give a new file"
            )


def _read_scores(output: Path, rows: Iterable[Row], n: int) -> list[Scored]:
    """What a score file holds so far, each row held against the response that it scores."""
    lines = list(whole_lines(output)) if output.exists() else []
    if len(lines) > n:
        raise _damaged(output, f"{output}, line {n + 1}: there are only {n} responses")
    scores = []
    for number, (line, row) in enumerate(zip(lines, answered(rows), strict=False), start=1):
        try:
            scores.append(Scored.model_validate_json(line))
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "row"
            problem = f"{where}: {first['msg']}, not {short(first['input'])}"
            raise _damaged(output, f"{output}, line {number}: {problem}") from error
        if scores[-1].line != row.line:
            problem = f"line: is {scores[-1].line}, not {row.line}"
            raise _damaged(output, f"{output}, line {number}: {problem}")
    return scores


def _damaged(output: Path, problem: str) -> DataError:
    return DataError(f"{problem}; delete {output} and {_settings_path(output)} to begin anew")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
