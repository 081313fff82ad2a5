"""Verify many responses: over processes, as a stream, with totals and what the repairs change.

>>> from califkit.verifiers import Constraint
>>> no_comma = Constraint("punctuation:no_comma")
>>> [v.strict for v in verify_many([([no_comma], "Tea."), ([no_comma], "Tea, milk.")])]
[(True,), (False,)]

Memory stays flat however many responses there are: input and output are iterators, and only a few
chunks are under way at a time. Verdicts come in the order of the input and do not depend on the
number of processes.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, islice, tee
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from califkit import CalifkitError
from califkit.evaluation.response_files import Responses, Row
from califkit.metrics import bootstrap_interval
from califkit.models.reasoning import answer_text
from califkit.runs.jsonl import replacing
from califkit.runs.units import progress as with_progress
from califkit.verifiers import Constraint, check, registry

PUBLISHED, REPAIRED = "published", "repaired"
_CHUNK = 32
_CHUNKS_PER_PROCESS = 4

Item = tuple[Sequence[Constraint], str | None]
"""Constraints, and the response to them; None where there was none."""


@dataclass(frozen=True)
class Verdicts:
    """Outcome of one response, one entry a constraint; `errors` tells of checks that failed."""

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]
    errors: tuple[str, ...] = ()


def verify_one(constraints: Sequence[Constraint], response: str | None, semantics: str) -> Verdicts:
    """Strict and loose verdicts of one response; without a response nothing is followed."""
    if response is None:
        nothing = (False,) * len(constraints)
        return Verdicts(nothing, nothing)
    strict, loose, errors = [], [], []
    for constraint in constraints:
        verdict = check(constraint, response, "strict", semantics)
        strict.append(verdict.passed)
        if not verdict.passed:  # what passes strictly passes loosely
            verdict = check(constraint, response, "loose", semantics)
        loose.append(verdict.passed)
        if verdict.error:
            errors.append(verdict.error)
    return Verdicts(tuple(strict), tuple(loose), tuple(errors))


def verify_many(
    items: Iterable[Item],
    semantics: str = PUBLISHED,
    processes: int = 1,
    progress: bool = False,
    total: int | None = None,
) -> Iterator[Verdicts]:
    """Verdicts of many responses, in their order.

    ``items`` are read as far as needed to keep the processes busy. With more than one process a
    script needs the usual ``if __name__ == "__main__":`` guard, because workers are spawned (which
    is safe beside threads and CUDA); `CalifkitError` if one was killed. ``progress`` is shown on
    standard error, with ``total`` as the number of items.
    """
    for (verdicts,) in _verify_each(items, (semantics,), processes, progress, total):
        yield verdicts


def _verify_each(
    items: Iterable[Item],
    semantics: Sequence[str],
    processes: int,
    progress: bool = False,
    total: int | None = None,
) -> Iterator[tuple[Verdicts, ...]]:
    """For each item its verdicts under each of the semantics."""
    for name in semantics:
        if name not in (PUBLISHED, REPAIRED):
            raise ValueError(f"semantics must be 'published' or 'repaired', not {name!r}")
    if processes < 1:
        raise ValueError(f"processes must be at least 1, not {processes}")
    chunks = _in_order(partial(_verify_chunk, semantics), _chunked(items), processes)
    verdicts = (verdicts for chunk in chunks for verdicts in chunk)
    try:
        shown = with_progress(verdicts, "verify", total, to=sys.stderr) if progress else verdicts
        yield from shown
    except BrokenProcessPool as error:
        raise CalifkitError(f"a process that verifies was killed (memory?): {error}") from error


def _verify_chunk(semantics: Sequence[str], chunk: list[Item]) -> list[tuple[Verdicts, ...]]:
    return [tuple(verify_one(*item, name) for name in semantics) for item in chunk]


def _chunked(items: Iterable[Item]) -> Iterator[list[Item]]:
    items = iter(items)
    while chunk := list(islice(items, _CHUNK)):
        yield chunk


def _in_order(
    function: Callable[[list], list], chunks: Iterator[list], processes: int
) -> Iterator[list]:
    """``map`` over processes with a bounded number of chunks under way; a lone chunk stays here."""
    start = list(islice(chunks, 2))
    chunks = chain(start, chunks)
    if processes == 1 or len(start) < 2:
        yield from map(function, chunks)
        return
    with ProcessPoolExecutor(
        processes, get_context("spawn"), initializer=_start_worker, initargs=(_nltk_path(),)
    ) as pool:
        waiting = deque()
        try:
            for chunk in chunks:
                waiting.append(pool.submit(function, chunk))
                if len(waiting) >= processes * _CHUNKS_PER_PROCESS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _nltk_path() -> list[str] | None:
    """NLTK's data path, which a program may have changed; None if it is not loaded."""
    return sys.modules["nltk.data"].path if "nltk.data" in sys.modules else None


