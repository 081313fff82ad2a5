"""Text rules (word, sentence, line, language), by name and computed once per response.

Every rule that a checker needs lives here; a checker takes a `Text` and reads what it wants:

>>> t = Text("Well-known facts. Don't ask!")
>>> t.ws_tokens
['Well-known', 'facts.', "Don't", 'ask!']
>>> t.words
['Well', 'known', 'facts', 'Don', 't', 'ask']
>>> t.depunct
'Wellknown facts Dont ask'
>>> t.sentences
['Well-known facts.', "Don't ask!"]
>>> t.tokens
['Well-known', 'facts', '.', 'Do', "n't", 'ask', '!']
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from functools import cached_property
from itertools import chain

# What may stand between the end mark of a sentence and its end.
CLOSERS = "\"'”’)]}*_ "
_PS = string.punctuation + " "
_DEPUNCT = str.maketrans("", "", string.punctuation)
_WORD = re.compile(r"\w+")
_DOTLESS = str.maketrans("İı", "ii")
_ASCII_WORDS = "".join(c if _WORD.match(c) else " " for c in map(chr, range(128)))
_BARE = re.compile(r"[^\W_](?:.*[^\W_])?", re.DOTALL)


def ps_strip(s: str) -> str:
    """Strip ASCII punctuation and the plain space (no tab, no newline); below, one end only."""
    return s.strip(_PS)


def lps_strip(s: str) -> str:
    return s.lstrip(_PS)


def rps_strip(s: str) -> str:
    return s.rstrip(_PS)


def depunct(s: str) -> str:
    """Delete every ASCII punctuation character; nothing is put in its place."""
    return s.translate(_DEPUNCT)


def fold(s: str) -> str:
    """Text such that what ``re.IGNORECASE`` takes for equal becomes equal (and little else)."""
    return s.lower() if s.isascii() else s.translate(_DOTLESS).casefold()


def bare(token: str) -> str:
    """A token from its first letter or digit to its last, "" if it has none.

    >>> bare("(don't!)")
    "don't"
    """
    core = _BARE.search(token)
    return core.group() if core else ""


def bare_words(s: str) -> list[str]:
    """Words as a reader counts them: tokens between blanks, made `bare`, empty ones left out."""
    return [word for token in s.split() if (word := bare(token))]


def punkt_sentences(s: str) -> list[str]:
    """Sentences by the English Punkt model; inner newlines are kept, blank text gives []."""
    from califkit.verifiers import english

    return list(english.sentences(s))


def word_tokens(s: str) -> list[str]:
    """Treebank-style tokens of all Punkt sentences of `s` (``nltk.word_tokenize``)."""
    from califkit.verifiers import english

    return [t for sentence in english.sentences(s) for t in english.sentence_tokens(sentence)]


# --- rule-based sentences --------------------------------------------------------------------
# Source: constraint ids of the training suite (open-instruct, IFEvalG). Upstream works on marks
# written into the text, so a response that contains the marks is affected; kept for exactness.
_DOT = "<prd>"
_STOP = "<stop>"
_STARTERS = (
    r"(Mr|Mrs|Ms|Dr|Prof|Capt|Cpt|Lt|He\s|She\s|It\s|They\s|Their\s|Our\s|We\s|But\s|However\s"
    r"|That\s|This\s|Wherever)"
)
_TITLE = re.compile(r"(Mr|St|Mrs|Ms|Dr)\.")
_SITE = re.compile(r"\.(com|net|org|io|gov|edu|me)")
_DECIMAL = re.compile(r"([0-9])\.([0-9])")
_ELLIPSIS = re.compile(r"\.{2,}")
_LETTER_DOT = re.compile(r"\s([A-Za-z])\. ")
_ACRONYM = re.compile(r"([A-Z]\.[A-Z]\.(?:[A-Z]\.)?) " + _STARTERS)
_THREE_LETTERS = re.compile(r"([A-Za-z])\.([A-Za-z])\.([A-Za-z])\.")
_TWO_LETTERS = re.compile(r"([A-Za-z])\.([A-Za-z])\.")
_SUFFIX_STARTER = re.compile(r" (Inc|Ltd|Jr|Sr|Co)\. " + _STARTERS)
_SUFFIX = re.compile(r" (Inc|Ltd|Jr|Sr|Co)\.")
_LATE_LETTER = re.compile(r" ([A-Za-z])\.")


def _protect_dots(s: str) -> str:
    """Marks for dots that end no sentence, and the stops that need no dot."""
    s = _TITLE.sub(rf"\1{_DOT}", s)
    s = _SITE.sub(rf"{_DOT}\1", s)
    s = _DECIMAL.sub(rf"\1{_DOT}\2", s)
    s = _ELLIPSIS.sub(lambda m: _DOT * len(m.group()) + _STOP, s)
    s = s.replace("Ph.D.", f"Ph{_DOT}D{_DOT}")
    s = _LETTER_DOT.sub(rf" \1{_DOT} ", s)
    s = _ACRONYM.sub(rf"\1{_STOP} \2", s)
    s = _THREE_LETTERS.sub(rf"\1{_DOT}\2{_DOT}\3{_DOT}", s)
    s = _TWO_LETTERS.sub(rf"\1{_DOT}\2{_DOT}", s)
    s = _SUFFIX_STARTER.sub(rf" \1{_STOP} \2", s)
    s = _SUFFIX.sub(rf" \1{_DOT}", s)
    return _LATE_LETTER.sub(rf" \1{_DOT}", s)


def _cut(s: str) -> list[str]:
    """Pieces between the stops, stripped; the last one is what stands behind the last stop."""
    if "." in s:
        s = _protect_dots(s)
    for wrong, right in ((".”", "”."), ('."', '".'), ('!"', '"!'), ('?"', '"?')):
        s = s.replace(wrong, right)
    for end in ".?!":
        s = s.replace(end, end + _STOP)
    return [piece.strip() for piece in s.replace(_DOT, ".").split(_STOP)]


# None of the rules above concerns a period behind three lower-case letters and before a blank,
# and none looks across it, so the text can be cut there first.
_MARKED = re.compile("[.?!<]")  # may hold another stop, or an upstream mark
_PLAIN_END = re.compile(r"\.(?<=[a-z][a-z][a-z]\.)(?= )")


def iter_rule_sentences(s: str) -> Iterator[str]:
    """`rule_sentences` one by one."""
    s = " " + s.replace("\n", " ") + "  "
    start = 0
    for plain_end in _PLAIN_END.finditer(s):
        piece = s[start : plain_end.end()]
        start = plain_end.end()
        if _MARKED.search(piece, 0, len(piece) - 1):
            yield from _cut(piece)[:-1]
        else:
            yield piece.strip()
    pieces = _cut(s[start:])
    yield from pieces if pieces[-1] else pieces[:-1]


def rule_sentences(s: str) -> list[str]:
    """Sentences by fixed rules on ASCII letters and digits (the training suite's splitter).

    A text without a terminator is one sentence, blank text gives []. ``Wait?!`` gives two
    pieces; only a last empty piece is dropped.

    >>> rule_sentences("Dr. Who paid 3.50 dollars. Why?! It is odd")
    ['Dr. Who paid 3.50 dollars.', 'Why?', '!', 'It is odd']
    """
    return list(iter_rule_sentences(s))


class Text:
    """One variant of a response, `raw`, with its analyses, each computed on first use and kept."""

    def __init__(self, raw: str) -> None:
        self.raw = raw

    @cached_property
    def lower(self) -> str:
        return self.raw.lower()

    @cached_property
    def stripped(self) -> str:
        return self.raw.strip()

    @cached_property
    def depunct(self) -> str:
        return depunct(self.raw)

    @cached_property
    def ws_tokens(self) -> list[str]:
        return self.raw.split()

    @cached_property
    def words(self) -> list[str]:
        r"""Maximal ``\w+`` runs in the sense of the standard ``re`` (``don't`` is two)."""
        if self.raw.isascii():  # the same, four times as fast
            return self.raw.translate(_ASCII_WORDS).split()
        return _WORD.findall(self.raw)

    @cached_property
    def folded(self) -> str:
        return fold(self.raw)

    @cached_property
    def folded_words(self) -> dict[str, str]:
        """The distinct `words`, each by its folded form."""
        return {fold(word): word for word in self.words}

    @cached_property
    def lines(self) -> list[str]:
        """Lines, split at ``\\n`` only."""
        return self.raw.split("\n")

    # What is split one by one is for checks that may be decided by the first pieces.
    @cached_property
    def sentences(self) -> list[str]:
        """Punkt sentences."""
        return punkt_sentences(self.raw)

    def iter_sentences(self) -> Iterator[str]:
        from califkit.verifiers import english

        return iter(self.__dict__.get("sentences") or english.sentences(self.raw))

    @cached_property
    def tokens(self) -> list[str]:
        """Treebank-style tokens of the whole text (``nltk.word_tokenize``)."""
        return list(self.iter_tokens())

    def iter_tokens(self) -> Iterator[str]:
        from califkit.verifiers import english

        if "tokens" in self.__dict__:
            return iter(self.tokens)
        return chain.from_iterable(map(english.sentence_tokens, self.iter_sentences()))

    def outer_tokens(self, n: int) -> list[str]:
        """Tokens of which at least the first and the last `n` are those of the whole text."""
        from califkit.verifiers import english

        if len(self.sentences) <= 2 * n:  # each sentence has a token, so n of them have n
            return self.tokens
        outer = self.sentences[:n] + self.sentences[-n:]
        return [token for sentence in outer for token in english.sentence_tokens(sentence)]

    @cached_property
    def rule_sentences(self) -> list[str]:
        return rule_sentences(self.raw)

    @cached_property
    def language(self) -> str | None:
        """Detected language code, None when detection has nothing to go by (no letters)."""
        from califkit.verifiers import language

        return language.detect(self.raw)


def loose_variants(response: str) -> list[str]:
    """The distinct texts of the loose evaluation, in their order.

    The response; without asterisks; without its first line, its last line, both (stripped);
    and those three without asterisks. Blank variants are left out: they follow nothing.

    >>> loose_variants("Sure:\\n*Yes*")
    ['Sure:\\n*Yes*', 'Sure:\\nYes', '*Yes*', 'Sure:', 'Yes']
    """
    lines = response.split("\n")
    cuts = ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    variants = [response, *cuts]
    if "*" in response:
        starless = [variant.replace("*", "") for variant in variants]
        variants = [response, starless[0], *cuts, *starless[1:]]
    return [v for v in dict.fromkeys(variants) if v.strip()]
