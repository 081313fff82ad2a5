"""The constraint ids: checker, parameters, instruction sentence, example; filled by decorators.

To add a constraint, write a checker in its family file. It takes a `Text` and the parameters by
name, and answers True when the response follows the constraint:

    @constraint(
        "length_constraints:number_words",
        family="ifeval",
        instruction="Answer with {relation} {num_words} words.",
        params={"num_words": Param(int, minimum=0), "relation": RELATION},
        example=Example({"num_words": 3, "relation": "less than"}, "two words", "now three words"),
    )
    def number_words(text: Text, num_words: int, relation: str) -> bool:
        return compare(text.n_words, relation, num_words)

A checker never draws a parameter, never reads global state and may raise: the caller turns an
exception into "not followed" with the reason.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Any

from califkit import CalifkitError

RELATIONS = ("less than", "at least")
FAMILIES = ("ifeval", "iftrain", "ifbench")

_REQUIRED: Any = object()


class ConstraintError(CalifkitError, ValueError):
    """A constraint that cannot be built; names the id, the key and the value."""


class UnknownConstraintError(ConstraintError):
    """An id that no family registers; near names are listed."""


@dataclass(frozen=True)
class Param:
    """One keyword argument of a constraint.

    Parameters
    ----------
    type : type or union
        ``int`` takes floats equal to integers, ``float`` takes integers, ``list`` means a list of
        strings. A union of these (``str | list``) takes either.
    required : bool
        Whether a value must be given. Upstream draws missing values at random; we never do.
    default : object
        Value of a parameter that is not required. Giving one makes the parameter optional.
    choices : tuple, optional
        The accepted values.
    minimum : int, optional
        Smallest accepted number.
    allow_empty : bool
        Whether ``""`` and ``[]`` are accepted.
    """

    type: type | UnionType
    required: bool = True
    default: Any = _REQUIRED
    choices: tuple[Any, ...] | None = None
    minimum: int | None = None
    allow_empty: bool = False

    def __post_init__(self) -> None:
        if self.default is not _REQUIRED:
            object.__setattr__(self, "required", False)

    def convert(self, value: Any) -> Any:
        """The value as the checker gets it; ValueError says what is wrong with it."""
        value = _as_type(value, self.type)
        if self.choices is not None and value not in self.choices:
            raise ValueError("must be one of " + ", ".join(map(repr, self.choices)))
        if self.minimum is not None and value < self.minimum:
            raise ValueError(f"must be at least {self.minimum}")
        if not self.allow_empty and isinstance(value, (str, list)) and not value:
            raise ValueError("must not be empty")
        return value

    def describe(self) -> str:
        """Type, range and whether it is required, in words."""
        types = self.type.__args__ if isinstance(self.type, UnionType) else (self.type,)
        words = [" or ".join(_TYPE_NAMES[t] for t in types)]
        if self.choices is not None:
            words.append("one of " + ", ".join(map(str, self.choices)))
        if self.minimum is not None:
            words.append(f"at least {self.minimum}")
        if not self.required:
            words.append("optional")
        return ", ".join(words)


_TYPE_NAMES = {int: "an integer", float: "a number", str: "a string", list: "a list of strings"}


def _as_type(value: Any, wanted: type | UnionType) -> Any:
    accepted = wanted.__args__ if isinstance(wanted, UnionType) else (wanted,)
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


RELATION = Param(str, choices=RELATIONS)


@dataclass(frozen=True)
class Example:
    """Keyword arguments with one response that passes and one that fails."""

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    passes: str = ""
    fails: str = ""


@dataclass(frozen=True)
class Contrast:
    """Responses on which the published and the repaired check disagree; at least one is given.

    `wrongly_passes` passes the published check only, `wrongly_fails` the repaired one only.
    `kwargs` are those of the id's example unless given.
    """

    wrongly_passes: str | None = None
    wrongly_fails: str | None = None
    kwargs: Mapping[str, Any] | None = None


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
    family: str
    params: Mapping[str, Param]
    instruction: str
    checker: Callable[..., bool]
    example: Example
    defect: str | None = None
    repaired: Callable[..., bool] | None = None
    repair: str | None = None
    contrast: Contrast | None = None
    ignores_extra: bool = False
    needs: Callable[[], None] | None = None

    def checker_for(self, semantics: str) -> Callable[..., bool]:
        """The check of the given semantics, ``"published"`` or ``"repaired"``."""
        if semantics == "published":
            return self.checker
        if semantics == "repaired":
            return self.repaired or self.checker
        raise ValueError(f"semantics must be 'published' or 'repaired', not {semantics!r}")

    def bind(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Validated keyword arguments with defaults filled in; `kwargs` itself is not changed.

        None values are dropped, and nothing else: 0, False and "" are values.

        Raises
        ------
        ConstraintError
            Unknown or missing key, or a value of the wrong type or range.
        """
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
            elif param.default is not _REQUIRED:
                bound[key] = param.default
        return bound

    def instruct(self, kwargs: Mapping[str, Any]) -> str:
        """The instruction sentence for these keyword arguments."""
        shown = {key: _shown(value) for key, value in self.bind(kwargs).items()}
        return self.instruction.format(**shown)