def _start_worker(nltk_path: list[str] | None) -> None:
    if nltk_path is not None:
        import nltk

        nltk.data.path[:] = nltk_path


@dataclass
class Count:
    """How many verdicts there were, and how many of them said yes."""

    n: int = 0
    strict: int = 0
    loose: int = 0

    def add(self, strict: bool, loose: bool) -> None:
        self.n += 1
        self.strict += strict
        self.loose += loose


@dataclass(frozen=True)
class Accuracy:
    """A share with its confidence interval, and the shares among the responses that are there and
    among the finished ones; NaN where there are none."""

    value: float
    low: float
    high: float
    answered: float
    finished: float


ACCURACIES = (
    "prompt_level_strict_acc",
    "inst_level_strict_acc",
    "prompt_level_loose_acc",
    "inst_level_loose_acc",
)
"""As lm-eval calls them."""


@dataclass
class Summary:
    """Totals over responses, in memory that grows by a few numbers a prompt.

    ``n_cut`` responses were cut at the token limit; ``n_finished`` ended by themselves or do not
    say how. A missing response is neither, and follows nothing; ``n_answered`` are the others.
    """

    by_id: dict[str, Count] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)  # by first line of the message
    n_cut: int = 0
    n_finished: int = 0
    n_answered: int = 0
    says_cut: bool = False  # whether some row says how its response ended
    # By prompt, for all its responses, for those that are there and for the finished ones: their
    # hits and totals of each of ACCURACIES.
    _prompts: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, row: Row, verdicts: Verdicts) -> None:
        """Count the verdicts of one response."""
        for constraint, *passed in zip(
            row.constraints, verdicts.strict, verdicts.loose, strict=True
        ):
            self.by_id.setdefault(constraint.id, Count()).add(*passed)
        self.errors.update(error.split("\n", 1)[0][:200] for error in verdicts.errors)
        n, strict, loose = len(row.constraints), sum(verdicts.strict), sum(verdicts.loose)
        hits_and_totals = [[strict == n, strict, loose == n, loose], [1, n, 1, n]]
        of_prompt = self._prompts.setdefault(row.prompt.strip(), np.zeros((3, 2, 4), dtype=int))
        of_prompt[0] += hits_and_totals
        self.says_cut |= row.was_cut is not None
        if row.response is not None:
            self.n_answered += 1
            of_prompt[1] += hits_and_totals
        if row.was_cut:
            self.n_cut += 1
        elif row.response is not None:
            self.n_finished += 1
            of_prompt[2] += hits_and_totals

    @property
    def n_prompts(self) -> int:
        return len(self._prompts)

    @property
    def n_responses(self) -> int:
        return int(sum(of_prompt[0, 1, 0] for of_prompt in self._prompts.values()))

    @property
    def n_instructions(self) -> int:
        return sum(count.n for count in self.by_id.values())

    def by_suite(self) -> dict[str, Count]:
        """Verdicts per suite of constraints."""
        suites: dict[str, Count] = {}
        for id, count in self.by_id.items():
            suite = suites.setdefault(registry.spec(id).suite, Count())
            suite.n += count.n
            suite.strict += count.strict
            suite.loose += count.loose
        return {name: suites[name] for name in registry.SUITES if name in suites}

    def accuracies(self, level: float = 0.95, seed: int = 0) -> dict[str, Accuracy]:
        """The accuracies as shares, by their names in `ACCURACIES`.

        The intervals are bootstrapped over prompts, each with all its responses
        (`califkit.metrics.bootstrap_interval`).
        """
        by_prompt = np.array(list(self._prompts.values()))
        found = {}
        for i, name in enumerate(ACCURACIES):
            hits, totals = by_prompt[:, 0, :, i].T
            parts = by_prompt[:, 1:, :, i].sum(axis=0)
            found[name] = Accuracy(
                float(hits.sum() / totals.sum()),
                *bootstrap_interval(hits, totals, np.random.default_rng(seed), level=level),
                *(float(part / n) if n else float("nan") for part, n in parts),
            )
        return found


