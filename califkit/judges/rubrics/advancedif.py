"""AdvancedIF, the ComplexIF part (CIF): 402 single-turn prompts, each with a list of criteria.

Overall pass rate = rows whose criteria are all satisfied; micro rubric pass = satisfied criteria,
pooled over rows (paper, Table 1). Both denominators are complete: they come from the data. The
released scorer takes the judge's own overall flag instead, and pools whatever criteria the judge
answered; its numbers are reported beside ours. The data (hub ``facebook/AdvancedIF``) are licensed
CC BY-NC 4.0 and are not part of this package.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from califkit.judges.parsing import Unparsable, read_object, without_reasoning
from califkit.judges.prompts import (
    BOOLEAN,
    TEXT,
    Messages,
    Prompt,
    Question,
    answer_schema,
    tagged,
    user_turn,
)
from califkit.judges.rubrics.base import DATA_NOTE, Scores, match_verdicts, percent, status_counts
from califkit.judges.rubrics.files import Loaded, RubricError, digest, locate, require, require_text
from califkit.judges.verdicts import Verdict
from califkit.runs.text import one_line

HUB_FILE = "if_oss_full_data.csv"
CIF_NAMES = ("complex_if_single_turn_v5", "if_complex_if_oss")
"""How the part is spelled in the data and in the released command line."""

N_ROWS = 402
COLUMNS = ("conversation_history", "benchmark_name", "prompt_metadata")
FLAG = "SATISFIED_ALL_REQUIREMENTS"

_TEXT = f"""\
Check a response to a prompt against a list of criteria.

{DATA_NOTE}

$prompt

$response

$criteria

Take the criteria one by one. A criterion is satisfied only if the response meets it in full; \
almost and partly are not enough, and what the response merely announces does not count. Decide \
each on its own, whatever you think of the others.

Reply with one JSON object and nothing else, with exactly $n entries in "criteria", in the order \
of the list:
{{"criteria": [{{"reason": "<one sentence>", "satisfied": <true or false>}}, ...], \
"all_satisfied": <true if every criterion is satisfied, else false>}}"""

_ENTRY = answer_schema(reason=TEXT, satisfied=BOOLEAN)
_PROMPT = Prompt(
    _TEXT,
    answer_schema(criteria={"type": "array", "items": _ENTRY}, all_satisfied=BOOLEAN),
)


@dataclass(frozen=True)
class CifItem:
    """A prompt with its criteria; `id` is ``row-`` and its number in the file, from 1."""

    id: str
    messages: Messages
    rubrics: tuple[str, ...]


@dataclass(frozen=True)
class ReleasedRow:
    """What the released scorer takes from a judge's answer: the flag, the criteria it pools, and
    the share of the row's own criteria with a yes."""

    flag: str
    counted: int
    passed: int
    rate: float


@dataclass(frozen=True)
class Reading:
    """A judge's answer on a row.

    `satisfied` is parallel to the criteria, None where the judge gave no verdict; `flag` is its
    overall verdict, None if it gave none; `released` is None where the released scorer fails.
    `others` says whether all that it answered beside the criteria says yes.
    """

    satisfied: tuple[bool | None, ...]
    flag: bool | None
    released: ReleasedRow | None
    others: bool = True


