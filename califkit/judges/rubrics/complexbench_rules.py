"""The rules of ComplexBench: a small language over spans of a response.

A judge first extracts the spans that a question is about (`read_spans`), then the rule decides
(`parse_rules`, `follows`). A rule without prefix looks at the first span with and without quotation
marks around it, one with ``model_`` at the first span as it was extracted, one with ``_each`` at
all of them. Published semantics, quirks included, but for two: a rule that is not known is an error
when it is parsed (the released code counts it as satisfied in the dimensions and as failed over
all), and ``keyword`` with ``forbidden_word`` on two lines is the conjunction that it says (the
released code crashes).
"""

from __future__ import annotations

import json
import re
import string
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from califkit.judges.parsing import Unparsable, find_object, outermost_objects, without_reasoning

_FULL_WIDTH = str.maketrans(",.!?:;()", "，。！？：；（）")
_QUOTES = "\"'`“”‘’「」『』＂＇｀"
_SENTENCE_ENDS = ("", "。", "？")

_HEADING = "【模型回复中评分问题的评测对象】"
_LABEL = "对象："
_NOTE = re.compile(r"\n\n(?:请)?注意[：:]")


@dataclass(frozen=True)
class Rule:
    """One line of a rule. `words` and `low`, `high` are its argument, as far as it has them."""

    op: str
    on_spans: bool
    each: bool
    words: tuple[str, ...] = ()
    low: int = 0
    high: int = 0


def parse_rules(text: str) -> tuple[Rule, ...]:
    """The rules in a rule string; all have to hold. ValueError for one that is not known."""
    starts = list(_RULE_START.finditer(text))
    if not starts or starts[0].start() != 0:
        raise ValueError(f"unknown rule {text!r}")
    ends = [match.start() for match in starts[1:]] + [len(text)]
    return tuple(
        _rule(match[1], text[match.end() : end].strip("\n"))
        for match, end in zip(starts, ends, strict=True)
    )


def follows(rules: Sequence[Rule], spans: Sequence[str]) -> bool:
    """Whether the spans of a response satisfy all rules."""
    return all(_holds(rule, spans) for rule in rules)


def read_spans(text: str | None, response: str) -> list[str]:
    """The spans in a judge's extraction: our own format, else the released one.

    No extraction gives no spans; a judge that failed must not get here, since some rules hold for
    nothing.
    """
    if text is None:
        return []
    value = find_object(text, "scope")
    if value is not None:
        return _structured_spans(value, response)
    text = without_reasoning(text).rpartition(_HEADING)[2]
    if note := _NOTE.search(text):
        text = text[: note.start()]
    label = _LABEL if _LABEL in text else "："
    text = text.rpartition(label)[2].strip()
    if text.startswith("all"):
        return [response]
    if "None" in text:
        return []
    return [span.strip() for span in text.split("||")]


def _structured_spans(value: dict[str, Any], response: str) -> list[str]:
    scope, spans = value["scope"], value.get("spans", [])
    if scope == "all":
        return [response]
    if scope == "none":
        return []
    if scope != "spans" or not isinstance(spans, list) or not spans:
        raise Unparsable("'scope' must be all, none, or spans with a list of them")
    if not all(isinstance(span, str) for span in spans):
        raise Unparsable("'spans' must be a list of texts")
    return [span.strip() for span in spans]


def _holds(rule: Rule, spans: Sequence[str]) -> bool:
    present = [span for span in spans if span]
    if not present:
        return rule.op in _TRUE_OF_NOTHING
    if rule.op == "number":
        return rule.low <= len(spans) <= rule.high
    if rule.op == "starts_with_list":
        pairs = zip(spans, rule.words, strict=False)
        return len(spans) == len(rule.words) and all(_starts(s, w) for s, w in pairs)
    test = _TESTS[rule.op]
    if rule.each:
        last_is_free = rule.op == "endswith" and len(present) > 1
        return all(test(rule, span) for span in (present[:-1] if last_is_free else present))
    if rule.on_spans:
        return bool(spans[0]) and test(rule, spans[0])
    if not spans[0] or "None" in spans[0]:
        return rule.op in _TRUE_OF_NOTHING
    return any(test(rule, text) for text in (spans[0], spans[0].strip(_QUOTES)))


def _wide(text: str) -> str:
    """ASCII punctuation as the full-width marks of Chinese text."""
    return text.translate(_FULL_WIDTH)


def _searched(rule: Rule, text: str) -> str:
    """The text in which words are searched: not mapped, as published, for three rules."""
    as_it_is = rule.op == "keyword_num" or (rule.on_spans and not rule.each)
    return text if as_it_is else _wide(text)


