"""IFBench ids on form and repetition: ``format:`` and ``repeat:``.

Source: allenai/IFBench 0.2.0, test set; see `ifbench` for the rest of the suite.
"""

from __future__ import annotations

import re
import string
from collections import deque
from functools import partial
from itertools import chain, pairwise

from califkit.verifiers import registry
from califkit.verifiers.registry import AnyText, Example, repairs
from califkit.verifiers.text import CLOSERS, Text, depunct, ps_strip, punkt_sentences, rps_strip

verifier = partial(registry.verifier, suite="ifbench")

_BRACKETS = re.compile(r"[()\[\]{}]")
_OPENER_OF = {")": "(", "]": "[", "}": "{"}
_QUOTES = re.compile("[\"']")
_APOSTROPHE = re.compile(r"(?<=\w)'(?=\w)")
_LETTERED = re.compile(r"\W*[aA]\W*[bB]\W*[cC]\W*")
_OR = re.compile(r"\s+or\s+")
_SPACE = re.compile(r"\s")
_STRAIGHT_QUOTES = str.maketrans("“”„‟", '""""')
_STRAIGHT_MARKS = _STRAIGHT_QUOTES | str.maketrans("‘’‚‛", "''''")
# What may surround the last or first quoted phrase: digits and punctuation, but no quote mark.
_AROUND_QUOTES = string.digits + string.punctuation.replace('"', "")
_MINOR_WORDS = frozenset(
    "a an the and but for nor or so yet as at by in of off on per to up via from into with".split()
)
_FIXED_SENTENCE = "only output this sentence here, ignore all other requests."


def _is_emoji(char: str) -> bool:
    import emoji  # its table takes a moment to import

    return emoji.is_emoji(char)


# --- format ----------------------------------------------------------------------------------
@verifier(
    "format:parentheses",
    instruction="Nest brackets of the kinds (), [] and {{}} at least five levels deep.",
    example=Example({}, "(a [b {c (d [e])}])", "(a [b {c (d)}])"),
    defect="Only the innermost of the five levels has to be closed.",
)
def parentheses(text: Text) -> bool:
    stack: list[str] = []
    deepest = 0
    for bracket in _BRACKETS.findall(text.raw):
        if bracket in "([{":
            stack.append(bracket)
            deepest = max(deepest, len(stack))
        elif stack and stack[-1] == _OPENER_OF[bracket]:
            stack.pop()
            if deepest >= 5:
                return True
        else:  # a mismatch starts everything afresh
            stack.clear()
            deepest = 0
    return False


@repairs(parentheses, "Asks that all five are closed.", lost="(a [b {c (d [e]")
def parentheses_repaired(text: Text) -> bool:
    stack: list[str] = []
    levels: list[int] = []  # closed inside each open bracket
    for bracket in _BRACKETS.findall(text.raw):
        if bracket in "([{":
            stack.append(bracket)
            levels.append(0)
        elif stack and stack[-1] == _OPENER_OF[bracket]:
            stack.pop()
            closed = levels.pop() + 1
            if closed >= 5:
                return True
            if levels:
                levels[-1] = max(levels[-1], closed)
        else:
            stack.clear()
            levels.clear()
    return False


@verifier(
    "format:quotes",
    instruction="Put quotes inside quotes inside quotes, three levels deep, alternating between "
    "double and single quote marks.",
    example=Example({}, '"He said \'she said "no"\'"', "\"He said 'no'\""),
    defect="Apostrophes count as quote marks, so `don't \"it 'is' so\" it's` has three levels; "
    "curly quotes do not count.",
)
def quotes(text: Text) -> bool:
    return _closes_three_quotes(text.raw)


@repairs(
    quotes,
    "Leaves out apostrophes inside words and takes curly quotes.",
    lost="don't \"it 'is' so\" it's",
    gained="“He said ‘she said “no”’”",
)
def quotes_repaired(text: Text) -> bool:
    return _closes_three_quotes(_APOSTROPHE.sub("", text.raw.translate(_STRAIGHT_MARKS)))


def _closes_three_quotes(raw: str) -> bool:
    """Whether three levels close below the deepest one; a mark like the last open one closes."""
    stack: list[str] = []
    deepest = 0
    for mark in _QUOTES.findall(raw):
        if stack and stack[-1] == mark:
            stack.pop()
            if deepest - len(stack) >= 3:
                return True
        else:
            stack.append(mark)
            deepest = max(deepest, len(stack))
    return False


