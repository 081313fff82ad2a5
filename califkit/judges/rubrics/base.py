"""What the rubric benchmarks share: items, requests to a judge, verdicts, and the loop over them.

A *unit* is what gets one verdict: a row of AdvancedIF, an item of FollowBench, a question of
ComplexBench. A unit without a usable verdict counts as not satisfied, stays in the denominator and
is counted beside the metric; ``strict`` raises instead. Judges are not known here:
`judge_responses` is handed a function that answers requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from califkit.judges.rubrics.files import Loaded, RubricError, digest, repeated
from califkit.judges.rubrics.judge_text import Messages, Unreadable, without_reasoning

Status = Literal["ok", "unparsable", "missing", "refused", "truncated"]

STATUSES: tuple[str, ...] = get_args(Status)


class Item(Protocol):
    """What a benchmark asks the policy once."""

    @property
    def id(self) -> str: ...


@dataclass(frozen=True)
class Request:
    """One call to a judge.

    Attributes
    ----------
    id
        The unit that it decides.
    messages, schema
        What to send. The schema has types, enum, required, properties and items only.
    version
        Hash of wording and schema; verdicts of different versions should not be mixed.
    read
        The judge's text -> value of the verdict. Raises `Unreadable` where there is none.
    """

    id: str
    messages: Messages
    schema: Mapping[str, Any]
    version: str
    read: Callable[[str], Any] = field(compare=False)

    @property
    def hash(self) -> str:
        """SHA-256 of all that the judge is given."""
        return digest([self.messages, self.schema])


@dataclass(frozen=True)
class Reply:
    """What came back for a request: the judge's text, or no usable text and why."""

    text: str | None
    status: Status = "ok"


@dataclass(frozen=True)
class Verdict:
    """The verdict on a unit; `value` is the benchmark's own, None where there is nothing."""

    id: str
    status: Status
    value: Any = None
    reason: str = ""


@dataclass(frozen=True)
class Record:
    """All there is to keep about a judged unit.

    `response` is the answer without reasoning; `request_sha256` and `text` are None where no judge
    was asked.
    """

    benchmark: str
    item: str
    prompt: Messages
    response: str | None
    request_sha256: str | None
    text: str | None
    verdict: Verdict

    def as_row(self) -> dict[str, Any]:
        """Plain types, for a line of JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Scores:
    """Numbers of one evaluation.

    Attributes
    ----------
    metrics
        By the names of `califkit.exhibits.paper.RUBRIC_METRICS`; None where no unit enters the
        metric.
    counts
        ``n`` units, ``n_missing``, ``n_unparsable``, ``n_refused``, ``n_truncated``, and more.
    released
        What the released scorer makes of the same answers; an ``error`` where it would crash.
    details
        The numbers behind the metrics.
    """

    metrics: dict[str, float | None]
    counts: dict[str, int]
    released: dict[str, Any]
    details: dict[str, Any]


class Benchmark(Protocol):
    """The one entry for an evaluation loop.

    `responses` maps item ids to what the policy wrote; reasoning is removed inside. A response that
    is None or absent leaves its units missing; an empty answer satisfies nothing, unasked.
    """

    @property
    def name(self) -> str: ...

    def load(self, source: str | Path | None = None) -> Loaded:
        """Native data; None is the small set that comes with the package."""

    def prompts(self, items: Sequence[Any]) -> list[Messages]:
        """What the policy is asked, one conversation an item."""

    def units(self, items: Sequence[Any]) -> list[tuple[str, Any]]:
        """Ids of all units with their items."""

    def rule_verdicts(
        self, items: Sequence[Any], responses: Mapping[str, str | None]
    ) -> list[Verdict]:
        """Verdicts on the units that need no judge."""

    def judge_requests(
        self, items: Sequence[Any], responses: Mapping[str, str | None]
    ) -> list[Request]:
        """One request for every other unit."""

    def score(
        self, items: Sequence[Any], verdicts: Iterable[Verdict], strict: bool = False
    ) -> Scores:
        """Metrics over all units of the items, in whatever order the verdicts come."""


Ask = Callable[[Sequence[Request]], Sequence[Reply]]


def parse(request: Request, reply: Reply | str) -> Verdict:
    """The verdict in a judge's reply. The text is data: it is read, never run."""
    if isinstance(reply, str):
        reply = Reply(reply)
    if reply.status not in STATUSES:
        raise RubricError(f"{request.id}: status {reply.status!r} is none of {list(STATUSES)}")
    if reply.status != "ok":
        return Verdict(request.id, reply.status, reason="the judge gave no complete answer")
    if reply.text is None:
        return Verdict(request.id, "missing", reason="no answer from the judge")
    try:
        return Verdict(request.id, "ok", request.read(without_reasoning(reply.text)))
    except Unreadable as problem:
        return Verdict(request.id, "unparsable", problem.value, str(problem))


