"""Two response files -> pairs, what a reference and a judge say of them, and the audit.

Rows have the layouts of `califkit.evaluation.response_files`. Reasoning is left out: the final
answers are audited (paper, section 2.5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from califkit import metrics
from califkit.audit.compare import Audit, Both, Pair, audit
from califkit.data.load import DataError
from califkit.evaluation.response_files import Named, Responses, Row, answered, open_responses
from califkit.evaluation.score_files import Scored, Settings, score_file
from califkit.models.reasoning import Cuts, answer_text

if TYPE_CHECKING:
    from califkit.judges.judge import Judge


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
    identical: dict[str, Named] = field(default_factory=dict)
    same_answers: int = 0
    cuts: dict[str, Cuts] = field(default_factory=dict)
    uncut: Named = field(default_factory=Named)
    reference: str | None = None
    judge: str | None = None

    def notes(self) -> list[tuple[str, str]]:
        """What could not be checked because of the files, and why."""
        no_prompt = f"{self.constraints} has no such prompt"
        repeat = "they repeat an earlier one to the same prompt"
        found = [
            *_named(self.only_base, "base responses", "no trained response to the same prompt"),
            *_named(self.only_trained, "trained responses", "no base response to the same prompt"),
        ]
        for side, named in self.no_prompt.items():
            found += _named(named, f"{side} responses", no_prompt)
        for side, named in self.identical.items():
            found += _named(named, f"{side} responses as samples of their own", repeat)
        if self.same_answers:
            why = "base and trained gave the same text"
            found.append((f"a change in {self.same_answers} pairs", why))
        if self.uncut.n and (self.reference or self.judge):
            why = "the constraints could not be cut off; they are given the whole prompt"
            found.append((f"l and RQ given the request alone, {self.uncut.n} pairs", why))
        return found


@dataclass(frozen=True)
class Paired:
    """Pairs, with the rows of both files that are in them."""

    pairs: list[Pair]
    rows: tuple[list[Row], list[Row]]
    source: Source


def audit_files(
    base: Path,
    trained: Path,
    out: Path | None = None,
    *,
    constraints: str | None = None,
    filter: str | None = None,
    reference: str | None = None,
    judge: Judge | None = None,
    identify: int | None = None,
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
    out
        Folder for the scores of the reference; required with ``reference``. The same call
        continues an interrupted one.
    constraints, filter
        As in `califkit.evaluation.response_files.open_responses`.
    reference
        Model whose likelihood is measured: the base policy, for the paper's numbers.
    identify
        Against how many requests each answer is held, its own among them; needs a reference.
    semantics, seed, processes, progress
        As in `califkit.audit.compare.audit`.
    thinking, tokens_per_pass
        As in `califkit.evaluation.score_files`.
    """
    if identify is not None and reference is None:
        raise DataError(f"identify = {identify}: request identification needs a reference")
    files = [
        open_responses(path, constraints, scoring=True, filter=filter) for path in (base, trained)
    ]
    paired = pair_up(files[0], files[1], thinking)
    pairs, source = paired.pairs, paired.source
    source.reference, source.judge = reference, None if judge is None else judge.settings.name
    logliks = tokens = identified = None
    if reference is not None:
        if out is None:
            raise ValueError("a reference needs a folder for its scores")
        settings = Settings(reference, thinking=thinking, identify=identify)
        scores = [
            score_file(
                file, out / "scores" / f"{side}.scores.jsonl", settings, tokens_per_pass, rows
            )
            for side, file, rows in zip(("base", "trained"), files, paired.rows, strict=True)
        ]
        logliks, tokens = _of_both(scores, "loglik"), _of_both(scores, "tokens")
        if identify is not None:
            identified = tuple(_identified(side, identify) for side in scores)
    qualities = None if judge is None else _judge(pairs, judge)
    report = audit(
        pairs,
        logliks,
        qualities,
        tokens,
        identified=identified,
        semantics=semantics,
        seed=seed,
        processes=processes,
        progress=progress,
    )
    return replace(report, not_checked=[*report.not_checked, *source.notes()]), source


