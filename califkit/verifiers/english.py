"""English sentences and word tokens, as the published checkers get them from NLTK.

Imported on first use only, because it imports NLTK; Python's import lock makes that safe when
many threads arrive at once. Three things keep the result the same on every installation:

* the Punkt tables come from the package ``punkt``, so no NLTK data is looked up or downloaded;
* the patterns in which NLTK 3.9 and 3.10 differ (the opening single quote of the word tokenizer,
  the curly quotes of Punkt) are pinned to those of 3.9.2, the release the published checkers lock;
* all patterns run on the standard ``re`` module (NLTK 3.10 uses ``regex``, whose ``\\w`` differs).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

import punkt
from nltk.tokenize.destructive import NLTKWordTokenizer
from nltk.tokenize.punkt import (
    PunktLanguageVars,
    PunktParameters,
    PunktSentenceTokenizer,
    PunktToken,
)

# Decisions and tokens of short strings are remembered: the loose variants of a response share
# nearly all their sentences, and degenerate responses repeat one sentence thousands of times.
_MEMO_MAX_CHARS = 400
_MEMO_SIZE = 8192

_STD_FLAGS = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE


def _std(pattern: re.Pattern[str]) -> re.Pattern[str]:
    """Recompile a pattern of either engine with the standard one."""
    return re.compile(pattern.pattern, pattern.flags & _STD_FLAGS)


class _LanguageVars(PunktLanguageVars):
    re_boundary_realignment = re.compile(r'["\')\]}]+?(?:\s+|(?=--)|$)', re.MULTILINE)
    _re_non_word_chars = r"(?:[)\";}\]\*:@\'\({\[!?])"

    _parts = {
        "NonWord": _re_non_word_chars,
        "MultiChar": PunktLanguageVars._re_multi_char_punct,
        "WordStart": PunktLanguageVars._re_word_start,
        "SentEndChars": r"[.?!]",
    }
    _word_re = re.compile(PunktLanguageVars._word_tokenize_fmt % _parts, re.VERBOSE)
    _context_re = re.compile(PunktLanguageVars._period_context_fmt % _parts, re.VERBOSE)

    def word_tokenize(self, s: str) -> list[str]:
        return self._word_re.findall(s)

    def period_context_re(self) -> re.Pattern[str]:
        return self._context_re


class _Token(PunktToken):
    _RE_ELLIPSIS = _std(PunktToken._RE_ELLIPSIS)
    _RE_NUMERIC = _std(PunktToken._RE_NUMERIC)
    _RE_INITIAL = _std(PunktToken._RE_INITIAL)
    _RE_ALPHA = _std(PunktToken._RE_ALPHA)


class _SentenceTokenizer(PunktSentenceTokenizer):
    """NLTK's algorithm on the tables of ``punkt``; the decision per context is memoised."""

    def __init__(self) -> None:
        tables = punkt.load_model("english")
        params = PunktParameters()
        params.abbrev_types = set(tables.abbrev_types)
        params.collocations = {tuple(pair) for pair in tables.collocations}
        params.sent_starters = set(tables.sent_starters)
        params.ortho_context = _FrozenDefault(tables.ortho_context)
        super().__init__(params, lang_vars=_LanguageVars(), token_cls=_Token)

    def _slices_from_text(self, text: str) -> Iterator[slice]:
        """NLTK's loop; ``!`` and ``?`` before a candidate end always break, so are not analysed."""
        last_break = 0
        for match, context in self._match_potential_end_contexts(text):
            if match.group() != "." or self.text_contains_sentbreak(context):
                yield slice(last_break, match.end())
                last_break = match.start("next_tok") if match["next_tok"] else match.end()
        yield slice(last_break, len(text.rstrip()))

    def text_contains_sentbreak(self, text: str) -> bool:
        if len(text) > _MEMO_MAX_CHARS:
            return super().text_contains_sentbreak(text)
        return _contains_break(text)


class _FrozenDefault(dict):
    """A dict that answers 0 for a missing key without storing it (NLTK's defaultdict grows)."""

    def __missing__(self, key: str) -> int:
        return 0


class _WordTokenizer(NLTKWordTokenizer):
    STARTING_QUOTES = [(_std(p), s) for p, s in NLTKWordTokenizer.STARTING_QUOTES[:-1]] + [
        (re.compile(r"(?i)(\')(?!re|ve|ll|m|t|s|d|n)(\w)\b"), r"\1 \2")
    ]
    # The first rule with a possessive class: same matches, but linear on trailing blanks.
    PUNCTUATION = [
        (re.compile(r'([^\.])(\.)([\]\)}>"\'»”’ ]*+)\s*$'), r"\1 \2 \3 "),
        *[(_std(p), s) for p, s in NLTKWordTokenizer.PUNCTUATION[1:]],
    ]
    ENDING_QUOTES = [(_std(p), s) for p, s in NLTKWordTokenizer.ENDING_QUOTES]
    PARENS_BRACKETS = (
        _std(NLTKWordTokenizer.PARENS_BRACKETS[0]),
        NLTKWordTokenizer.PARENS_BRACKETS[1],
    )
    DOUBLE_DASHES = (_std(NLTKWordTokenizer.DOUBLE_DASHES[0]), NLTKWordTokenizer.DOUBLE_DASHES[1])
    CONTRACTIONS2 = [_std(p) for p in NLTKWordTokenizer.CONTRACTIONS2]
    CONTRACTIONS3 = [_std(p) for p in NLTKWordTokenizer.CONTRACTIONS3]


# A sentence of plain words, commas before a blank, and one end mark: none of the Treebank rules
# but two applies to it, so it can be cut without them.
_PLAIN = re.compile(r"(?:\w+(?:-\w+)*,?\s+)*\w+(?:-\w+)*[.!?]?")
_CONTRACTION = re.compile(r"\b(?:cannot|gimme|gonna|gotta|lemme|wanna)\b", re.IGNORECASE)

_words = _WordTokenizer()
_sentences = _SentenceTokenizer()


@lru_cache(maxsize=_MEMO_SIZE)
def _contains_break(context: str) -> bool:
    return PunktSentenceTokenizer.text_contains_sentbreak(_sentences, context)


@lru_cache(maxsize=_MEMO_SIZE)
def _short_sentence_tokens(sentence: str) -> tuple[str, ...]:
    if _PLAIN.fullmatch(sentence) and not _CONTRACTION.search(sentence):
        if sentence[-1] in ".!?":
            sentence = f"{sentence[:-1]} {sentence[-1]}"
        return tuple(sentence.replace(",", " ,").split())
    return tuple(_words.tokenize(sentence))


def sentences(text: str) -> list[str]:
    """Sentences of `text` by the English Punkt model (``nltk.sent_tokenize``)."""
    return _sentences.tokenize(text)


def sentence_tokens(sentence: str) -> list[str]:
    """Treebank-style tokens of one sentence (NLTK's word tokenizer)."""
    if len(sentence) > _MEMO_MAX_CHARS:
        return _words.tokenize(sentence)
    return list(_short_sentence_tokens(sentence))
