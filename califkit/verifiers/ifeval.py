"""The 25 constraint ids of IFEval (Zhou et al., 2023), as IFBench 0.2.0 and IFEvalG check them.

The training registry's own copy of these ids behaves the same, so one checker serves both.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Annotated

from califkit.verifiers import patterns, registry
from califkit.verifiers.registry import (
    AnyText,
    Count,
    Example,
    Letter,
    Param,
    Positive,
    Relation,
    compare,
    repairs,
)
from califkit.verifiers.text import Text

LANGUAGES = tuple(
    "en es pt ar hi fr ru de ja it bn uk th ur ta te "
    "bg ko pl he fa vi ne sw kn mr gu pa ml fi".split()
)

Language = Annotated[str, Param(choices=LANGUAGES)]
verifier = partial(registry.verifier, suite="ifeval")


# --- keywords ----------------------------------------------------------------------------------
@verifier(
    "keywords:existence",
    instruction="Use each of these keywords in your response: {keywords}.",
    example=Example({"keywords": ["tea", "milk"]}, "Tea with milk.", "Tea with sugar."),
    defect="The keyword is searched as a pattern and inside longer words (`art` in `start`).",
)
def existence(text: Text, keywords: list[str] | str) -> bool:
    return all(patterns.found(keyword, text) for keyword in keywords)


@repairs(
    existence,
    "Looks for the literal word or phrase.",
    lost="We start.",
    kwargs={"keywords": ["art"]},
)
def existence_literal(text: Text, keywords: list[str] | str) -> bool:
    keywords = [keywords] if isinstance(keywords, str) else keywords
    return all(patterns.found_literal(keyword.strip(), text) for keyword in keywords)


@verifier(
    "keywords:frequency",
    instruction='The word "{keyword}" should appear {relation} {frequency} times in your response.',
    example=Example(
        {"keyword": "tea", "frequency": 2, "relation": "at least"}, "Tea, tea.", "Tea, milk."
    ),
    defect="The keyword is counted as a pattern and inside longer words (`art` in `start`).",
)
def frequency(text: Text, keyword: str, frequency: Count, relation: Relation) -> bool:
    return compare(patterns.count(keyword.strip(), text), relation, frequency)


@repairs(
    frequency,
    "Counts the literal word or phrase.",
    lost="We start.",
    kwargs={"keyword": "art", "frequency": 1, "relation": "at least"},
)
def frequency_literal(text: Text, keyword: str, frequency: int, relation: str) -> bool:
    return compare(patterns.count_literal(keyword.strip(), text), relation, frequency)


@verifier(
    "keywords:forbidden_words",
    instruction="Do not use any of these words in your response: {forbidden_words}.",
    example=Example({"forbidden_words": ["very", "nice"]}, "A fine day.", "A nice day."),
    defect="The word is searched as a pattern between word boundaries, so `$5` is never seen.",
)
def forbidden_words(text: Text, forbidden_words: list[str] | str) -> bool:
    return not any(patterns.found_word(word, text) for word in forbidden_words)


@repairs(
    forbidden_words,
    "Looks for the literal word or phrase.",
    lost="It costs $5.",
    kwargs={"forbidden_words": ["$5"]},
)
def forbidden_words_literal(text: Text, forbidden_words: list[str] | str) -> bool:
    words = [forbidden_words] if isinstance(forbidden_words, str) else forbidden_words
    return not any(patterns.found_literal(word.strip(), text) for word in words)


@verifier(
    "keywords:letter_frequency",
    instruction='The letter "{letter}" should appear {let_relation} {let_frequency} times '
    "in your response.",
    example=Example(
        {"letter": "z", "let_frequency": 2, "let_relation": "at least"}, "Pizza.", "Zoo."
    ),
)
def letter_frequency(
    text: Text, letter: Letter, let_frequency: Count, let_relation: Relation
) -> bool:
    # Upstream counts a random letter in place of one outside a-z; here it is counted as it is.
    return compare(text.lower.count(letter.strip().lower()), let_relation, let_frequency)


# --- language ----------------------------------------------------------------------------------
@verifier(
    "language:response_language",
    instruction="Write your whole response in the language with the code {language}; "
    "use no other language.",
    example=Example(
        {"language": "de"},
        "Heute ist ein schöner Tag, und wir gehen in den Garten.",
        "Today is a beautiful day, and we go into the garden.",
    ),
    defect="A response without any letters passes.",
)
def response_language(text: Text, language: Language) -> bool:
    return text.language in (language, None)


@repairs(response_language, "Asks for a response whose language is recognised.", lost="12345")
def response_language_known(text: Text, language: str) -> bool:
    return text.language == language


# --- length ------------------------------------------------------------------------------------
@verifier(
    "length_constraints:number_sentences",
    instruction="Write {relation} {num_sentences} sentences.",
    example=Example(
        {"num_sentences": 2, "relation": "at least"}, "Sit down. Have some tea.", "Sit down."
    ),
)
def number_sentences(text: Text, num_sentences: Count, relation: Relation) -> bool:
    return compare(len(text.sentences), relation, num_sentences)


DIVIDER = re.compile(r"\s?\*\*\*\s?")


@verifier(
    "length_constraints:number_paragraphs",
    instruction="Write exactly {num_paragraphs} paragraphs, and put the divider *** between "
    "one paragraph and the next.",
    example=Example({"num_paragraphs": 2}, "First.\n***\nSecond.", "First.\n\nSecond."),
)
def number_paragraphs(text: Text, num_paragraphs: Count) -> bool:
    return count_filled(divided(text)) == num_paragraphs


def divided(text: Text) -> list[str]:
    """Pieces between dividers."""
    return DIVIDER.split(text.raw) if "***" in text.raw else [text.raw]


def count_filled(pieces: list[str]) -> int | None:
    """Number of pieces without a blank first or last one; None if an inner piece is blank."""
    if not all(piece.strip() for piece in pieces[1:-1]):
        return None
    outer = [pieces[0], pieces[-1]]
    return len(pieces) - sum(not piece.strip() for piece in outer)


@verifier(
    "length_constraints:number_words",
    instruction="Answer with {relation} {num_words} words.",
    example=Example(
        {"num_words": 4, "relation": "less than"}, "Only three words.", "Here are four words."
    ),
)
def number_words(text: Text, num_words: Count, relation: Relation) -> bool:
    return compare(len(text.words), relation, num_words)


FIRST_WORD_END = re.compile(r"""[.,?!'"]""")


@verifier(
    "length_constraints:nth_paragraph_first_word",
    instruction="Write exactly {num_paragraphs} paragraphs with an empty line between them, "
    'and start paragraph number {nth_paragraph} with the word "{first_word}".',
    example=Example(
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        "First we sit.\n\nThen we eat.",
        "First we sit.\n\nNow we eat.",
    ),
    defect="Blank paragraphs are left out of the count but not of the numbering, so a reply that "
    "opens with an empty line fails.",
)
def nth_paragraph_first_word(
    text: Text, num_paragraphs: Positive, nth_paragraph: Positive, first_word: AnyText
) -> bool:
    pieces = text.raw.split("\n\n")
    n_filled = sum(bool(piece.strip()) for piece in pieces)
    if n_filled != num_paragraphs or nth_paragraph > n_filled:
        return False
    paragraph = pieces[nth_paragraph - 1].strip()
    return bool(paragraph) and opening_word(paragraph) == first_word.lower()


@repairs(
    nth_paragraph_first_word,
    "Leaves blank paragraphs out of both.",
    gained="\n\nFirst we sit.\n\nThen we eat.",
)
def nth_filled_paragraph_first_word(
    text: Text, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> bool:
    pieces = [piece for piece in text.raw.split("\n\n") if piece.strip()]
    if len(pieces) != num_paragraphs or nth_paragraph > len(pieces):
        return False
    return opening_word(pieces[nth_paragraph - 1]) == first_word.lower()


def opening_word(paragraph: str) -> str:
    """First word of a non-blank paragraph, lower-cased, without quotes and what follows it."""
    word = paragraph.split(maxsplit=1)[0].lstrip("'").lstrip('"')
    return FIRST_WORD_END.split(word, maxsplit=1)[0].lower()


# --- content and format ------------------------------------------------------------------------
@verifier(
    "detectable_content:number_placeholders",
    instruction="Include at least {num_placeholders} placeholders in square brackets, "
    "such as [address].",
    example=Example({"num_placeholders": 2}, "Dear [name], come to [place].", "Dear [name]."),
)
def number_placeholders(text: Text, num_placeholders: Count) -> bool:
    return sum(count_brackets(line) for line in text.lines) >= num_placeholders


def count_brackets(line: str) -> int:
    r"""Matches of ``\[.*?\]`` in one line, in one pass (many ``[`` without ``]`` stay cheap)."""
    n, start = 0, line.find("[")
    while start >= 0:
        end = line.find("]", start)
        if end < 0:
            break
        n += 1
        start = line.find("[", end)
    return n


@verifier(
    "detectable_content:postscript",
    instruction="At the end of your response, add a postscript that starts with "
    "{postscript_marker}",
    example=Example(
        {"postscript_marker": "P.S."}, "See you soon.\n\nP.S. Bring cake.", "See you soon."
    ),
    defect="The marker may stand anywhere, and markers other than P.S. and P.P.S are searched as "
    "patterns.",
)
def postscript(text: Text, postscript_marker: str) -> bool:
    # Upstream's patterns begin with \s*, which decides nothing and is quadratic on blanks.
    marker = postscript_marker.strip()
    if marker == "P.P.S":
        return re.search(r"p\.\s?p\.\s?s.*$", text.lower, re.MULTILINE) is not None
    if marker == "P.S.":
        return re.search(r"p\.\s?s\..*$", text.lower, re.MULTILINE) is not None
    before = r"\s*" if marker[:1] in tuple("*+?{") else ""
    lines = patterns.matches(before, marker.lower(), ".*$", Text(text.lower), re.MULTILINE)
    return next(lines, None) is not None


@repairs(
    postscript,
    "Asks for a line that starts with the literal marker.",
    lost="Write P.S. at the end.",
)
def postscript_line(text: Text, postscript_marker: str) -> bool:
    marker = postscript_marker.strip().lower()
    return any(line.lstrip(" \t*_").startswith(marker) for line in text.lower.split("\n"))


@verifier(
    "detectable_format:number_bullet_lists",
    instruction="Use exactly {num_bullets} bullet points, each on its own line and written "
    "like this: * This is a point.",
    example=Example({"num_bullets": 2}, "* Tea\n* Milk", "* Tea\n* Milk\n* Cake"),
    defect="Rules (`---`), negative numbers and a star on a line of its own count as bullets.",
)
def number_bullet_lists(text: Text, num_bullets: Count) -> bool:
    lines = [line.lstrip() for line in text.lines]
    dashes = sum(line.startswith("-") for line in lines)
    return count_stars(lines) + dashes == num_bullets


def count_stars(lines: list[str]) -> int:
    r"""Matches of ``^\s*\*[^\*].*$`` (MULTILINE) over left-stripped lines, in one pass.

    The character after the star may be a line break; then the next line belongs to the match.
    """
    n, i = 0, 0
    while i < len(lines):
        if lines[i] == "*" and i + 1 < len(lines):
            n, i = n + 1, i + 1
        elif len(lines[i]) > 1 and lines[i][0] == "*" != lines[i][1]:
            n += 1
        i += 1
    return n


@repairs(
    number_bullet_lists,
    "Counts `*` or `-`, a blank and some text.",
    lost="* Tea\n---",
    gained="* Tea\n* Milk\n---",
)
def number_marked_lines(text: Text, num_bullets: int) -> bool:
    lines = [line.strip() for line in text.lines if line.strip(" \t*-")]  # no rules such as * * *
    return sum(re.match(r"[*-]\s", line) is not None for line in lines) == num_bullets


@verifier(
    "detectable_format:constrained_response",
    instruction="Answer with one of these three sentences: My answer is yes. "
    "My answer is no. My answer is maybe.",
    example=Example({}, "My answer is maybe.", "Maybe."),
    defect="Anything may stand around the sentence, even the other two.",
)
def constrained_response(text: Text) -> bool:
    return any(f"My answer is {word}." in text.raw for word in ("yes", "no", "maybe"))


@repairs(
    constrained_response,
    "Asks for one of the sentences and nothing else.",
    lost="My answer is yes. My answer is no.",
)
def constrained_response_alone(text: Text) -> bool:
    return text.stripped in {f"My answer is {word}." for word in ("yes", "no", "maybe")}


SINGLE_STARS = re.compile(r"\*[^\n\*]*\*")
DOUBLE_STARS = re.compile(r"\*\*[^\n\*]*\*\*")


@verifier(
    "detectable_format:number_highlighted_sections",
    instruction="Highlight at least {num_highlights} parts of your response with markdown, "
    "such as *highlighted part*.",
    example=Example({"num_highlights": 2}, "A *warm* and *sunny* day.", "A *warm* day."),
    defect="Stars used as signs count (`2 * 3 * 4`), and `***x***` counts twice.",
)
def number_highlighted_sections(text: Text, num_highlights: Count) -> bool:
    single = sum(bool(span.strip("*").strip()) for span in SINGLE_STARS.findall(text.raw))
    double = sum(bool(span[2:-2].strip()) for span in DOUBLE_STARS.findall(text.raw))
    return single + double >= num_highlights


HIGHLIGHT = re.compile(r"(?<!\*)(\*{1,3})(?![\s*])[^\n*]*[^\s*]\1(?!\*)")


@repairs(
    number_highlighted_sections,
    "Counts text between equal runs of stars, without blanks inside its ends.",
    lost="***Twice***",
)
def number_highlights(text: Text, num_highlights: int) -> bool:
    return sum(1 for _ in HIGHLIGHT.finditer(text.raw)) >= num_highlights


@verifier(
    "detectable_format:multiple_sections",
    instruction="Divide your response into {num_sections} sections, and begin each section "
    "with the word {section_spliter} and its number, such as {section_spliter} 1.",
    example=Example(
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\nTea.\nSection 2\nMilk.",
        "Section 1\nTea and milk.",
    ),
    defect="The marker is a pattern and counts in mid-line (`see Section 1`).",
)
def multiple_sections(text: Text, section_spliter: str, num_sections: Count) -> bool:
    sections = patterns.matches(r"\s?", section_spliter.strip(), r"\s?\d+\s?", text, flags=0)
    # Every capture group of the marker adds a piece per match, as re.split does.
    pieces = sum(1 + match.re.groups for match in sections)
    return pieces >= num_sections


@repairs(
    multiple_sections,
    "Counts lines that start with the literal marker and a number.",
    lost="See Section 1 and Section 2.",
    gained="Section  1\nTea.\nSection  2\nMilk.",
)
def section_lines(text: Text, section_spliter: str, num_sections: int) -> bool:
    heading = re.compile(rf"[\s#*_]*{re.escape(section_spliter.strip())}\s*\d")
    return sum(heading.match(line) is not None for line in text.lines) >= num_sections


@verifier(
    "detectable_format:json_format",
    instruction="Write your whole response as one valid JSON value. "
    "You may put it into a markdown code block.",
    example=Example({}, '```json\n{"tea": 2}\n```', "tea: 2"),
)
def json_format(text: Text) -> bool:
    value = text.stripped
    for fence in ("```json", "```Json", "```JSON", "```"):
        value = value.removeprefix(fence)
    try:
        json.loads(value.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


@verifier(
    "detectable_format:title",
    instruction="Give your response a title in double angular brackets, such as <<a title>>.",
    example=Example({}, "<<Tea>>\nA short poem.", "Tea\nA short poem."),
)
def title(text: Text) -> bool:
    return any(bracketed_title(line) for line in text.lines)


def bracketed_title(line: str) -> str:
    """What stands between the first ``<<`` and the last ``>>`` of a line, "" if nothing."""
    start, end = line.find("<<"), line.rfind(">>")
    if start < 0 or end < start + 3:
        return ""
    return line[start : end + 2].lstrip("<").rstrip(">").strip()


# --- combination -------------------------------------------------------------------------------
@verifier(
    "combination:two_responses",
    instruction="Give two different responses, and put six asterisks between them: ******",
    example=Example({}, "Tea.\n******\nMilk.", "Tea.\n******\nTea."),
)
def two_responses(text: Text) -> bool:
    pieces = text.raw.split("******")
    answers = [piece.strip() for piece in pieces if piece.strip()]
    return count_filled(pieces) == len(answers) == 2 and answers[0] != answers[1]


@verifier(
    "combination:repeat_prompt",
    instruction="First repeat the following request word for word, without change, and then "
    "answer it. The request to repeat: {prompt_to_repeat}",
    example=Example({"prompt_to_repeat": "Name a tree."}, "Name a tree. Oak.", "Oak."),
    defect="The repeated request alone passes.",
)
def repeat_prompt(text: Text, prompt_to_repeat: str) -> bool:
    return text.stripped.lower().startswith(prompt_to_repeat.strip().lower())


@repairs(repeat_prompt, "Asks for an answer behind it.", lost="Name a tree.")
def repeat_prompt_and_answer(text: Text, prompt_to_repeat: str) -> bool:
    given, prompt = text.stripped.lower(), prompt_to_repeat.strip().lower()
    return given.startswith(prompt) and re.search(r"\w", given[len(prompt) :]) is not None


# --- start, end, case, punctuation -------------------------------------------------------------
@verifier(
    "startend:end_checker",
    instruction="End your response with exactly this phrase, and write nothing after it: "
    "{end_phrase}",
    example=Example({"end_phrase": "That is all."}, "Tea. That is all.", "That is all. Tea."),
)
def end_checker(text: Text, end_phrase: AnyText) -> bool:
    return text.stripped.strip('"').lower().endswith(end_phrase.strip().lower())


@verifier(
    "startend:quotation",
    instruction="Put your whole response into double quotation marks.",
    example=Example({}, '"Tea, please."', "Tea, please."),
)
def quotation(text: Text) -> bool:
    answer = text.stripped
    return len(answer) > 1 and answer[0] == answer[-1] == '"'


@verifier(
    "change_case:capital_word_frequency",
    instruction="Use words written in all capital letters {capital_relation} "
    "{capital_frequency} times.",
    example=Example(
        {"capital_frequency": 2, "capital_relation": "at least"}, "TEA, not MILK.", "TEA, not milk."
    ),
)
def capital_word_frequency(text: Text, capital_frequency: int, capital_relation: Relation) -> bool:
    capitals = sum(map(str.isupper, text.iter_tokens()))
    return compare(capitals, capital_relation, capital_frequency)


@verifier(
    "change_case:english_capital",
    instruction="Write your whole response in English and in capital letters only.",
    example=Example(
        {}, "WE WALK IN THE GARDEN AND DRINK TEA.", "We walk in the garden and drink tea."
    ),
)
def english_capital(text: Text) -> bool:
    return text.raw.isupper() and text.language in ("en", None)


@verifier(
    "change_case:english_lowercase",
    instruction="Write your whole response in English and in lowercase letters only.",
    example=Example(
        {},
        "this is what we think about the weather in the morning.",
        "This is what we think about the weather in the morning.",
    ),
)
def english_lowercase(text: Text) -> bool:
    return text.raw.islower() and text.language in ("en", None)


@verifier(
    "punctuation:no_comma",
    instruction="Do not use any commas in your response.",
    example=Example({}, "Tea and milk.", "Tea, milk."),
    defect="Only the ASCII comma is seen.",
)
def no_comma(text: Text) -> bool:
    return "," not in text.raw


@repairs(no_comma, "Sees full-width, ideographic and Arabic commas too.", lost="茶，水")
def no_comma_of_any_script(text: Text) -> bool:
    return not any(comma in text.raw for comma in ",，、،﹐､")
