"""What comes out of judging: a value with the answer it was read from, or the reason for none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from califkit.judges.client import Usage
from califkit.judges.parsing import Unscored
from califkit.judges.prompts import Question
from califkit.metrics import pair_outcome

Status = Literal["ok", "refused", "truncated", "unparsable", "out_of_range", "failed"]


@dataclass(frozen=True)
class Verdict:
    """What a judge said of one question.

    Attributes
    ----------
    status
        ``ok``, or why there is no value: ``refused`` (by the model or a filter), ``truncated``
        (token limit, also with double room), ``unparsable``, ``out_of_range``, ``failed`` (the
        endpoint, after all attempts).
    value
        The verdict if ``ok``, else None.
    reason
        More about why it is unscored.
    text
        The judge's answer as it came.
    model
        The name of the model that the endpoint says has answered.
    prompt_version
        Hash of the prompt's wording and schema.
    usage
        What the answer took, from the cache too.
    cached
        Whether it was there before.
    """

    status: Status
    value: Any
    reason: str
    text: str
    model: str
    prompt_version: str
    usage: Usage
    cached: bool


@dataclass(frozen=True)
class PairVerdict:
    """Two responses compared in both orders: ``orders[0]`` has a first, ``orders[1]`` has b first.

    The values of the orders are ``first``, ``second`` or ``tie``, or None where unscored.
    """

    orders: tuple[Verdict, Verdict]

    @property
    def outcome(self) -> str:
        """``win`` or ``loss`` of a if both orders name the same response, else ``tie``."""
        return pair_outcome(*(verdict.value for verdict in self.orders))

    @property
    def n_unscored(self) -> int:
        """In how many of the two orders there is no verdict (such a pair is a tie)."""
        return sum(verdict.status != "ok" for verdict in self.orders)

    @property
    def is_consistent(self) -> bool:
        """Whether both orders say the same of the responses, two ties included."""
        return tuple(v.value for v in self.orders) in (
            ("first", "second"),
            ("second", "first"),
            ("tie", "tie"),
        )


def unscored(verdicts: Sequence[Verdict]) -> Counter[str]:
    """How many verdicts have each status other than ``ok``."""
    return Counter(v.status for v in verdicts if v.status != "ok")


def read_row(row: Mapping[str, Any], question: Question) -> Verdict:
    """The verdict in a row of the cache, read anew."""
    status, value, reason = "ok", None, ""
    try:
        value = question.read(row["text"])
    except Unscored as problem:
        status, reason = problem.status, str(problem)
    return Verdict(
        status=status,
        value=value,
        reason=reason,
        text=row["text"],
        model=row["model"],
        prompt_version=row["prompt_version"],
        usage=Usage(**row["usage"]),
        cached=True,
    )