@dataclass
class Change:
    """What the repair of one id does to its verdicts: lost are those that passed the published
    check only, gained those that pass the repaired one only."""

    n: int = 0
    strict_lost: int = 0
    strict_gained: int = 0
    loose_lost: int = 0
    loose_gained: int = 0

    def add(self, strict: tuple[bool, bool], loose: tuple[bool, bool]) -> None:
        """Count verdicts in each mode, published and repaired."""
        self.n += 1
        self.strict_lost += strict == (True, False)
        self.strict_gained += strict == (False, True)
        self.loose_lost += loose == (True, False)
        self.loose_gained += loose == (False, True)

    @property
    def total(self) -> int:
        return self.strict_lost + self.strict_gained + self.loose_lost + self.loose_gained


@dataclass
class Report:
    """Totals by semantics, and what the repairs change if both were asked for (else nothing)."""

    summaries: dict[str, Summary]
    changes: dict[str, Change] = field(default_factory=dict)

    def add(self, row: Row, verdicts: Mapping[str, Verdicts]) -> None:
        """Count one response, with its verdicts by semantics."""
        for name, outcome in verdicts.items():
            self.summaries[name].add(row, outcome)
        if len(verdicts) == 1:
            return
        old, new = verdicts[PUBLISHED], verdicts[REPAIRED]
        strict = zip(old.strict, new.strict, strict=True)
        loose = zip(old.loose, new.loose, strict=True)
        for constraint, *pairs in zip(row.constraints, strict, loose, strict=True):
            if registry.spec(constraint.id).repaired is not None:
                self.changes.setdefault(constraint.id, Change()).add(*pairs)


def verify_responses(
    responses: Responses,
    output: Path | None = None,
    semantics: Sequence[str] = (PUBLISHED,),
    processes: int = 1,
    thinking: bool = False,
    progress: bool = False,
) -> dict[str | None, Report]:
    """Verify a response file and write the verdicts.

    Parameters
    ----------
    output
        JSONL file to write, one row an answer: ``key, line, prompt, instruction_id_list``,
        ``filter`` where lm-eval had one and, for each of the semantics, ``strict`` and ``loose``
        lists and ``errors``; ``missing`` where there was no response, ``cut`` where it says how it
        ended. It appears whole, at the end, or not at all.
    semantics
        One or both of ``published`` and ``repaired``.
    processes, progress
        As in `verify_many`.
    thinking
        As in `califkit.models.reasoning.answer_text`, which finds what is verified.

    Returns
    -------
    dict
        The totals of each filter of lm-eval; of None in other layouts.
    """
    reports = {name: Report({one: Summary() for one in semantics}) for name in responses.filters}
    rows, again = tee(responses)
    items = ((row.constraints, _answer(row.response, thinking)) for row in rows)
    each = _verify_each(items, tuple(semantics), processes, progress, len(responses))
    with replacing(output) if output else nullcontext() as file:
        for row, verdicts in zip(again, each, strict=True):
            by_name = dict(zip(semantics, verdicts, strict=True))
            reports[row.filter].add(row, by_name)
            if file is not None:
                file.write(json.dumps(_verdict_row(row, by_name)) + "\n")
    return reports


def _answer(response: str | None, thinking: bool) -> str | None:
    return None if response is None else answer_text(response, thinking)


def _verdict_row(answer: Row, verdicts: Mapping[str, Verdicts]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "key": answer.key,
        "line": answer.line,
        "prompt": answer.prompt,
        "instruction_id_list": [constraint.id for constraint in answer.constraints],
    }
    for name, outcome in verdicts.items():
        lists = asdict(outcome)
        if len(verdicts) == 1:
            row |= {"semantics": name} | lists
        else:
            row[name] = lists
    if answer.filter is not None:
        row["filter"] = answer.filter
    if answer.was_cut is not None:
        row["cut"] = answer.was_cut
    return row | {"missing": answer.response is None}
