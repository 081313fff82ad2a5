"""The constraint ids: checker, parameters, instruction sentence, example; filled by decorators.

A checker takes a `Text` and the parameters by name, and answers True when the response follows the
constraint. Its signature says what the parameters are:

    @verifier(
        "length_constraints:number_words",
        instruction="Answer with {relation} {num_words} words.",
        example=Example({"num_words": 3, "relation": "less than"}, "two words", "now three words"),
    )
    def number_words(text: Text, num_words: Count, relation: Relation) -> bool:
        return compare(len(text.words), relation, num_words)

A checker never draws a parameter, never reads global state and may raise: the caller turns an
exception into "not followed" with the reason.
"""

from __future__ import annotations

import difflib
import inspect
import re
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from califkit import CalifkitError
from califkit.verifiers import own
from califkit.verifiers.text import Text

RELATIONS = ("less than", "at least")
PUBLISHED_SUITES = ("ifeval", "iftrain", "ifbench")
SUITES = (*PUBLISHED_SUITES, "own")

Checker = Callable[..., bool]


class ConstraintError(CalifkitError, ValueError):
    """A constraint that cannot be built; names the id, the key and the value."""


class UnknownConstraintError(ConstraintError):
    """An id that nothing registers; near names are listed."""


@dataclass(frozen=True)
class Param:
    """What values one keyword argument of a constraint takes, beyond the type in the signature.

    Written as ``Annotated[int, Param(minimum=0)]``. A parameter with a default in the signature
    may be left out; upstream draws missing values at random, we never do.

    `allow_empty`: whether ``""`` and ``[]`` are accepted; `letter`: whether a text has to be one
    character, white space around it and case aside. The last three are filled in from the
    signature; ``int`` takes floats equal to integers, ``float`` integers, ``list`` strings only.
    """

    choices: tuple[Any, ...] | None = None
    minimum: int | None = None
    allow_empty: bool = False
    letter: bool = False
    types: tuple[type, ...] = ()
    required: bool = True
    default: Any = None

    def convert(self, value: Any) -> Any:
        """The value as the checker gets it; ValueError says what is wrong with it."""
        value = _as_type(value, self.types)
        if self.choices is not None and value not in self.choices:
            raise ValueError("must be one of " + ", ".join(map(repr, self.choices)))
        if self.minimum is not None and value < self.minimum:
            raise ValueError(f"must be at least {self.minimum}")
        if not self.allow_empty and isinstance(value, (str, list)) and not value:
            raise ValueError("must not be empty")
        if self.letter and len(value.strip().lower()) != 1:
            raise ValueError("must be a single character")
        return value

    def describe(self) -> str:
        """Type, range and whether it is required, in words."""
        words = [" or ".join(_TYPE_NAMES[t] for t in self.types)]
        if self.choices is not None:
            words.append("one of " + ", ".join(map(str, self.choices)))
        if self.minimum is not None:
            words.append(f"at least {self.minimum}")
        if self.letter:
            words.append("a single character")
        if not self.required:
            words.append("optional")
        return ", ".join(words)


Count = Annotated[int, Param(minimum=0)]
Positive = Annotated[int, Param(minimum=1)]
Relation = Annotated[str, Param(choices=RELATIONS)]
Letter = Annotated[str, Param(letter=True)]
AnyText = Annotated[str, Param(allow_empty=True)]

_TYPE_NAMES = {int: "an integer", float: "a number", str: "a string", list: "a list of strings"}


def _as_type(value: Any, accepted: tuple[type, ...]) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if int in accepted and is_number and (isinstance(value, int) or value.is_integer()):
        return int(value)
    if float in accepted and is_number:
        try:
            return float(value)
        except OverflowError:
            raise ValueError("is too large") from None
    if str in accepted and isinstance(value, str):
        return value
    if list in accepted and isinstance(value, (list, tuple)):
        if all(isinstance(item, str) for item in value):
            return list(value)
        raise ValueError("must be a list of strings")
    raise ValueError("must be " + " or ".join(_TYPE_NAMES[t] for t in accepted))


