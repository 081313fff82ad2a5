"""Language of a text by ``langdetect``, made repeatable and quick.

``langdetect`` samples n-grams at random and loads its profiles into a global that other threads
see half filled. Here they are loaded at import (so under Python's import lock), and every
detection starts from seed 0: the answer depends on the text alone. Imported on first use only.

Same n-grams, same sample, same products; posteriors agree to rounding, some 1e-14. What is quick is
that a word's n-grams are remembered, that the numbers of ``random.Random(0)`` are generated once,
and that a trial is one matrix operation.
"""

from __future__ import annotations

import json
import math
import random
import re
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
from langdetect.detector import Detector
from langdetect.detector_factory import PROFILES_DIRECTORY
from langdetect.utils.ngram import NGram

_SEED = 0
_N_TRIALS = 7
# Detection looks at the first 10,000 characters left after URLs and e-mail addresses are taken
# out. A match is at most 2,084 (URL) or 575 (address) characters long, so what a cut can change
# in the cleaned text lies in its last 3,000 characters.
_WINDOW = 10_000
_CUT_MARGIN = 3_000
_MEMO_MAX_CHARS = 40

_LATIN = re.compile("[A-z]")
_NON_LATIN = re.compile("[\u0300-\u1dff\u1f00-\U0010ffff]")  # All but Latin Extended Additional.


class _Normal(dict):
    """Character -> the one that the n-grams use; filled as characters come up."""

    def __missing__(self, code: int) -> str:
        self[code] = NGram.normalize(chr(code))
        return self[code]


def _load_profiles() -> tuple[list[str], dict[str, int], np.ndarray]:
    """Languages, row of each known n-gram, and its probability [n-gram, language]."""
    files = sorted(p for p in Path(PROFILES_DIRECTORY).iterdir() if not p.name.startswith("."))
    profiles = [json.loads(file.read_bytes()) for file in files]
    row_of: dict[str, int] = {}
    for profile in profiles:
        for gram in profile["freq"]:
            row_of.setdefault(gram, len(row_of))
    table = np.zeros((len(row_of), len(profiles)))
    for language, profile in enumerate(profiles):
        totals = profile["n_words"]  # of 1-, 2- and 3-grams
        rows = [row_of[gram] for gram in profile["freq"]]
        table[rows, language] = [n / totals[len(gram) - 1] for gram, n in profile["freq"].items()]
    return [profile["name"] for profile in profiles], row_of, table


_languages, _row_of, _probabilities = _load_profiles()
_normal = _Normal()


# --- n-grams -----------------------------------------------------------------------------------
def _word_rows(word: str) -> list[int]:
    """Rows of the known 1- to 3-grams of a word; a blank may end it.

    Inside a run of capitals there are none.
    """
    padded, found = " " + word, []
    for end in range(2, len(padded) + 1):
        if padded[end - 1].isupper() and padded[end - 2].isupper():
            continue
        for gram in (padded[end - 1], padded[end - 2 : end], padded[max(end - 3, 0) : end]):
            if gram != " " and gram in _row_of:
                found.append(_row_of[gram])
            if end == 2 and len(gram) == 2:  # The first character has no 3-gram.
                break
    return found


def _piece_rows(piece: str) -> tuple[int, ...]:
    """Rows of what stands between two blanks; punctuation in it acts as a blank too."""
    words = filter(None, piece.translate(_normal).split(" "))
    return tuple(row for word in words for row in _word_rows(word + " "))


_short_piece_rows = lru_cache(maxsize=32_768)(_piece_rows)


def _without_addresses(text: str) -> str:
    """The text with a blank for each URL and e-mail address."""
    if "http" in text:
        text = Detector.URL_RE.sub(" ", text)
    return Detector.MAIL_RE.sub(" ", text) if "@" in text else text


def _rows(text: str) -> list[int]:
    """Rows of the known n-grams of `text` after ``langdetect``'s cleaning."""
    text = _without_addresses(text)
    if not text.isascii():
        text = NGram.normalize_vi(text)[:_WINDOW]
        needed = len(_NON_LATIN.findall(text)) / 2
        if sum(1 for _ in islice(_LATIN.finditer(text), math.ceil(needed))) < needed:
            text = _LATIN.sub("", text)
    *pieces, last = text[:_WINDOW].replace("\n", " ").split(" ")
    rows: list[int] = []
    for piece in pieces:
        rows += _short_piece_rows(piece) if len(piece) <= _MEMO_MAX_CHARS else _piece_rows(piece)
    *words, open_word = last.translate(_normal).split(" ")
    return rows + list(_piece_rows(" ".join(words))) + _word_rows(open_word)


