"""Two response files -> pairs, what a reference and a judge say of them, and the audit.

Rows have the layouts that ``califkit verify`` reads, or those of
`califkit.evaluation.scoring_files`. Reasoning is left out: the final answers are audited (paper,
section 2.5).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from califkit.audit.compare import Audit, Both, Pair, audit
from califkit.data.load import DataError
from califkit.data.rows import short
from califkit.evaluation.responses import Named
from califkit.evaluation.scoring_files import ScorableFile, Settings, score_file
from califkit.models.reasoning import answer_text
from califkit.runs.jsonl import read_jsonl
from califkit.verifiers import Constraint

if TYPE_CHECKING:
    from califkit.judges.judge import Judge


@dataclass(frozen=True)
class Row:
    """One response of a file that can be used."""

    line: int
    key: str | None
    prompt: str
    request: str
    request_is_cut: bool
    constraints: tuple[Constraint, ...]
    answer: str


@dataclass
class Source:
    """Where pairs come from, and what was left out.

    ``joined_by`` is ``key`` if every row of both files has one, else ``prompt``. Several responses
    to one prompt are paired in their order; ``most_samples`` is the largest number of such pairs.
    """

    base: Path
    trained: Path
    constraints: str
    joined_by: str = "prompt"
    most_samples: int = 1
    thinking: bool = False
    only_base: Named = field(default_factory=Named)
    only_trained: Named = field(default_factory=Named)
    no_prompt: dict[str, Named] = field(default_factory=dict)
    uncut: Named = field(default_factory=Named)
    reference: str | None = None
    judge: str | None = None

    def notes(self) -> list[tuple[str, str]]:
        """What could not be checked because of the files, and why."""
        found = []
        sides = (("base", self.only_base, "trained"), ("trained", self.only_trained, "base"))
        for side, named, other in sides:
            if named.n:
                why = f"no {other} response to the same prompt ({_first(named)})"
                found.append((f"{named.n} {side} responses", why))
        for side, named in self.no_prompt.items():
            if named.n:
                why = f"{self.constraints} has no such prompt ({_first(named)})"
                found.append((f"{named.n} {side} responses", why))
        if self.uncut.n and (self.reference or self.judge):
            why = "the constraints could not be cut off; they are given the whole prompt"
            found.append((f"l and RQ given the request alone, {self.uncut.n} pairs", why))
        return found


@dataclass(frozen=True)
class Paired:
    """Pairs and their source."""

    pairs: list[Pair]
    source: Source


def audit_files(
    base: Path,
    trained: Path,
    out: Path | None = None,
    *,
    constraints: str | None = None,
    reference: str | None = None,
    judge: Judge | None = None,
    semantics: str = "published",
    thinking: bool = False,
    seed: int = 0,
    processes: int = 1,
    tokens_per_pass: int = 2048,
    progress: bool = False,
) -> tuple[Audit, Source]:
    """Audit the responses of a trained policy beside those of the base policy.

    Parameters
    ----------
    base, trained
        JSONL files of responses.
    out
        Folder for the scores of the reference; required with ``reference``. The same call
        continues an interrupted one.
    constraints
        JSONL file of prompts with their constraints, or ``ifbench``; None as in `ScorableFile`.
    reference
        Model whose likelihood is measured: the base policy, for the paper's numbers.
    judge
        Grades Response Quality; its cache makes it resumable.
    semantics, seed, processes, progress
        As in `califkit.audit.compare.audit`.
    thinking, tokens_per_pass
        As in `califkit.evaluation.scoring_files`.

    Raises
    ------
    DataError
        For input that cannot be used, before anything expensive starts; it names file and line.
    """
    files = [ScorableFile(path, constraints) for path in (base, trained)]
    paired = pair_up(files[0], files[1], thinking)
    pairs, source = paired.pairs, paired.source
    source.reference, source.judge = reference, None if judge is None else judge.settings.name
    logliks = tokens = None
    if reference is not None:
        if out is None:
            raise ValueError("a reference needs a folder for its scores")
        logliks, tokens = _score(files, pairs, out, reference, thinking, tokens_per_pass)
    qualities = None if judge is None else _judge(pairs, judge)
    report = audit(
        pairs,
        logliks,
        qualities,
        tokens,
        semantics=semantics,
        seed=seed,
        processes=processes,
        progress=progress,
    )
    return replace(report, not_checked=[*report.not_checked, *source.notes()]), source


def pair_up(base: ScorableFile, trained: ScorableFile, thinking: bool = False) -> Paired:
    """Join two response files by key, or by prompt where a row has no key.

    Raises
    ------
    DataError
        Unusable rows, rows without constraints, pairs whose prompts or constraints differ, several
        responses to one prompt where the rows do not bring their own constraints (all but the last
        would be lost), and files without a common prompt.
    """
    sides = {}
    source = Source(base.path, trained.path, _origin(base), thinking=thinking)
    for side, file in (("base", base), ("trained", trained)):
        if file.joined is not None:
            if n := file.joined.replaced:
                raise DataError(
                    f"{file.path}: {n} responses answer a prompt that has another response in this "
                    "file; give each sample its own file, or each row its own constraints (then "
                    "samples are paired in their order)"
                )
            source.no_prompt[side] = file.joined.unmatched
        sides[side] = list(_rows(file, thinking))
    by_key = all(row.key is not None for rows in sides.values() for row in rows)
    source.joined_by = "key" if by_key else "prompt"
    groups = {side: _grouped(rows, by_key) for side, rows in sides.items()}
    pairs = []
    for name, ours in groups["base"].items():
        theirs = groups["trained"].pop(name, [])
        source.most_samples = max(source.most_samples, min(len(ours), len(theirs)))
        for b, t in zip(ours, theirs, strict=False):
            _check_same(base.path, b, trained.path, t)
            pairs.append(_pair(b, t, by_key))
            if not b.request_is_cut:
                source.uncut.add(name)
        for row in ours[len(theirs) :]:
            source.only_base.add(_name(row))
        for row in theirs[len(ours) :]:
            source.only_trained.add(_name(row))
    for row in (row for rows in groups["trained"].values() for row in rows):
        source.only_trained.add(_name(row))
    if not pairs:
        raise DataError(
            f"{base.path} and {trained.path} have no {source.joined_by} in common: the first "
            f"begins with {_name(sides['base'][0])}, the second with {_name(sides['trained'][0])}"
            if all(sides.values())
            else f"{base.path} and {trained.path}: one of them has no usable response"
        )
    return Paired(pairs, source)


# --- rows -----------------------------------------------------------------------------------------


def _rows(file: ScorableFile, thinking: bool) -> Iterator[Row]:
    answers = iter(()) if file.joined is None else iter(file.joined)
    for scorable in file:
        # Both streams skip the same rows: those whose response is null.
        answer = next((a for a in answers if a.response is not None), None)
        constraints = scorable.constraints
        if not constraints:
            raise DataError(
                f"{file.path}, line {scorable.line}: has no constraints of its own; name its "
                "prompts with --constraints"
            )
        yield Row(
            line=scorable.line,
            key=scorable.key if answer is None else answer.prompt.key,
            prompt=scorable.request if answer is None else answer.prompt.prompt,
            request=scorable.request,
            request_is_cut=scorable.request_source != "prompt",
            constraints=constraints,
            answer=answer_text(scorable.response, thinking),
        )


def _origin(file: ScorableFile) -> str:
    if file.joined is None or file.joined.source == str(file.path):
        return "the rows themselves"
    return file.joined.source


def _grouped(rows: Sequence[Row], by_key: bool) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.key if by_key else row.prompt.strip(), []).append(row)
    return groups


def _check_same(base: Path, b: Row, trained: Path, t: Row) -> None:
    what = "prompt" if b.prompt.strip() != t.prompt.strip() else None
    what = what or ("list of constraints" if b.constraints != t.constraints else None)
    if what:
        raise DataError(
            f"{trained}, line {t.line}, {_name(t)}: has another {what} than line {b.line} of {base}"
        )


def _pair(b: Row, t: Row, by_key: bool) -> Pair:
    return Pair(
        prompt=b.prompt,
        constraints=b.constraints,
        base=b.answer,
        trained=t.answer,
        request=b.request,
        key=b.key if by_key else None,
        base_line=b.line,
        trained_line=t.line,
    )


def _name(row: Row) -> str:
    named = f"key {row.key!r}" if row.key is not None else f"prompt {short(row.prompt)}"
    return f"line {row.line}, {named}"


def _first(named: Named) -> str:
    listed = "; ".join(named.first[:3])
    return listed if named.n <= 3 else f"{listed}; and {named.n - 3} more"


# --- reference and judge --------------------------------------------------------------------------


def _score(
    files: Sequence[ScorableFile],
    pairs: Sequence[Pair],
    out: Path,
    reference: str,
    thinking: bool,
    tokens_per_pass: int,
) -> tuple[Both, Both]:
    """l and length in tokens of both sides; the matched rows are scored as a file of their own."""
    folder = out / "scores"
    folder.mkdir(parents=True, exist_ok=True)
    logliks, tokens = [], []
    for side, file in zip(("base", "trained"), files, strict=True):
        position = {getattr(pair, f"{side}_line"): i for i, pair in enumerate(pairs)}
        matched = folder / f"{side}.jsonl"
        order = _write_matched(file, position, matched)
        output = folder / f"{side}.scores.jsonl"
        settings = Settings(reference, thinking=thinking)
        score_file(ScorableFile(matched), output, settings, tokens_per_pass)
        found = np.full((2, len(pairs)), np.nan)
        for i, row in zip(order, read_jsonl(output), strict=True):
            l = row["loglik"]  # noqa: E741
            found[:, i] = math.nan if l is None else l, row["tokens"]
        logliks.append(found[0])
        tokens.append(found[1])
    return tuple(logliks), tuple(tokens)


def _write_matched(file: ScorableFile, position: dict[int, int], path: Path) -> list[int]:
    """Write the rows that are in a pair, with their requests; returns the pairs in that order."""
    order = []
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as out:
        for row in file:
            if row.line not in position:
                continue
            order.append(position[row.line])
            written = {"request": row.request, "response": row.response}
            if row.token_ids is not None:
                written["token_ids"] = row.token_ids
            if row.was_cut:
                written["finish_reason"] = "length"
            out.write(json.dumps(written) + "\n")
    os.replace(temporary, path)
    return order


def _judge(pairs: Sequence[Pair], judge: Judge) -> Both:
    """Response Quality of both sides; NaN where the judge gave no usable score."""
    items = [(pair.x, pair.base) for pair in pairs] + [(pair.x, pair.trained) for pair in pairs]
    verdicts = judge.quality(items)
    scores = [math.nan if v.status != "ok" else float(v.value) for v in verdicts]
    return np.array(scores[: len(pairs)]), np.array(scores[len(pairs) :])