def _params(id: str, checker: Checker) -> dict[str, Param]:
    """The parameters of a checker, read from its signature; the first one is the text."""
    hints = get_type_hints(checker, include_extras=True)
    given = list(inspect.signature(checker).parameters.values())[1:]
    return {p.name: _param(f"{id}: parameter {p.name!r}", hints.get(p.name), p) for p in given}


def _param(name: str, hint: Any, parameter: inspect.Parameter) -> Param:
    alternatives = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    param, types = Param(), []
    for alternative in alternatives:
        if get_origin(alternative) is Annotated:
            alternative, param = get_args(alternative)
        if alternative is not NoneType:
            types.append(list if alternative == list[str] else alternative)
    if not set(types) <= _TYPE_NAMES.keys():
        raise ConstraintError(f"{name} needs a type: int, float, str, list[str] or one of them")
    required = parameter.default is parameter.empty
    default = None if required else parameter.default
    return replace(param, types=tuple(types), required=required, default=default)


@dataclass(frozen=True)
class Example:
    """Keyword arguments with one response that passes and one that fails."""

    kwargs: Mapping[str, Any]
    passes: str
    fails: str


@dataclass(frozen=True)
class Contrast:
    """Responses on which the published and the repaired check disagree; at least one is given.

    `lost` passes the published check only, `gained` the repaired one only.
    """

    kwargs: Mapping[str, Any]
    lost: str | None = None
    gained: str | None = None