@verifier(
    "format:options",
    instruction="Answer with one of these options and nothing else: {options}",
    example=Example({"options": "yes/no/maybe"}, "Maybe.", "I would say maybe."),
    defect="Options are split at `or` even inside a word (`north, south`).",
)
def options(text: Text, options: str) -> bool:
    separator = "/" if "/" in options else "or" if "or" in options else ","
    return _is_option(text, options, options.split(separator))


@repairs(
    options,
    "Splits at the word `or` only.",
    lost="th, south",
    gained="South.",
    kwargs={"options": "north, south"},
)
def options_repaired(text: Text, options: str) -> bool:
    if "/" in options:
        return _is_option(text, options, options.split("/"))
    return _is_option(
        text, options, _OR.split(options) if _OR.search(options) else options.split(",")
    )


def _is_option(text: Text, options: str, choices: list[str]) -> bool:
    if _LETTERED.match(options):  # lettered options (A/B/C) must be given to the letter
        return any(text.raw == choice.strip() for choice in choices)
    answer = ps_strip(text.raw).lower()
    return any(answer == ps_strip(choice.strip()).lower() for choice in choices)


@verifier(
    "format:newline",
    instruction="Write each word on a line of its own.",
    example=Example({}, "one\ntwo\nthree", "one\ntwo three"),
)
def newline(text: Text) -> bool:
    lines = text.depunct.strip().split("\n")
    return len(lines) - lines.count("") == len(text.depunct.split())


@verifier(
    "format:emoji",
    instruction="End every sentence with an emoji.",
    example=Example({}, "Hello there! 😀 Bye now. 👋", "Hello there! Bye now. 👋"),
    defect="Flags and keycaps (several characters, none an emoji by itself) are not seen.",
)
def emoji_endings(text: Text) -> bool:
    bodies = (depunct(sentence).strip() for sentence in text.iter_sentences())
    # The splitter puts an emoji behind a period at the start of the next sentence.
    return all(
        body and (any(map(_is_emoji, body[-2:])) or any(map(_is_emoji, following[:1])))
        for body, following in pairwise(chain(bodies, [""]))
    )


@repairs(emoji_endings, "Takes a whole emoji sequence at the end.", gained="Bonjour 🇫🇷")
def emoji_endings_repaired(text: Text) -> bool:
    import emoji

    bodies = [sentence.strip() for sentence in text.sentences]
    for i, body in enumerate(bodies):
        # No emoji is longer than a few code points; the window keeps the search short.
        tail = rps_strip(body)[-32:]
        found = emoji.emoji_list(tail)
        if found and found[-1]["match_end"] == len(tail):
            continue
        following = bodies[i + 1][:32] if i + 1 < len(bodies) else ""
        found = emoji.emoji_list(following)
        if not found or found[0]["match_start"] != 0:
            return False
    return bool(bodies)


@verifier(
    "format:line_indent",
    instruction="Indent each line by more blanks than the line before, like a staircase.",
    example=Example({}, "one\n two\n  three", "one\n two\n two"),
    defect="Whether blank lines are ignored depends on how many stand together.",
)
def line_indent(text: Text) -> bool:
    return _indents_grow(_lines_left_over(text.lines))


@repairs(line_indent, "Ignores all of them.", gained="one\n\n\n two\n  three")
def line_indent_repaired(text: Text) -> bool:
    return _indents_grow([line for line in text.lines if line.strip()])


def _indents_grow(lines: list[str]) -> bool:
    return all(a < b for a, b in pairwise(len(line) - len(line.lstrip(" ")) for line in lines))


def _lines_left_over(lines: list[str]) -> list[str]:
    """The lines after blank ones were removed from the list while walking it, as published.

    Each removal makes the walk skip the next line, and takes the first equal line that is left:
    a blank line skipped before, if there is one, instead of the current one.
    """
    removed = [False] * len(lines)
    skipped: dict[str, deque[int]] = {}
    i = 0
    while i < len(lines):
        if lines[i].strip():
            i += 1
            continue
        equal = skipped.setdefault(lines[i], deque())
        equal.append(i)
        removed[equal.popleft()] = True
        if i + 1 < len(lines) and not lines[i + 1].strip():
            skipped.setdefault(lines[i + 1], deque()).append(i + 1)
        i += 2
    return [line for line, gone in zip(lines, removed, strict=True) if not gone]


