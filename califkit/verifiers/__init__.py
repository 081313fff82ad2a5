"""Does this response follow constraint k? Pure functions of text: no model, no network.

>>> no_comma = Constraint("punctuation:no_comma")
>>> verify(no_comma, "Short and clear.")
True
>>> two = Constraint("length_constraints:number_words", {"num_words": 2, "relation": "less than"})
>>> verify_all([no_comma, two], "Short and clear.")
[True, False]

`verifier` registers one of your own, in a file of yours; see ``docs/verifiers.md``. The published
ids are in the modules of their suites (`califkit.verifiers.ifeval` and its neighbours).

Two semantics: ``"published"`` (default) gives the verdicts of the published evaluation and reward
code, quirks included; ``"repaired"`` fixes the defects that the registry names.
Source of the ids: IFEval (25), IFBench's training constraints (29) and IFBench (58).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal

from califkit.verifiers import (  # noqa: F401 (they register)
    ifbench,
    ifbench_custom,
    ifbench_format,
    ifeval,
    iftrain,
    iftrain_copy,
    registry,
)
from califkit.verifiers.registry import (
    REGISTRY,
    ConstraintError,
    Count,
    Example,
    Param,
    Positive,
    Relation,
    UnknownConstraintError,
    verifier,
)
from califkit.verifiers.text import Text, loose_variants

__all__ = [
    "REGISTRY",
    "Constraint",
    "ConstraintError",
    "Count",
    "Example",
    "Param",
    "Positive",
    "Relation",
    "Text",
    "UnknownConstraintError",
    "Verdict",
    "check",
    "fraction_followed",
    "registry",
    "strip_reasoning",
    "verifier",
    "verify",
    "verify_all",
]

Mode = Literal["strict", "loose"]
Semantics = Literal["published", "repaired"]


@dataclass(frozen=True)
class Constraint:
    """A registered id with its keyword arguments, validated when it is made.

    None values are dropped, floats equal to integers taken as integers. `UnknownConstraintError`
    lists near names; `ConstraintError` names an unknown or missing key, or a wrong value.
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.kwargs, Mapping):
            raise ConstraintError(f"{self.id}: kwargs must be a mapping, not {self.kwargs!r}")
        spec = registry.spec(self.id)
        if spec.needs is not None:
            spec.needs()
        object.__setattr__(self, "kwargs", spec.bind(self.kwargs))

    @property
    def instruction(self) -> str:
        """The constraint as a sentence for the model."""
        return registry.spec(self.id).instruct(self.kwargs)


@dataclass(frozen=True)
class Verdict:
    """Outcome of one check. An exception in the checker is never "followed"."""

    passed: bool
    error: str | None = None


class _Analysis:
    """The texts of one response, strict and loose, each analysed once for all constraints."""

    def __init__(self, response: str) -> None:
        if not isinstance(response, str):
            raise TypeError(f"response must be a string, not {response!r}")
        self.response = response
        self.raw = Text(response)

    @cached_property
    def _cuts(self) -> list[Text]:
        variants = loose_variants(self.response)
        return [Text(variant) for variant in variants if variant != self.response]

    def texts(self, mode: Mode) -> Iterator[Text]:
        """The non-blank texts of which one has to pass."""
        if self.raw.stripped:
            yield self.raw
        if mode == "loose":
            yield from self._cuts


# Consecutive calls on one response share its analysis; a batch has few responses in flight.
_analyse = lru_cache(maxsize=16)(_Analysis)
_KEPT_MAX_CHARS = 50_000  # The analysis of a long response is not kept: it can take 100 MB.


def _analysis(response: str, mode: Mode) -> _Analysis:
    if mode not in ("strict", "loose"):
        raise ValueError(f"mode must be 'strict' or 'loose', not {mode!r}")
    is_long = isinstance(response, str) and len(response) > _KEPT_MAX_CHARS
    return _Analysis(response) if is_long else _analyse(response)


def check(
    constraint: Constraint,
    response: str,
    mode: Mode = "strict",
    semantics: Semantics = "published",
) -> Verdict:
    """Whether `response` follows `constraint`, and the reason if the check itself failed.

    ``strict`` judges the response as it is, ``loose`` eight variants of it, of which one has to
    pass. Blank text follows nothing. As upstream, the first exception ends the search.
    """
    return _check(constraint, _analysis(response, mode), mode, semantics)


def _check(
    constraint: Constraint, analysis: _Analysis, mode: Mode, semantics: Semantics
) -> Verdict:
    checker = registry.spec(constraint.id).checker_for(semantics)
    try:
        return Verdict(any(checker(text, **constraint.kwargs) for text in analysis.texts(mode)))
    except Exception as error:  # Whatever a checker raises means "not followed", with the reason.
        return Verdict(False, f"{constraint.id}: {type(error).__name__}: {error}")


def verify(
    constraint: Constraint,
    response: str,
    mode: Mode = "strict",
    semantics: Semantics = "published",
) -> bool:
    """The verdict of `check` alone."""
    return check(constraint, response, mode, semantics).passed


def verify_all(
    constraints: Sequence[Constraint],
    response: str,
    mode: Mode = "strict",
    semantics: Semantics = "published",
) -> list[bool]:
    """One verdict per constraint, in order; the analysis of the response is shared."""
    analysis = _analysis(response, mode)
    return [_check(constraint, analysis, mode, semantics).passed for constraint in constraints]


_ANSWER_TAG = re.compile(r"</?answer>")


def strip_reasoning(text: str, unterminated: Literal["empty", "keep"] = "empty") -> str:
    """The answer part of a model's output.

    Chat markers ``<|assistant|>`` and ``<answer>`` tags are deleted and what stands before the
    last ``</think>`` is dropped. Reasoning that was opened and never closed leaves no answer:
    the result is ``""``, or with ``unterminated="keep"`` the text as it is (what the published
    training reward does; open-instruct, ``remove_thinking``).

    >>> strip_reasoning("<think>a, b</think>No comma here")
    'No comma here'
    >>> strip_reasoning("<think>never closed")
    ''
    """
    if unterminated not in ("empty", "keep"):
        raise ValueError(f"unterminated must be 'empty' or 'keep', not {unterminated!r}")
    answer = text.replace("<|assistant|>", "").strip().rpartition("</think>")[2]
    if unterminated == "empty" and "<think>" in answer:
        return ""
    return _ANSWER_TAG.sub("", answer).strip()


def fraction_followed(
    constraints: Iterable[Constraint],
    prediction: str,
    semantics: Semantics = "published",
    unterminated: Literal["empty", "keep"] = "keep",
) -> float:
    """Share of the constraints that the answer in `prediction` follows: the training reward.

    Reasoning is stripped, the check is strict, every constraint weighs the same; no constraints
    give 0.0. Source: open-instruct, IFEvalG reward.
    """
    answer = strip_reasoning(prediction, unterminated)
    verdicts = verify_all(list(constraints), answer, "strict", semantics)
    return sum(verdicts) / max(len(verdicts), 1)