def judge_responses(
    benchmark: Benchmark,
    items: Sequence[Any],
    responses: Mapping[str, str | None],
    ask: Ask,
) -> list[Record]:
    """Judge every unit once, by rule where there is one, else by `ask`.

    Raises
    ------
    RubricError
        For an item given twice, a response to an unknown item or one that is no text, before
        anything is asked; and if `ask` does not give one reply a request.
    """
    if unknown := sorted(set(responses) - {item.id for item in items}):
        raise RubricError(f"{benchmark.name}: responses to unknown items: {unknown[:5]}")
    if twice := repeated(item.id for item in items):
        raise RubricError(f"{benchmark.name}: item {twice!r} is given twice")
    decided: dict[str, tuple[Verdict, str | None, str | None]] = {
        verdict.id: (verdict, None, None) for verdict in benchmark.rule_verdicts(items, responses)
    }
    requests = benchmark.judge_requests(items, responses)
    replies = list(ask(requests))
    if len(replies) != len(requests):
        raise RubricError(f"{len(replies)} replies to {len(requests)} requests")
    for request, reply in zip(requests, replies, strict=True):
        decided[request.id] = (parse(request, reply), request.hash, reply.text)
    records = []
    for unit, item in benchmark.units(items):
        verdict, sha256, text = decided[unit]
        (prompt,) = benchmark.prompts([item])
        answer = answer_to(item, responses)
        records.append(Record(benchmark.name, item.id, prompt, answer, sha256, text, verdict))
    return records


def answer_to(item: Item, responses: Mapping[str, str | None]) -> str | None:
    """The final answer to an item, None if there is no response.

    Raises
    ------
    RubricError
        If the response is not text.
    """
    response = responses.get(item.id)
    if response is None:
        return None
    if not isinstance(response, str):
        raise RubricError(f"item {item.id!r}: the response must be text, not {response!r}")
    return without_reasoning(response)


def unanswered(unit: str, answer: str | None, nothing: Any) -> Verdict | None:
    """Verdict on a unit whose answer is absent or empty (`nothing` satisfied), None for others."""
    if answer is None:
        return Verdict(unit, "missing", reason="no response")
    if not answer.strip():
        return Verdict(unit, "ok", nothing, "the answer is empty")
    return None


def match_verdicts(
    units: Sequence[str], verdicts: Iterable[Verdict], strict: bool
) -> dict[str, Verdict]:
    """Verdicts by unit, in the order of the units, ``missing`` where there is none.

    Raises
    ------
    RubricError
        Without units; for a unit or verdict given twice, a verdict on an unknown unit, a status
        that does not exist, and with `strict` for every unit without a usable verdict.
    """
    if not units:
        raise RubricError("no items to score")
    if twice := repeated(units):
        raise RubricError(f"unit {twice!r} is given twice")
    known, found = set(units), {}
    for verdict in verdicts:
        if verdict.id not in known:
            raise RubricError(f"verdict on the unknown unit {verdict.id!r}")
        if verdict.id in found:
            raise RubricError(f"two verdicts on unit {verdict.id!r}")
        if verdict.status not in STATUSES:
            raise RubricError(f"unit {verdict.id!r}: unknown status {verdict.status!r}")
        found[verdict.id] = verdict
    matched = {unit: found.get(unit) or Verdict(unit, "missing") for unit in units}
    if strict and (bad := [v for v in matched.values() if v.status != "ok"]):
        raise RubricError(
            f"{len(bad)} of {len(units)} units have no usable verdict, the first {bad[0].id!r}: "
            f"{bad[0].status} {bad[0].reason}".rstrip()
        )
    return matched


def status_counts(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """How many units there are, and how many have each status other than ``ok``."""
    counts = Counter(verdict.status for verdict in verdicts)
    return {"n": counts.total()} | {f"n_{s}": counts[s] for s in STATUSES if s != "ok"}


def percent(hits: float, total: int) -> float | None:
    """Share in percent, None of nothing."""
    return 100.0 * hits / total if total else None
