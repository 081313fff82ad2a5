"""English sentences and word tokens, as the published checkers get them from NLTK, but sooner.

The rules are those of NLTK 3.9.2, the release that the published checkers lock, on the standard
``re`` module. NLTK itself is not imported, because that takes most of a second, and the Punkt
tables come from the package ``punkt``, so no NLTK data is looked up or downloaded. Imported on
first use only, because it loads the tables.

Both tokenizers look only at the neighbourhood of a blank or an end mark, so the work is done
piece by piece, plain words need none, and what was decided for a short piece is remembered: the
loose variants of a response share nearly all pieces, and degenerate responses repeat one.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from functools import lru_cache

import punkt

# Memory of the memos: at most this many entries of at most that many characters.
_MEMO_SIZE = 4096
_MEMO_MAX_CHARS = 400
_VOCABULARY_SIZE = 65_536
_WORD_MAX_CHARS = 40

# --- sentences (Punkt; Kiss and Strunk, 2006) --------------------------------------------------
_NON_WORD = r"(?:[)\";}\]\*:@\'\({\[!?])"
# An end mark followed by a non-word character, or by whitespace and the next token.
_END = rf"[.?!](?=(?P<after>{_NON_WORD}|\s+(?P<next>\S+)))"
_BLANKS = string.whitespace  # ASCII, as Punkt has it
_FIRST_END = re.compile(_END)
_LAST_END = re.compile(rf"[^{_BLANKS}]*{_END}")  # the last one before the next blank
_CLOSING = re.compile(r'["\')\]}]+?(?:\s+|(?=--)|$)', re.MULTILINE)


_MULTI = r"(?:-{2,}|\.{2,}|(?:\.\s){2,}\.)"
_WORD_END = rf"(?=\s|$|{_NON_WORD}|{_MULTI}|,(?=$|\s|{_NON_WORD}|{_MULTI}))"
_WORD = re.compile(rf"{_MULTI}|(?=[^(\"`{{\[:;&#*@)}}\]\-,])\S+?{_WORD_END}|\S")
_DOTS_ONLY = re.compile(r"\.{2,}$")
_INITIAL = re.compile(r"[^\W\d]\.$")
_NUMERIC = re.compile(r"-?[.,]?\d[\d,.-]*\.?$")
_NUMBER = "##number##"  # what the tables call any number
# How the tables say in which places and cases a word was seen.
_MIDDLE_UPPER, _ANY_UPPER, _BEGIN_LOWER, _ANY_LOWER = 0b100, 0b1110, 0b10000, 0b1110000

_tables = punkt.load_model("english")
_abbreviations = frozenset(_tables.abbrev_types)
_collocations = frozenset(map(tuple, _tables.collocations))
_starters = frozenset(_tables.sent_starters)


def _has_break(text: str) -> bool:
    """Whether a sentence ends inside a short text, behind a word that is not its last one."""
    words = [word for line in text.split("\n") for word in _WORD.findall(line)]
    return any(map(_ends_sentence, words, words[1:]))


def _ends_sentence(word: str, following: str) -> bool:
    if not word.endswith("."):
        return word in ("?", "!")
    kind, next_kind = _without_period(_kind(word)), _kind(following)
    if _is_full_stop(following):
        next_kind = _without_period(next_kind)
    if (kind, next_kind) in _collocations:
        return False
    opens, is_upper = _opens_sentence(following, next_kind), following[0].isupper()
    is_initial, is_stop = _INITIAL.match(word) is not None, _is_full_stop(word)
    is_abbreviation = not is_stop and not word.endswith("..")
    if (is_abbreviation or _DOTS_ONLY.match(word)) and not is_initial:
        if opens or is_upper and next_kind in _starters:
            return True
    if is_initial or kind == _NUMBER:
        never_lower = not _tables.ortho_context.get(next_kind, 0) & _ANY_LOWER
        if opens is False or opens is None and is_initial and is_upper and never_lower:
            return False
    return is_stop


def _is_full_stop(word: str) -> bool:
    """Whether a word is an end mark or ends in a period that is no part of it."""
    if word in (".", "?", "!"):
        return True
    stem = word[:-1].lower()
    known = stem in _abbreviations or stem.rpartition("-")[2] in _abbreviations
    return word.endswith(".") and not word.endswith("..") and not known


def _kind(word: str) -> str:
    """The word as the tables have it."""
    return _NUMBER if _NUMERIC.match(word) else word.lower()


def _without_period(kind: str) -> str:
    return kind[:-1] if len(kind) > 1 and kind.endswith(".") else kind


def _opens_sentence(word: str, kind: str) -> bool | None:
    """What a word's case says on whether it opens a sentence; None: nothing."""
    seen = _tables.ortho_context.get(kind, 0)
    if word in tuple(";:,.!?"):
        return False
    if word[0].isupper() and seen & _ANY_LOWER and not seen & _MIDDLE_UPPER:
        return True
    if word[0].islower() and (seen & _ANY_UPPER or not seen & _BEGIN_LOWER):
        return False
    return None