def _shown(value: Any) -> Any:
    """A value as a sentence shows it: a list as quoted words."""
    return ", ".join(f'"{item}"' for item in value) if isinstance(value, list) else value


REGISTRY: dict[str, Spec] = {}


def constraint(
    id: str,
    *,
    family: str,
    instruction: str,
    params: Mapping[str, Param] | None = None,
    example: Example | None = None,
    defect: str | None = None,
    ignores_extra: bool = False,
    needs: Callable[[], None] | None = None,
) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    """Register the decorated checker under `id`; several ids may share one checker."""
    if family not in FAMILIES:
        raise ValueError(f"{id}: unknown family {family!r}")
    if id in REGISTRY:
        raise ValueError(f"{id}: registered twice")

    def register(checker: Callable[..., bool]) -> Callable[..., bool]:
        REGISTRY[id] = Spec(
            id=id,
            family=family,
            params=dict(params or {}),
            instruction=instruction,
            checker=checker,
            example=example or Example(),
            defect=defect,
            ignores_extra=ignores_extra,
            needs=needs,
        )
        return checker

    return register


def repairs(
    id: str, repair: str, contrast: Contrast
) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    """Register the decorated checker as the repaired one of `id`, which must name its defect.

    `repair` says what it does differently, `contrast` gives responses that show it.
    """

    def register(checker: Callable[..., bool]) -> Callable[..., bool]:
        entry = REGISTRY[id]
        if entry.defect is None:
            raise ValueError(f"{id}: a repair needs the defect it repairs")
        kwargs = entry.example.kwargs if contrast.kwargs is None else contrast.kwargs
        REGISTRY[id] = replace(
            entry, repaired=checker, repair=repair, contrast=replace(contrast, kwargs=kwargs)
        )
        return checker

    return register


def spec(id: str) -> Spec:
    """The registered `Spec` of `id`; UnknownConstraintError lists near names."""
    try:
        return REGISTRY[id]
    except KeyError:
        near = difflib.get_close_matches(str(id), REGISTRY, n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise UnknownConstraintError(f"unknown constraint id {id!r}{hint}") from None


def family_ids(family: str) -> list[str]:
    """Ids of one family (``"ifeval"``, ``"iftrain"`` or ``"ifbench"``) in order of registration."""
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}, not {family!r}")
    return [id for id, entry in REGISTRY.items() if entry.family == family]


def compare(count: float, relation: str, threshold: float) -> bool:
    """Whether `count` is ``"less than"`` or ``"at least"`` `threshold`.

    Raises
    ------
    ValueError
        Another relation. (Upstream's "less than" is strict; the boundary counts as "at least".)
    """
    if relation == "less than":
        return count < threshold
    if relation == "at least":
        return count >= threshold
    raise ValueError(f"relation must be 'less than' or 'at least', not {relation!r}")
