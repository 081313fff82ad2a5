"""Cut a prompt into the request x and the constraint text c.

Training prompts bring their constraint texts along (`cut_suffix`), IFBench prompts only ids and
parameters (`split_request`). Neither function guesses: what does not fit exactly has no request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from califkit.verifiers import Constraint

# How each constraint is worded in the IFBench prompts, reduced to what identifies it: "…" stands
# for any text within the line, {name} for the row's parameter, "-th" for any ordinal ending. An id
# with several wordings lists the longer one first.
_RESOURCES = resources.files("califkit.data") / "resources"
_WORDINGS = json.loads((_RESOURCES / "wordings.json").read_text(encoding="utf-8"))

# Some prompts put a label between c and x; it belongs to neither.
_MARKER = re.compile(r"\s*Reference Text:")
# Zero-width characters are no whitespace for str.strip, but stand at the seam in some prompts.
_SEAM = " \t\r\n\v\f\u00a0\u200b\ufeff"
_GAP = r".{1,450}?"


@dataclass(frozen=True)
class Split:
    """A prompt cut in two: x and c alone, or both None.

    `rule` is ``suffix`` (x, then c), ``prefix`` (c, then x), ``marker`` (c, "Reference Text:", x),
    ``whole`` (task and constraint are one text) or ``unresolved`` (the request was not found).
    """

    request: str | None
    constraint_text: str | None
    rule: str


def split_request(prompt: str, constraints: Sequence[Constraint]) -> Split:
    """Find the request inside an IFBench prompt.

    The block of constraint texts is contiguous, in the order of `constraints`, and is either the
    first or the last thing in the prompt. A prompt in which it is both, or neither, or which is
    nothing but the block, is ``unresolved``. Where a parameter repeats the request
    (``prompt_to_repeat`` of ``repeat:*``), the cut must reproduce it.

    ``custom:*`` prompts have no separate request (paper, ambiguity A14: x is the whole prompt,
    flagged). Prompts of IFEval are worded freely; their ids are unresolved here.
    """
    if any(c.id.startswith("custom:") for c in constraints):
        return Split(None, None, "whole")
    unresolved = Split(None, None, "unresolved")
    if not constraints or any(c.id not in _WORDINGS for c in constraints):
        return unresolved

    block = r"\s*".join(_pattern(c) for c in constraints)
    found = [s for s in (_as_prefix(prompt, block), _as_suffix(prompt, block)) if s is not None]
    if len(found) != 1 or not _agrees(found[0], constraints):
        return unresolved
    return found[0]


def cut_suffix(prompt: str, parts: Iterable[str]) -> Split:
    """Cut known constraint texts off the end of a training prompt.

    All `parts`, each exactly as given and in any order, must form one contiguous suffix with
    nothing but whitespace in between. The cut fails (``unresolved``) when they do not, when
    nothing is left, or when one of the texts also occurs in what is left: c must not leak into x.
    """
    unresolved = Split(None, None, "unresolved")
    texts = [text for part in parts if (text := part.strip())]
    if not texts:
        return unresolved
    rest = prompt.rstrip()
    # Longest first: a text that ends in another one must not lose its tail to it.
    left = sorted(texts, key=len, reverse=True)
    while left:
        hit = next((text for text in left if rest.endswith(text)), None)
        if hit is None:
            return unresolved
        left.remove(hit)
        rest = rest.removesuffix(hit).rstrip()
    if not rest.strip(_SEAM) or any(text in rest for text in texts):
        return unresolved
    return Split(rest.strip(_SEAM), prompt[len(rest) :].strip(_SEAM), "suffix")


def _as_prefix(prompt: str, block: str) -> Split | None:
    """c at the very start; the shortest c that the wording allows."""
    match = re.match(rf"\s*({block})", prompt)
    if match is None:
        return None
    rest, rule = prompt[match.end() :], "prefix"
    marker = _MARKER.match(rest)
    if marker is not None:
        rest, rule = rest[marker.end() :], "marker"
    request = rest.strip(_SEAM)
    return Split(request, match[1], rule) if request else None


def _as_suffix(prompt: str, block: str) -> Split | None:
    """c at the very end; the greedy request makes c the shortest that the wording allows."""
    match = re.fullmatch(rf"((?s:.*))({block})[\s\u200b]*", prompt)
    if match is None:
        return None
    request = match[1].strip(_SEAM)
    return Split(request, match[2], "suffix") if request else None


def _pattern(constraint: Constraint) -> str:
    """The regular expression of one constraint's wording with its parameters filled in."""
    wordings = (_render(w, constraint.kwargs) for w in _WORDINGS[constraint.id])
    return "(?:" + "|".join(wordings) + ")"


def _render(wording: str, kwargs: Mapping[str, Any]) -> str:
    pieces = []
    for piece in re.split(r"(\{\w+\}|\s*…\s*|-th\b|\s+)", wording):
        if piece.startswith("{"):
            pieces.append(_value(kwargs[piece[1:-1]]))
        elif "…" in piece:
            pieces.append(_GAP)
        elif piece == "-th":
            pieces.append("-?(?:st|nd|rd|th)")
        elif piece.isspace():
            pieces.append(r"\s+")
        else:
            pieces.append(re.escape(piece))
    return "".join(pieces)


def _value(value: Any) -> str:
    """A parameter as the prompts print it: counts as 4, sometimes as 4.0."""
    if isinstance(value, float | int) and value == int(value):
        return rf"{int(value)}(?:\.0)?"
    return r"\s+".join(re.escape(word) for word in str(value).split())


def _agrees(split: Split, constraints: Sequence[Constraint]) -> bool:
    """Whether the request equals ``prompt_to_repeat`` wherever a constraint carries it."""
    for constraint in constraints:
        expected = constraint.kwargs.get("prompt_to_repeat")
        if expected is None:
            continue
        # One upstream row holds escape sequences in the prompt that its parameter has decoded.
        decoded = split.request.replace(r"\n", "\n").replace(r"\"", '"')
        if expected.strip() not in (split.request, decoded.strip()):
            return False
    return True