# Words whose period Punkt has to think about, whatever comes next.
_DOUBTFUL = _abbreviations | {first for first, _ in _collocations}
# Punkt takes all numbers for one word, so one number stands for all in the memo.
_NUMBERS = re.compile(r"(?<!\S)\d+(?=\.?(?!\S))")
_decide = lru_cache(maxsize=_MEMO_SIZE)(_has_break)


def _breaks(text: str) -> Iterator[tuple[int, int]]:
    """Sentence breaks: end of a sentence and start of the next one, before realignment."""
    blanks = [blank for blank in _BLANKS if blank in text]
    position = word_start = 0
    while match := _FIRST_END.search(text, position):
        mark = match.start()
        last_blank = max([text.rfind(blank, position, mark) for blank in blanks], default=-1)
        word_start = last_blank + 1 if last_blank > 0 else word_start
        # Of the end marks in a stretch between blanks the last one counts, and one that opens it.
        if mark > word_start and text[match.end()] not in _BLANKS:
            match = _LAST_END.match(text, mark)
        position = match.end()
        if _is_break(text[word_start:position], match["after"]):
            yield position, match.start("next") if match["next"] else position


def _is_break(word: str, after: str) -> bool:
    """Whether the end mark that closes `word` ends a sentence before `after`."""
    if word[-1] != ".":
        return True
    stem = word[:-1]
    if len(stem) > 1 and stem.isascii() and stem.isalnum() and not stem.isdigit():
        if stem.lower() not in _DOUBTFUL:
            return True  # An ordinary word, no initial and no number.
    context = word + after
    if stem.isdigit():
        context = _NUMBERS.sub("1", context)
    if len(context) > _MEMO_MAX_CHARS:
        return _has_break(context)
    return _decide(context)


def sentences(text: str) -> Iterator[str]:
    """Sentences of `text` by the English Punkt model (``nltk.sent_tokenize``), one by one.

    Closing quotes and brackets behind a break are taken back into the sentence before it.
    """
    start, length = 0, len(text.rstrip())
    breaks = _breaks(text)
    end, next_start = next(breaks, (length, None))
    while next_start is not None:
        next_end, after_next = next(breaks, (length, None))
        closing = text[next_start] in "\"')]}" and _CLOSING.match(text, next_start, next_end)
        if closing:
            yield text[start : next_start + len(closing.group().rstrip())]
            next_start = closing.end()
        elif start < end:
            yield text[start:end]
        start, end, next_start = next_start, next_end, after_next
    if start < end:
        yield text[start:end]


# --- word tokens (Treebank rules) --------------------------------------------------------------
_BACKTICKS = re.compile(r"`+")
_OPENING_DOUBLE = re.compile(r"([ (\[{<])(\"|'{2})")
_OPENING_SINGLE = re.compile(r"'(?!re|ve|ll|m|t|s|d|n)(?=\w\b)", re.IGNORECASE)
# The first with a possessive class: same matches, but linear on trailing blanks.
_FINAL_PERIOD = re.compile(r"([^.])\.([\])}>\"'»”’ ]*+)\s*$")
_LATE_FINAL_PERIOD = re.compile(r"([^.])\.([\])}>\"']*)\s*$")
_COLON_OR_COMMA = re.compile(r"([:,])(\D)")
_FINAL_COLON_OR_COMMA = re.compile(r"[:,]$")
_DOTS = re.compile(r"\.{2,}")
_CLOSING_SINGLE = re.compile(r"([^'])' ")
_CLITIC = re.compile(r"([^' ])('[sS]|'[mM]|'[dD]|') ")
_LONG_CLITIC = re.compile(r"([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) ")
_CONTRACTIONS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        *(r"\b(can)(not)\b", r"\b(d)('ye)\b", r"\b(gim)(me)\b", r"\b(gon)(na)\b"),
        *(r"\b(got)(ta)\b", r"\b(lem)(me)\b", r"\b(more)('n)\b", r"\b(wan)(na)(?=\s)"),
        *(r" ('t)(is)\b", r" ('t)(was)\b"),
    )
]
_CONTRACTED = re.compile(
    r"cannot|d'ye|gimme|gonna|gotta|lemme|more'n|wanna|'tis|'twas", re.IGNORECASE
)
# What may stand between a final period and the end of a sentence.
_FINAL_CLOSERS = "])}>\"'»”’" + "".join(filter(str.isspace, map(chr, range(0x3001))))


def _pad(text: str, marks: str) -> str:
    """Blanks around each of the marks."""
    for mark in marks:
        text = text.replace(mark, f" {mark} ")
    return text