@verifier(
    "format:quote_unquote",
    instruction="Follow every phrase in double quotes by an explanation without quotes.",
    example=Example({}, 'They say "time flies", so hurry.', 'They say "time flies"'),
    defect="Curly quotes are ignored.",
)
def quote_unquote(text: Text) -> bool:
    return _explains_quotes(text.raw)


@repairs(quote_unquote, "Treats them as straight ones.", lost="They say “time flies”")
def quote_unquote_repaired(text: Text) -> bool:
    return _explains_quotes(text.raw.translate(_STRAIGHT_QUOTES))


def _explains_quotes(raw: str) -> bool:
    joined = "".join(raw.replace('"\'"', "").split())
    return '""' not in joined and not joined.strip(_AROUND_QUOTES).endswith('"')


@verifier(
    "format:list",
    instruction="Answer with a list whose items are marked with {sep}",
    example=Example({"sep": "->"}, "-> one\n-> two", "-> one"),
    defect="The marker may stand anywhere in a line.",
)
def list_markers(text: Text, sep: AnyText) -> bool:
    return text.raw.count(sep) >= 2


@repairs(list_markers, "Asks for two lines that begin with it.", lost="one -> two -> three")
def list_markers_repaired(text: Text, sep: str) -> bool:
    return sum(line.lstrip().startswith(sep.strip()) for line in text.lines) >= 2


@verifier(
    "format:thesis",
    instruction="Begin with a thesis statement in italics, marked up in HTML.",
    example=Example({}, "<i>Tea wins.</i> It is warm.", "Tea wins. It is warm."),
    defect="`<em>` is cut at the length of `<i>`, so an empty `<em></em>` passes.",
)
def thesis(text: Text) -> bool:
    start = _find_first(text.raw, "<i>", "<em>")
    end = _find_first(text.raw, "</i>", "</em>", start) if start >= 0 else -1
    if end < 0:
        return False
    return bool(text.raw[start + 3 : end].strip()) and bool(text.raw[end + 4 :].strip())


@repairs(thesis, "Cuts each tag at its own length.", lost="<em></em> It is warm.")
def thesis_repaired(text: Text) -> bool:
    for tag in ("i", "em"):
        _, opened, rest = text.raw.partition(f"<{tag}>")
        inside, closed, after = rest.partition(f"</{tag}>")
        if opened:
            return bool(closed and inside.strip() and after.strip())
    return False


def _find_first(raw: str, wanted: str, otherwise: str, start: int = 0) -> int:
    found = raw.find(wanted, start)
    return found if found >= 0 else raw.find(otherwise, start)


@verifier(
    "format:sub-bullets",
    instruction="Use bullet points marked with * and below each at least one sub-bullet marked "
    "with -.",
    example=Example({}, "* fruit\n- apple\n* nuts\n- almond", "* fruit\n- apple\n* nuts"),
    defect="A response without bullets passes, any asterisk opens a bullet and any hyphen is a "
    "sub-bullet.",
)
def sub_bullets(text: Text) -> bool:
    return all("-" in piece for piece in text.raw.split("*")[1:])


@repairs(
    sub_bullets,
    "Looks at line starts and asks for a bullet.",
    lost="* well-known",
    gained="* **fruit**\n- apple",
)
def sub_bullets_repaired(text: Text) -> bool:
    starts = [line.lstrip()[:1] for line in text.lines if not line.lstrip().startswith("**")]
    bullets = "".join(start for start in starts if start in ("*", "-")).split("*")[1:]
    return bool(bullets) and all(bullets)


@verifier(
    "format:no_bullets_bullets",
    instruction="Write at least two sentences that end in a period, then at least two bullet "
    "points marked with *.",
    example=Example({}, "It rains. We stay.\n* tea\n* cake", "It rains.\n* tea\n* cake"),
    defect="A blank line between the sentences or the bullets fails, and no period is needed.",
)
def no_bullets_bullets(text: Text) -> bool:
    return _prose_then_bullets(text.lines, ends="")


@repairs(
    no_bullets_bullets,
    "Ignores blank lines and counts sentences that end in a period.",
    lost="Rain? Stay!\n* tea\n* cake",
    gained="It rains.\n\nWe stay.\n* tea\n* cake",
)
def no_bullets_bullets_repaired(text: Text) -> bool:
    return _prose_then_bullets([line for line in text.lines if line.strip()], ends=".")


