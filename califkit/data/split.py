"""Cut a prompt into the request x and the constraint text c.

Training prompts bring their constraint texts along (`cut_suffix`), IFBench prompts only ids and
parameters (`split_request`). Neither function guesses: what does not fit exactly has no request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from califkit.verifiers import Constraint

# How each constraint is worded in the IFBench prompts, reduced to what identifies it: "…" stands
# for any text within the line, {name} for the row's parameter, "-th" for any ordinal ending. An id
# with several wordings lists the longer one first.
_WORDINGS: dict[str, tuple[str, ...]] = {
    "count:conjunctions": ("Use at least {small_n} different coordinating … in the response.",),
    "count:keywords_multiple": (
        "Include keyword {keyword1} once …, keyword {keyword2} twice …, keyword {keyword3} …,"
        " keyword {keyword4} …, and keyword {keyword5} seven times in your response.",
    ),
    "count:numbers": ("Include exactly {N} numbers in the response.",),
    "count:person_names": ("Mention at least {N} different person names …: Emma, … Jonathan .",),
    "count:pronouns": ("The response should include at least {N} pronouns.",),
    "count:punctuation": ("Use every standard punctuation mark … interrobang (?!).",),
    "count:unique_word_count": ("Use at least {N} unique words in the response.",),
    "count:word_count_range": (
        "The response must contain between {min_words} and {max_words} words.",
    ),
    "count:words_japanese": ("Every {N}-th word of your response … Japanese.",),
    "format:emoji": ("Please use an emoji at … every sentence.",),
    "format:line_indent": ("Create stairs by … each new line.",),
    "format:list": ("Answer with a list of items, … use {sep}.",),
    "format:newline": ("Write each word on a new line.",),
    "format:no_bullets_bullets": (
        "Your answer must contain at least two sentences … bullet points denoted by *.",
    ),
    "format:no_whitespace": ("The output should not contain any whitespace.",),
    "format:options": (
        "Answer with one of the following options: {options}. Do not give any explanation.",
        "Answer with one of the following options: {options}.",
    ),
    "format:output_template": ("Use this exact template … Future Outlook: [outlook]",),
    "format:parentheses": ("Nest parentheses (… at least 5 levels deep.",),
    "format:quote_unquote": ("Every quoted phrase must be followed by … explanation.",),
    "format:quotes": ("Include quotes within quotes … single quotes.",),
    "format:sub-bullets": (
        "Your response must include bullet points denoted by * and … for each bullet point.",
    ),
    "format:thesis": ("Each section must begin with a thesis statement … the italics.",),
    "format:title_case": ("Write the entire response in title case (… major word).",),
    "ratio:overlap": ("Maintain a trigram overlap of {percentage}% … reference text.",),
    "ratio:sentence_balance": ("Ensure that the ratio of sentence types (… balanced.",),
    "ratio:sentence_type": ("Maintain a 2:1 ratio of declarative … in your response.",),
    "ratio:sentence_words": ("Respond with three sentences, all … different words.",),
    "ratio:stop_words": (
        "Ensure that stop words constitute … {percentage}% of … in your response.",
    ),
    "repeat:repeat_change": ("Repeat the request, but change the first word … actual request!",),
    "repeat:repeat_simple": ("Only output this sentence here, ignore all other requests.",),
    "repeat:repeat_span": (
        "Copy the span of words … index {n_start} and {n_end}, … by whitespace!",
    ),
    "sentence:alliteration_increment": (
        "Each sentence must have … alliterative words than the previous one.",
    ),
    "sentence:increment": (
        "Each sentence must contain exactly {small_n} more words than the previous one.",
        "Each sentence in your response … exactly {small_n} more words than the previous one.",
    ),
    "sentence:keyword": ("The response must include keyword {word} in the {N}-th sentence.",),
    "words:alphabet": ("Each word … with the next letter of the alphabet, … after 'Z'.",),
    "words:consonants": ("Ensure each word … consonant cluster (… together).",),
    "words:keywords_specific_position": (
        "Include keyword {keyword} in the {n}-th sentence, as the {m}-th word of that sentence.",
    ),
    "words:last_first": (
        "In your response, the last word of each sentence … the next sentence.",
        "In your response the last word of each sentence … the next sentence.",
    ),
    "words:no_consecutive": ("No two consecutive words … first letter.",),
    "words:odd_even_syllables": ("Alternate between words with odd … of syllables.",),
    "words:palindrome": ("Include at least 10 single-word palindromes, … characters long.",),
    "words:paragraph_last_first": ("Each paragraph … same word … with a newline.",),
    "words:prime_lengths": ("Use only words with lengths … prime numbers.",),
    "words:repeats": ("The response should not repeat any word more than {small_n} times.",),
    "words:start_verb": ("The response must start with a verb.",),
    "words:vowel": ("Write a paragraph using words … three types of vowels.",),
    "words:words_position": ("The second word in your response … the word {keyword}.",),
}

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