# --- trials ------------------------------------------------------------------------------------
def _random_bits(n: int) -> np.ndarray:
    """The first `n` 32-bit outputs of ``random.Random(0)``: all else comes of them."""
    rng = random.Random(_SEED)
    return np.array([rng.getrandbits(32) for _ in range(n)], dtype=np.uint32)


# A trial draws at most 1,001 n-grams, and a draw takes two outputs on average at most.
_bits = _random_bits(4 * _N_TRIALS * (Detector.ITERATION_LIMIT + 1))


class _Stream:
    """What the methods of ``random.Random(0)`` return, many draws at once."""

    def __init__(self) -> None:
        self.position = 0  # outputs used so far
        self._spare: float | None = None

    def gauss(self) -> float:
        """``gauss(0, 1)``: numbers come in pairs, from two uniform ones of two outputs each."""
        if self._spare is not None:
            value, self._spare = self._spare, None
            return value
        a, b, c, d = _bits[self.position : self.position + 4].tolist()
        self.position += 4
        angle = ((a >> 5) * 2**26 + (b >> 6)) / 2**53 * math.tau
        radius = math.sqrt(-2.0 * math.log(1.0 - ((c >> 5) * 2**26 + (d >> 6)) / 2**53))
        self._spare = math.sin(angle) * radius
        return math.cos(angle) * radius

    def choices(self, n: int, k: int) -> tuple[list[int], list[int]]:
        """The next `k` indices below `n` that ``choice`` takes, and the position behind each."""
        candidates = _bits[self.position : self.position + 8 * k] >> (32 - n.bit_length())
        kept = np.flatnonzero(candidates < n)[:k]
        return candidates[kept].tolist(), (kept + self.position + 1).tolist()


def _posterior(rows: list[int], stream: _Stream) -> np.ndarray:
    """One trial: multiply probabilities of sampled n-grams until one language is near 1.

    Convergence is looked at after n-gram 1, 6, 11, ...; a step here takes 50 n-grams at once
    (most texts need fewer), which is far from underflow.
    """
    alpha = Detector.ALPHA_DEFAULT + stream.gauss() * Detector.ALPHA_WIDTH
    weight = alpha / Detector.BASE_FREQ
    products = np.full((1, len(_languages)), 1.0 / len(_languages))
    first_check, n_draws = 1, 51
    for _ in range(0, Detector.ITERATION_LIMIT, 50):
        drawn, positions = stream.choices(len(rows), n_draws)
        factors = _probabilities.take([rows[i] for i in drawn], axis=0)
        factors += weight
        products = np.multiply.accumulate(np.concatenate([products[-1:], factors]))
        checked = products[first_check::5]
        checked /= checked.sum(axis=1, keepdims=True)
        converged = checked.max(axis=1) > Detector.CONV_THRESHOLD
        last = int(converged.argmax()) if converged.any() else len(checked) - 1
        stream.position = positions[first_check - 1 + 5 * last]
        if converged[last]:
            break
        first_check, n_draws = 5, 50
    return checked[last]


def _most_probable(rows: list[int]) -> str:
    """Language with the highest mean posterior over the sampled trials."""
    stream = _Stream()
    total = np.zeros(len(_languages))
    for trial in range(1, _N_TRIALS + 1):
        total += _posterior(rows, stream) / _N_TRIALS
        second, first = np.partition(total, -2)[-2:]
        if first - second > (_N_TRIALS - trial) / _N_TRIALS + 1e-9:
            break  # The trials left cannot change the winner.
    best = int(total.argmax())
    return _languages[best] if total[best] > Detector.PROB_THRESHOLD else Detector.UNKNOWN_LANG


def detect(text: str) -> str | None:
    """Language code of `text` (``"en"``, ``"zh-cn"``, ``"unknown"``), None if it has no features.

    None stands for the exception that ``langdetect.detect`` raises on a text without letters.
    """
    rows = _rows(_window(text))
    return _most_probable(rows) if rows else None


def _window(text: str) -> str:
    """Start of `text` that decides the detection, so that 1 MB costs no more than 20 KB."""
    size = 2 * _WINDOW
    while size < len(text):
        head = text[:size]
        if len(_without_addresses(head)) >= _WINDOW + _CUT_MARGIN:
            return head
        size *= 4
    return text
