"""Training ids on copying: ``copy:`` and ``new:``; see `iftrain` for the rest of the suite."""

from __future__ import annotations

import re
from functools import partial

from califkit.verifiers import patterns, registry
from califkit.verifiers.registry import Example, Positive, repairs
from califkit.verifiers.text import Text, bare_words

verifier = partial(registry.verifier, suite="iftrain")


@verifier(
    "copy:repeat_phrase",
    instruction='Use the phrase "{phrase}" exactly {small_n} times, and each time replace one '
    "word in the middle of it by another word.",
    example=Example(
        {"phrase": "the quick fox jumps", "small_n": 1},
        "See how the slow fox jumps!",
        "See how the quick fox jumps!",
    ),
    defect="The first and the last word are found inside longer words and act as patterns.",
)
def repeat_phrase(text: Text, phrase: str, small_n: Positive) -> bool:
    words = phrase.split()
    found = phrase_spans(text, words[0], words[-1])
    return len(found) == small_n and all(differ_in_one(span.split(), words) for span in found)


def phrase_spans(text: Text, first: str, last: str) -> list[str]:
    """Matches of the pattern ``first .*? last``; in one pass when both words are literal."""
    if not (is_literal(first) and is_literal(last)):
        return [m.group() for m in patterns.matches("", f"{first} .*? {last}", "", text, 0)]
    spans = []
    for line in text.lines:
        start = line.find(f"{first} ")
        while start >= 0:
            end = line.find(f" {last}", start + len(first) + 1)
            if end < 0:
                break
            end += 1 + len(last)
            spans.append(line[start:end])
            start = line.find(f"{first} ", end)
    return spans


def is_literal(word: str) -> bool:
    """Whether a word means itself in a regular expression."""
    return re.escape(word) == word


def differ_in_one(words: list[str], others: list[str]) -> bool:
    """Equally many words, different in exactly one place."""
    return len(words) == len(others) and sum(map(str.__ne__, words, others)) == 1


@repairs(repeat_phrase, "Finds them as literal whole words.", lost="Bathe slow fox jumps!")
def repeat_phrase_of_words(text: Text, phrase: str, small_n: int) -> bool:
    tokens, wanted = bare_words(text.raw), bare_words(phrase)
    n = len(wanted)
    found = [
        tokens[i : i + n]
        for i in range(len(tokens) - n + 1)
        if tokens[i] == wanted[0]
        and tokens[i + n - 1] == wanted[-1]
        and sum(map(str.__ne__, tokens[i : i + n], wanted)) <= 1
    ]
    return len(found) == small_n and wanted not in found


@verifier(
    "copy:copy",
    instruction="Do not answer the request. Copy the following text word for word and write "
    "nothing else: {prompt_to_repeat}",
    example=Example({"prompt_to_repeat": "Name a tree."}, "Name a tree.", "Oak."),
)
@verifier(
    "copy:copying_simple",
    instruction="Repeat this request without change, and do not answer it. "
    "The request to repeat: {prompt_to_repeat}",
    example=Example({"prompt_to_repeat": "Name a tree."}, "Name a tree.", "Name a tree. Oak."),
)
def copy(text: Text, prompt_to_repeat: str) -> bool:
    return text.stripped.lower() == prompt_to_repeat.strip().lower()


@verifier(
    "copy:copying_multiple",
    instruction="Repeat this request without change {N} times, with six asterisks ****** "
    "between the copies, and do not answer it. The request to repeat: {prompt_to_repeat}",
    example=Example(
        {"prompt_to_repeat": "Name a tree.", "N": 2},
        "Name a tree.\n******\nName a tree.",
        "Name a tree.",
    ),
)
def copying_multiple(text: Text, prompt_to_repeat: str, N: Positive) -> bool:
    copies = text.raw.split("******")
    wanted = prompt_to_repeat.strip().lower()
    return len(copies) == N and all(copy.strip().lower() == wanted for copy in copies)


@verifier(
    "new:copy_span_idx",
    instruction="Copy the part of the following text from character number {n_start} to character "
    "number {n_end}, both included and counted from 0, and write nothing else: "
    "{prompt_to_repeat}",
    example=Example(
        {"prompt_to_repeat": "Name a tree.", "n_start": 0, "n_end": 4}, "Name", "Name a tree."
    ),
    defect="The end index is exclusive.",
)
def copy_span_idx(text: Text, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    return text.stripped.lower() == prompt_to_repeat[n_start:n_end].strip().lower()


@repairs(
    copy_span_idx,
    "Includes it.",
    lost="a tre",
    gained="a tree",
    kwargs={"prompt_to_repeat": "Name a tree.", "n_start": 5, "n_end": 10},
)
def copy_span_inclusive(text: Text, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    end = n_end + 1 if n_end != -1 else None
    return text.stripped.lower() == prompt_to_repeat[n_start:end].strip().lower()