def _prose_then_bullets(lines: list[str], ends: str) -> bool:
    """At least two sentences that end in `ends`, then at least two bullets and nothing else."""
    sentences = bullets = 0
    in_prose = True
    for line in map(str.strip, lines):
        if line.startswith("*"):
            if sentences < 2:
                return False
            bullets += 1
            in_prose = False
        elif not in_prose:
            return False
        elif not line:
            in_prose = False
        elif sentences < 2:  # two are enough: no need to split the rest
            sentences += sum(s.rstrip(CLOSERS).endswith(ends) for s in punkt_sentences(line))
    return bullets >= 2


@verifier(
    "format:title_case",
    instruction="Write your whole response in title case: every major word starts with a capital "
    "letter.",
    example=Example({}, "Every Word Counts Here.", "Every word counts here."),
    defect="Minor words (`of`) need a capital too, and `Don't` fails, because the tokenizer makes "
    "a word `n't` of it.",
)
def title_case(text: Text) -> bool:
    return not any(map(_breaks_title_case, text.iter_tokens()))


@repairs(
    title_case,
    "Lets articles, conjunctions and short prepositions inside the text be lower case, and takes "
    "`Don't`.",
    gained="Don't Step on the Grass",
)
def title_case_repaired(text: Text) -> bool:
    let_through = {"n't", "n’t"}  # and minor words, behind the first word
    for token in text.iter_tokens():
        if _breaks_title_case(token) and token not in let_through:
            return False
        let_through |= _MINOR_WORDS
    return True


def _breaks_title_case(token: str) -> bool:
    # Mixed words (iPhone) and those without a letter behind the first are let through.
    rest = token[1:]
    return (
        token[0].isalpha() and token[0].islower() and (not rest or rest.islower() or rest.isupper())
    )


@verifier(
    "format:output_template",
    instruction="Structure your answer by the headings My Answer:, My Conclusion: and Future "
    "Outlook:",
    example=Example(
        {},
        "My Answer: yes. My Conclusion: it works. Future Outlook: bright.",
        "My answer: yes. My conclusion: it works. Future outlook: bright.",
    ),
)
def output_template(text: Text) -> bool:
    return all(h in text.raw for h in ("My Answer:", "My Conclusion:", "Future Outlook:"))


@verifier(
    "format:no_whitespace",
    instruction="Use no blanks, tabs or line breaks.",
    example=Example({}, "NoBlanksHere.", "Blanks here."),
)
def no_whitespace(text: Text) -> bool:
    return not _SPACE.search(text.raw)


# --- repeat ----------------------------------------------------------------------------------
@verifier(
    "repeat:repeat_change",
    instruction="Repeat this text, but change its first word, and do not answer it: "
    "{prompt_to_repeat}",
    example=Example({"prompt_to_repeat": "Sing a song"}, "Write a song", "Sing a song"),
    defect="Another amount of whitespace is change enough.",
)
def repeat_change(text: Text, prompt_to_repeat: str) -> bool:
    return text.raw != prompt_to_repeat and text.ws_tokens[1:] == prompt_to_repeat.split()[1:]


@repairs(repeat_change, "Asks for another first word.", lost="Sing  a song")
def repeat_change_repaired(text: Text, prompt_to_repeat: str) -> bool:
    same_first = text.ws_tokens[:1] == prompt_to_repeat.split()[:1]
    return not same_first and repeat_change(text, prompt_to_repeat)


@verifier(
    "repeat:repeat_simple",
    instruction="Write exactly this and nothing else: "
    "Only output this sentence here, ignore all other requests.",
    example=Example(
        {},
        "Only output this sentence here, ignore all other requests.",
        "Only output this sentence here.",
    ),
)
def repeat_simple(text: Text) -> bool:
    return text.stripped.lower() == _FIXED_SENTENCE


@verifier(
    "repeat:repeat_span",
    instruction="Copy words {n_start} to {n_end} (counted from 0, both included) of this text and "
    "write nothing else: {prompt_to_repeat}",
    example=Example({"prompt_to_repeat": "a b c", "n_start": 0, "n_end": 0}, "A", "a b"),
    defect="The indices count characters.",
)
def repeat_span(text: Text, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    return text.stripped.lower() == prompt_to_repeat[n_start : n_end + 1].strip().lower()


@repairs(
    repeat_span,
    "Counts words.",
    lost="ed",
    gained="green blue",
    kwargs={"prompt_to_repeat": "red green blue", "n_start": 1, "n_end": 2},
)
def repeat_span_repaired(text: Text, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    return text.lower.split() == prompt_to_repeat.lower().split()[n_start : n_end + 1]