def _n_present(rule: Rule, text: str) -> int:
    searched = _searched(rule, text)
    return sum(_wide(word) in searched for word in set(rule.words))


def _starts(text: str, word: str) -> bool:
    return _wide(text).startswith(_wide(word))


def _ends(text: str, word: str) -> bool:
    return any(_wide(text).endswith(_wide(word) + end) for end in _SENTENCE_ENDS)


def _has_length(rule: Rule, text: str) -> bool:
    bare = text.strip().strip(_QUOTES) if rule.on_spans else text
    return rule.low <= len(bare) <= rule.high


def _matches(rule: Rule, text: str) -> bool:
    wanted = rule.words[0]
    return any(form in (wanted, wanted + "。", wanted + ".") for form in (text, _wide(text)))


def _has_keys(rule: Rule, text: str) -> bool:
    objects, _ = outermost_objects(text)
    try:
        value = json.loads(objects[0]) if objects else None
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and (rule.words == ("",) or set(value) == set(rule.words))


def _only_listed_punctuation(rule: Rule, text: str) -> bool:
    listed = _wide("".join(rule.words))
    return all(
        character in listed
        for character in _wide(text)
        if character in string.punctuation or unicodedata.category(character).startswith("P")
    )


_TESTS: dict[str, Callable[[Rule, str], bool]] = {
    "keyword": lambda rule, text: _n_present(rule, text) == len(set(rule.words)),
    "forbidden_word": lambda rule, text: _n_present(rule, text) == 0,
    "keyword_num": lambda rule, text: rule.low <= _n_present(rule, text) <= rule.high,
    "length": _has_length,
    "length_word": lambda rule, text: rule.low <= len(text.split()) <= rule.high,
    "match": _matches,
    "startswith": lambda rule, text: _starts(text, rule.words[0]),
    "endswith": lambda rule, text: _ends(text, rule.words[0]),
    "not_startswith": lambda rule, text: not _starts(text, rule.words[0]),
    "not_endswith": lambda rule, text: not _ends(text, rule.words[0]),
    "constraint_punc": _only_listed_punctuation,
    "Json": _has_keys,
}
_TRUE_OF_NOTHING = {"forbidden_word", "not_startswith", "not_endswith"}

_PLAIN = (
    *("keyword", "forbidden_word", "length", "length_word", "match", "startswith", "endswith"),
    *("constraint_punc", "Json"),
)
_ON_SPANS = (
    *("keyword", "forbidden_word", "keyword_num", "length", "length_word", "startswith"),
    *("endswith", "not_startswith", "not_endswith", "constraint_punc"),
)
_NAMES: dict[str, tuple[str, bool, bool]] = {
    **{op: (op, False, False) for op in _PLAIN},
    "not endswith": ("not_endswith", False, False),
    **{f"model_{op}": (op, True, False) for op in _ON_SPANS},
    **{f"model_{op}_each": (op, True, True) for op in (*_ON_SPANS, "number", "starts_with_list")},
}
"""Name in the data -> operation, whether it works on extracted spans, whether on each."""

_RULE_START = re.compile(rf"(?:\A|\n)({'|'.join(map(re.escape, _NAMES))}):")

_RANGES = {"length", "length_word", "number", "keyword_num"}
_LISTS = {"keyword", "forbidden_word", "keyword_num", "starts_with_list", "constraint_punc"}


def _rule(name: str, argument: str) -> Rule:
    op, on_spans, each = _NAMES[name]
    if op not in _RANGES | _LISTS | {"Json"}:
        if not argument:
            raise ValueError(f"rule {name}: has no text to compare with")
        return Rule(op, on_spans, each, (argument,))
    if not (argument.startswith("[") and argument.endswith("]")):
        raise ValueError(f"rule {name}: {argument!r} is not a list in square brackets")
    parts = argument[1:-1].split(",")
    if op == "Json":
        return Rule(op, on_spans, each, tuple(part.strip().strip("\"'") for part in parts))
    low = high = 0
    if op in _RANGES:
        if len(parts) < 2 or not all(part.strip().isdecimal() for part in parts[:2]):
            raise ValueError(f"rule {name}: {argument!r} does not begin with two numbers")
        low, high = int(parts[0]), int(parts[1])
        parts = parts[2:]
    words = tuple(part for part in parts if part)
    if op in _LISTS and not words:
        raise ValueError(f"rule {name}: {argument!r} lists no words")
    return Rule(op, on_spans, each, words, low, high)