def _treebank(text: str) -> list[str]:
    """Tokens of a short text: the rules in the order of NLTK's word tokenizer."""
    text = _pad(text, "«“‘„")
    if "`" in text:
        text = _BACKTICKS.sub(r" \g<0> ", text)
    if text.startswith('"'):
        text = "``" + text[1:]
    text = text.replace("``", " `` ")
    if '"' in text or "'" in text:
        text = _OPENING_DOUBLE.sub(r"\1 `` ", text)
        text = _OPENING_SINGLE.sub("' ", text)
    if "." in text:
        text = _FINAL_PERIOD.sub(r"\1 . \2 ", text)
    if ":" in text or "," in text:
        text = _COLON_OR_COMMA.sub(r" \1 \2", text)
        text = _FINAL_COLON_OR_COMMA.sub(r" \g<0> ", text)
    if "." in text:
        text = _DOTS.sub(r" \g<0> ", text)
    text = _pad(text, ";@#$%&‒–—―")
    if "." in text:
        text = _LATE_FINAL_PERIOD.sub(r"\1 .\2 ", text)
    text = _pad(text, "?!")
    if "'" in text:
        text = _CLOSING_SINGLE.sub(r"\1 ' ", text)
    text = _pad(text, "*[](){}<>").replace("--", " -- ")
    text = _pad(f" {text} ", "»”’").replace("''", " '' ").replace('"', " '' ")
    if "'" in text:
        text = " ".join(["", *text.split(), ""])
        text = _LONG_CLITIC.sub(r"\1 \2 ", _CLITIC.sub(r"\1 \2 ", text))
    if _CONTRACTED.search(text):
        for contraction in _CONTRACTIONS:
            text = contraction.sub(r" \1 \2 ", text)
    return text.split()


# What some rule acts on, a single final mark aside; text without it is cut at blanks only.
_SPLITS = re.compile(
    r"[«“‘„`\"':,;@#$%&‒–—―?!*\[\](){}<>»”’]|\.\.|--|cannot|gimme|gonna|gotta|lemme|wanna",
    re.IGNORECASE,
)


def _inner_tokens(piece: str) -> tuple[str, ...]:
    """Tokens that a blank-separated piece has between two other words."""
    if not _SPLITS.search(piece):
        return tuple(piece.split())
    if piece[-1] in ",:;" and not _SPLITS.search(piece, 0, len(piece) - 1):
        return (*piece[:-1].split(), piece[-1])
    return tuple(_treebank(f"x {piece} x")[1:-1])


def _plain_ending(piece: str) -> tuple[str, ...] | None:
    """Tokens of the end of a sentence, if no rule but the one on the final mark acts on it."""
    piece = piece.rstrip()
    body, mark = (piece[:-1], piece[-1]) if piece[-1:] in (".", "?", "!") else (piece, "")
    if _SPLITS.search(body) or body.endswith("."):
        return None
    return (*body.split(), *mark)


def _last_tokens(piece: str) -> tuple[str, ...]:
    """Tokens of what stands behind the last blank of a sentence."""
    tokens = _plain_ending(piece)
    return tuple(_treebank(f"x {piece}")[1:]) if tokens is None else tokens


_short_inner_tokens = lru_cache(maxsize=_VOCABULARY_SIZE)(_inner_tokens)
_short_last_tokens = lru_cache(maxsize=_VOCABULARY_SIZE // 4)(_last_tokens)


def _split(sentence: str) -> list[str]:
    """Tokens of a sentence, piece by piece: no rule looks beyond the next blank.

    Quotes are told apart by the character before them, and blanks and line breaks differ there;
    and a few rules work on the first character, the last piece and the final period only.
    """
    quoted = '"' in sentence or "'" in sentence
    separator = " " if quoted else None
    body = sentence.rstrip(_FINAL_CLOSERS)
    last = body.rsplit(separator, maxsplit=1)[-1] if body else ""
    cut = len(body) - len(last)
    ending = sentence[cut:]
    if not sentence[:cut].strip():
        return list(_plain_ending(sentence) or _treebank(sentence))
    tokens: list[str] = []
    pieces = sentence[:cut].split(separator)
    if pieces[0][:1] in ('"', "'"):
        tokens += _treebank(f"{pieces[0]} x")[:-1]
        del pieces[0]
    for piece in pieces:
        short = len(piece) <= _WORD_MAX_CHARS
        tokens += _short_inner_tokens(piece) if short else _inner_tokens(piece)
    tokens += (_short_last_tokens if len(ending) <= _WORD_MAX_CHARS else _last_tokens)(ending)
    return tokens


@lru_cache(maxsize=_MEMO_SIZE)
def _short_sentence_tokens(sentence: str) -> tuple[str, ...]:
    return tuple(_split(sentence))


def sentence_tokens(sentence: str) -> list[str]:
    """Treebank-style tokens of one sentence (NLTK's word tokenizer)."""
    if len(sentence) > _MEMO_MAX_CHARS:
        return _split(sentence)
    return list(_short_sentence_tokens(sentence))