@dataclass(frozen=True)
class AdvancedIF:
    name: str = "advancedif"

    def load(self, source: str | Path | None = None) -> Loaded:
        """CIF rows of the hub's CSV file; rows of the other parts are left out.

        `source` is such a file, or ``hub:facebook/AdvancedIF`` (``@revision`` may follow), from the
        network or the local cache.
        """
        if str(source).startswith("hub:"):
            path, shown = _download(str(source).removeprefix("hub:")), str(source)
        else:
            path, shown = locate(source, "advancedif.csv")
        items = []
        names: Counter[str] = Counter()
        for number, row in _csv_rows(path):
            names[row["benchmark_name"]] += 1
            if row["benchmark_name"] in CIF_NAMES:
                items.append(_item(row, number, f"{path.name}, row {number}"))
        if not items:
            raise RubricError(f"{shown}: no rows of {' or '.join(CIF_NAMES)}, only {dict(names)}")
        warnings = ()
        if len(items) != N_ROWS:
            warnings = (
                f"{shown}: {len(items)} CIF rows where the full data have {N_ROWS}; "
                "numbers do not compare with published ones",
            )
        sha256 = digest([[i.id, i.messages, i.rubrics] for i in items])
        return Loaded(tuple(items), shown, sha256, warnings)

    def units(self, item: CifItem) -> list[str]:
        return [item.id]

    def nothing(self, item: CifItem) -> Reading:
        return full_reading([False] * len(item.rubrics), False)

    def decide(self, item: CifItem, answer: str) -> list[Question | Verdict]:
        """One question with all criteria."""
        criteria = "\n".join(f"{i}. {text}" for i, text in enumerate(item.rubrics, start=1))
        question = _PROMPT.ask(
            partial(read_answer, n=len(item.rubrics)),
            prompt=tagged("prompt", item.messages[-1]["content"]),
            response=tagged("response", answer),
            criteria=tagged("criteria", criteria),
            n=len(item.rubrics),
        )
        return [question]

    def score(self, items: Sequence[CifItem], verdicts: Mapping[str, Verdict]) -> Scores:
        """Both metrics of Table 1."""
        matched = match_verdicts([item.id for item in items], verdicts)
        readings = [matched[item.id].value for item in items]
        rows = [
            reading.satisfied if reading else (None,) * len(item.rubrics)
            for item, reading in zip(items, readings, strict=True)
        ]
        for item, row in zip(items, rows, strict=True):
            if len(row) != len(item.rubrics):
                raise RubricError(f"{item.id}: {len(row)} verdicts, {len(item.rubrics)} criteria")
        passed = [all(row) for row in rows]
        n_criteria = sum(map(len, rows))
        n_satisfied = sum(verdict is True for row in rows for verdict in row)
        counts = status_counts(matched.values()) | {
            "n_criteria": n_criteria,
            "n_criteria_satisfied": n_satisfied,
            "n_rows_unjudged": sum(not _judged(row) for row in rows),
            "n_rubrics_without_verdict": sum(row.count(None) for row in rows),
            "n_flag_disagrees": sum(
                _judged(row) and reading.flag is not None and reading.flag != all(row)
                for row, reading in zip(rows, readings, strict=True)
            ),
            # Apart from those: the released scorer and the golden vectors know the criteria alone.
            "n_flag_disagrees_with_others": sum(
                bool(_judged(row) and reading.flag and not reading.others)
                for row, reading in zip(rows, readings, strict=True)
            ),
        }
        metrics = {
            "advancedif_overall_pass_rate": percent(sum(passed), len(rows)),
            "advancedif_micro_rubric_pass": percent(n_satisfied, n_criteria),
        }
        released = released_scores([reading.released if reading else None for reading in readings])
        details = {"passed": {i.id: p for i, p in zip(items, passed, strict=True)}}
        return Scores(metrics, counts, released, details)


def read_answer(text: str, n: int) -> Reading:
    """Verdicts on n criteria: our own format, else the one of the released judge prompt."""
    value = read_object(text, "criteria", "rubrics_check", FLAG)
    if "criteria" in value:
        return _read_ours(value, n)
    reading = _read_released(value, n)
    if reading.released is not None and not _is_json(without_reasoning(text)):
        reading = replace(reading, released=None)
    if not _judged(reading.satisfied):
        raise Unparsable("no verdict on any criterion", reading)
    return reading


def full_reading(verdicts: Sequence[bool], flag: bool | None) -> Reading:
    """The reading of an answer with a verdict on every criterion."""
    n, passed = len(verdicts), sum(verdicts)
    released = ReleasedRow("YES" if flag else "NO", n, passed, passed / n)
    return Reading(tuple(verdicts), flag, released)


def released_scores(rows: Sequence[ReleasedRow | None]) -> dict[str, float | int | None]:
    """Both metrics as released: rows by the judge's flag, criteria by what the judge answered."""
    judged = [row for row in rows if row is not None]
    counted, passed = sum(r.counted for r in judged), sum(r.passed for r in judged)
    return {
        "advancedif_overall_pass_rate": percent(
            sum(row.flag.lower() == "yes" for row in judged), len(rows)
        ),
        "advancedif_micro_rubric_pass": percent(passed, counted) or 0.0,
        "n_judged": len(judged),
        "n_failed": len(rows) - len(judged),
        "rubrics_counted": counted,
        "rubrics_passed": passed,
    }