def pair_up(base: Responses, trained: Responses, thinking: bool = False) -> Paired:
    """Join two response files, opened for scoring, by key, or by prompt where a row has no key.

    `DataError` also for several responses to one prompt where the rows do not bring their own
    constraints: all but the last would be lost.
    """
    sides = {"base": _usable(base), "trained": _usable(trained)}
    by_key = all(row.key is not None for rows in sides.values() for row in rows)
    source = Source(
        base.path,
        trained.path,
        "the rows themselves" if base.source == str(base.path) else base.source,
        joined_by="key" if by_key else "prompt",
        thinking=thinking,
        no_prompt={"base": base.unmatched, "trained": trained.unmatched},
        identical={"base": base.identical, "trained": trained.identical},
        cuts={"base": base.cuts, "trained": trained.cuts},
    )
    groups = {side: _grouped(rows, by_key) for side, rows in sides.items()}
    matched: list[tuple[Row, Row]] = []
    for name, ours in groups["base"].items():
        theirs = groups["trained"].pop(name, [])
        source.most_samples = max(source.most_samples, min(len(ours), len(theirs)))
        matched += zip(ours, theirs, strict=False)
        for row in ours[len(theirs) :]:
            source.only_base.add(_where(row))
        for row in theirs[len(ours) :]:
            source.only_trained.add(_where(row))
    for row in (row for rows in groups["trained"].values() for row in rows):
        source.only_trained.add(_where(row))
    if not matched:
        raise DataError(
            f"{base.path} and {trained.path} have no {source.joined_by} in common: the first "
            f"begins with {_where(sides['base'][0])}, the second with {_where(sides['trained'][0])}"
        )
    for b, t in matched:
        _check_same(base.path, b, trained.path, t)
        if b.request_source == "prompt":
            source.uncut.add(b.name)
    pairs = [_pair(b, t, by_key, thinking) for b, t in matched]
    source.same_answers = sum(pair.base == pair.trained for pair in pairs)
    return Paired(pairs, ([b for b, _ in matched], [t for _, t in matched]), source)


def _usable(file: Responses) -> list[Row]:
    if file.replaced:
        raise DataError(
            f"{file.path}: {file.replaced} responses answer a prompt that has another response in "
            "this file; give each sample its own file, or each row its own constraints (then "
            "samples are paired in their order)"
        )
    if len(file.filters) > 1:
        raise DataError(
            f"{file.path}: holds the answers of several filters; choose one with --filter: "
            f"{', '.join(map(str, file.filters))}"
        )
    rows = list(answered(file))
    if bare := next((row for row in rows if not row.constraints), None):
        raise DataError(
            f"{file.path}, line {bare.line}: has no constraints of its own; name its prompts with "
            "--constraints"
        )
    return rows


def _grouped(rows: Sequence[Row], by_key: bool) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.key if by_key else row.prompt.strip(), []).append(row)
    return groups


def _check_same(base: Path, b: Row, trained: Path, t: Row) -> None:
    what = "prompt" if b.prompt.strip() != t.prompt.strip() else None
    what = what or ("list of constraints" if b.constraints != t.constraints else None)
    if what:
        raise DataError(f"{trained}, {_where(t)}: has another {what} than line {b.line} of {base}")


def _pair(b: Row, t: Row, by_key: bool, thinking: bool) -> Pair:
    return Pair(
        prompt=b.prompt,
        constraints=b.constraints,
        base=answer_text(b.response, thinking),
        trained=answer_text(t.response, thinking),
        request=b.request,
        key=b.key if by_key else None,
        base_line=b.line,
        trained_line=t.line,
        cut=(b.was_cut, t.was_cut),
    )


def _where(row: Row) -> str:
    return f"line {row.line}, {row.name}"


def _named(named: Named, what: str, why: str) -> list[tuple[str, str]]:
    """A note with the number of these rows and the names of the first; none if there are none."""
    more = f"; and {named.n - 3} more" if named.n > 3 else ""
    return [(f"{named.n} {what}", f"{why} ({'; '.join(named.first[:3])}{more})")] if named.n else []


def _of_both(scores: Sequence[Sequence[Scored]], name: str) -> Both:
    """A number of the answers of both sides; None becomes NaN."""
    base, trained = (np.array([getattr(s, name) for s in side], dtype=float) for side in scores)
    return base, trained


def _identified(scores: Sequence[Scored], k: int) -> np.ndarray:
    unknown = [math.nan] * k
    return metrics.identified([s.identification.loglik or unknown for s in scores])


def _judge(pairs: Sequence[Pair], judge: Judge) -> Both:
    """Response Quality of both sides; NaN where the judge gave no usable score, JudgeError if it
    gave none at all."""
    items = [(pair.x, pair.base) for pair in pairs] + [(pair.x, pair.trained) for pair in pairs]
    verdicts = judge.quality(items)
    judge.check_some_are_scored(verdicts)
    scores = [math.nan if v.status != "ok" else float(v.value) for v in verdicts]
    return np.array(scores[: len(pairs)]), np.array(scores[len(pairs) :])