@dataclass(frozen=True)
class Spec:
    """All that is known of one constraint id.

    `instruction` is a ``str.format`` template over the keyword arguments. Where the published check
    decides against what the instruction asks, `defect` says how, `repair` what the repaired one
    does about it, and `contrast` shows it; all None: the same check serves both semantics.
    `ignores_extra` marks ids that upstream lets carry any keyword argument; `needs` is called when
    a constraint is built and raises ConstraintError where data that the check needs is missing.
    """

    id: str
    suite: str
    params: Mapping[str, Param]
    instruction: str
    checker: Checker
    example: Example
    defect: str | None = None
    repaired: Checker | None = None
    repair: str | None = None
    contrast: Contrast | None = None
    ignores_extra: bool = False
    needs: Callable[[], None] | None = None

    def checker_for(self, semantics: str) -> Checker:
        if semantics == "published":
            return self.checker
        if semantics == "repaired":
            return self.repaired or self.checker
        raise ValueError(f"semantics must be 'published' or 'repaired', not {semantics!r}")

    def bind(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Validated keyword arguments with defaults filled in; None values alone are dropped."""
        given = {key: value for key, value in kwargs.items() if value is not None}
        unknown = [key for key in given if key not in self.params]
        if unknown and not self.ignores_extra:
            known = ", ".join(self.params) or "none"
            raise ConstraintError(
                f"{self.id}: unknown parameter {unknown[0]!r} = {given[unknown[0]]!r} "
                f"(parameters: {known})"
            )
        bound = {}
        for key, param in self.params.items():
            if key in given:
                try:
                    bound[key] = param.convert(given[key])
                except ValueError as error:
                    raise ConstraintError(
                        f"{self.id}: parameter {key!r} = {given[key]!r} {error}"
                    ) from None
            elif param.required:
                raise ConstraintError(f"{self.id}: parameter {key!r} is missing")
            elif param.default is not None:
                bound[key] = param.default
        return bound

    def instruct(self, kwargs: Mapping[str, Any]) -> str:
        """The instruction sentence; a list is shown as quoted words."""
        shown = self.bind(kwargs)
        for key, value in shown.items():
            if isinstance(value, list):
                shown[key] = ", ".join(f'"{item}"' for item in value)
        return self.instruction.format(**shown)


REGISTRY: dict[str, Spec] = {}


def verifier(
    id: str,
    *,
    instruction: str,
    example: Example,
    defect: str | None = None,
    ignores_extra: bool = False,
    needs: Callable[[], None] | None = None,
    suite: str = "own",
) -> Callable[[Checker], Checker]:
    """Register the decorated checker under `id`; several ids may share one. See `Spec`.

    `ConstraintError` for an id that is not of the form ``type:name`` or is taken, a parameter
    without a type, an instruction that names something else, or an example that does not hold.
    """
    if not _ID.fullmatch(id):
        raise ConstraintError(f"{id!r}: a constraint id has the form type:name")

    def register(checker: Checker) -> Checker:
        # A file that is imported under two names registers the same line twice.
        if id in REGISTRY and _place(checker) != _place(REGISTRY[id].checker):
            raise ConstraintError(f"{id}: this id is taken by {_place(REGISTRY[id].checker)}")
        params = {} if ignores_extra else _params(id, checker)
        options = {"defect": defect, "ignores_extra": ignores_extra, "needs": needs}
        entry = Spec(id, suite, params, instruction, checker, example, **options)
        if suite == "own":
            _try(entry)
        REGISTRY[id] = entry
        return checker

    return register


_ID = re.compile(r"[^\s:]+:[^\s:]+")


def _place(checker: Checker) -> str:
    code = inspect.unwrap(checker).__code__
    return f"{code.co_filename}, line {code.co_firstlineno}"


def _try(entry: Spec) -> None:
    """Whether instruction and example fit the checker; the published ones have tests for that."""
    for _, name, _, _ in string.Formatter().parse(entry.instruction):
        if name is not None and name not in entry.params:
            raise ConstraintError(f"{entry.id}: {name!r} in the instruction is not a parameter")
    kwargs = entry.bind(entry.example.kwargs)
    for response, expected in ((entry.example.passes, True), (entry.example.fails, False)):
        found = entry.checker(Text(response), **kwargs)
        if found is not expected:
            raise ConstraintError(
                f"{entry.id}: the check of the example {response!r} gives {found!r}, not {expected}"
            )


def repairs(
    published: Checker,
    repair: str,
    lost: str | None = None,
    gained: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Callable[[Checker], Checker]:
    """Register the decorated checker as the repaired one of the id that `published` checks.

    `repair` says what it does about the defect; the others as in `Contrast`. `kwargs` are those of
    the id's example unless given.
    """

    def register(checker: Checker) -> Checker:
        (entry,) = (entry for entry in REGISTRY.values() if entry.checker is published)
        if entry.defect is None:
            raise ValueError(f"{entry.id}: a repair needs the defect it repairs")
        contrast = Contrast(entry.example.kwargs if kwargs is None else kwargs, lost, gained)
        REGISTRY[entry.id] = replace(entry, repaired=checker, repair=repair, contrast=contrast)
        return checker

    return register


def spec(id: str) -> Spec:
    """The registered `Spec` of `id`; UnknownConstraintError lists near names."""
    if id not in REGISTRY:
        own.import_files()
    if id not in REGISTRY:
        near = difflib.get_close_matches(str(id), REGISTRY, n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise UnknownConstraintError(f"unknown constraint id {id!r}{hint}")
    return REGISTRY[id]


def suite_ids(suite: str) -> list[str]:
    """Ids of one of the `SUITES` in order of registration."""
    if suite == "own":
        own.import_files()
    if suite not in SUITES:
        raise ValueError(f"suite must be one of {', '.join(SUITES)}, not {suite!r}")
    return [id for id, entry in REGISTRY.items() if entry.suite == suite]


def compare(count: float, relation: str, threshold: float) -> bool:
    """Whether `count` is ``"less than"`` (strictly) or ``"at least"`` `threshold`."""
    if relation == "less than":
        return count < threshold
    if relation == "at least":
        return count >= threshold
    raise ValueError(f"relation must be 'less than' or 'at least', not {relation!r}")


SHORT_OR_COPIED = frozenset(
    {
        *("format:options", "detectable_format:constrained_response", "combination:repeat_prompt"),
        *("repeat:repeat_change", "repeat:repeat_simple", "repeat:repeat_span"),
        *("copy:repeat_phrase", "copy:copying_simple", "copy:copy", "copy:copying_multiple"),
        "new:copy_span_idx",
    }
)
"""Constraints that ask for a short, copied or repeated answer, which is then no sign of hacking."""


def asks_for_short_or_copied(ids: Iterable[str]) -> bool:
    """Whether one of a prompt's constraints is among `SHORT_OR_COPIED`."""
    return not SHORT_OR_COPIED.isdisjoint(ids)