def _read_ours(value: Mapping[str, Any], n: int) -> Reading:
    entries = value["criteria"]
    if not isinstance(entries, list) or len(entries) != n:
        raise Unparsable(f"'criteria' must be a list of {n} entries")
    verdicts = [e.get("satisfied") if isinstance(e, dict) else None for e in entries]
    if not all(isinstance(verdict, bool) for verdict in verdicts):
        raise Unparsable("every entry of 'criteria' needs 'satisfied', true or false")
    flag = value.get("all_satisfied")
    return full_reading(verdicts, flag if isinstance(flag, bool) else None)


def _read_released(value: Mapping[str, Any], n: int) -> Reading:
    """``rubrics_check`` with texts that hold yes or no. A text that is none fails the row."""
    checks, flag = value.get("rubrics_check", {}), value.get(FLAG, "NO")
    if not isinstance(checks, dict) or not isinstance(flag, str):
        raise Unparsable("'rubrics_check' must be an object and the flag a text")
    if not all(isinstance(text, str) for text in checks.values()):
        raise Unparsable("an entry of 'rubrics_check' is not a text")
    yes = {key: "yes" in text.lower() for key, text in checks.items()}  # also in "eyes"
    names = [f"question_{number}" for number in range(1, n + 1)]
    satisfied = tuple(map(yes.get, names))
    others = all(said for name, said in yes.items() if name not in names)
    released = ReleasedRow(flag, len(yes), sum(yes.values()), satisfied.count(True) / n)
    says_yes = flag.lower() == "yes" if FLAG in value else None
    return Reading(satisfied, says_yes, released, others)


def _judged(row: Sequence[bool | None]) -> bool:
    return any(verdict is not None for verdict in row)


def _is_json(text: str) -> bool:
    """Whether the whole text is JSON: the released parser takes nothing else."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _download(name: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    repository, _, revision = name.partition("@")
    try:
        path = hf_hub_download(repository, HUB_FILE, repo_type="dataset", revision=revision or None)
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        raise RubricError(
            f"cannot get {HUB_FILE} of the data set {name!r} (without network it must already be "
            f"in the Hugging Face cache): {one_line(error)}"
        ) from error
    return Path(path)


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    limit = csv.field_size_limit(2**31 - 1)  # long conversations; the limit is of the process
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            if missing := [c for c in COLUMNS if c not in (reader.fieldnames or ())]:
                raise RubricError(f"{path}: columns {missing} are missing")
            for number, row in enumerate(reader, start=1):
                if any(row[column] is None for column in COLUMNS):
                    raise RubricError(f"{path.name}, row {number}: has too few columns")
                yield number, row
    except OSError as error:
        raise RubricError(f"{path}: cannot be read: {error.strerror}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise RubricError(f"{path}: not a CSV file in UTF-8: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _item(row: Mapping[str, str], number: int, where: str) -> CifItem:
    turns = _decode(row["conversation_history"], where, "conversation_history")
    if not isinstance(turns, list) or len(turns) != 1:
        raise RubricError(
            f"{where}: field 'conversation_history' must hold one turn: {turns!r:.80}"
        )
    role = require(turns[0], "role", str, f"{where}, conversation_history")
    content = require_text(turns[0], "content", f"{where}, conversation_history")
    if role != "user":
        raise RubricError(f"{where}: field 'conversation_history' must be a user turn")
    metadata = _decode(row["prompt_metadata"], where, "prompt_metadata")
    rubrics = require(metadata, "rubrics", str, f"{where}, prompt_metadata")
    criteria = _decode(rubrics, where, "rubrics")
    usable = isinstance(criteria, list) and criteria
    if not usable or not all(isinstance(text, str) and text.strip() for text in criteria):
        raise RubricError(f"{where}: field 'rubrics' must be a list of texts, not {criteria!r:.80}")
    return CifItem(f"row-{number}", user_turn(content), tuple(criteria))


def _decode(text: str, where: str, field: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RubricError(f"{where}: field {field!r} is not JSON: {error}: {text!r:.80}") from error
