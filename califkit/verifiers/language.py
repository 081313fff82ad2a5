"""Language of a text by ``langdetect``, made repeatable and quick.

``langdetect`` samples n-grams at random and loads its profiles into a global that other threads
see half filled. Here the profiles are loaded once, at import (so under Python's import lock),
into a factory of our own, and every detection starts from seed 0: the answer depends on the text
alone, not on what was detected before or by which thread. Imported on first use only.

The detector is ``langdetect``'s algorithm on its profiles with the loops rewritten: same n-grams,
same sample, same floating-point operations in the same order, so the same answer, sooner.
"""

from __future__ import annotations

import random
import re
from functools import lru_cache
from pathlib import Path

import numpy as np
from langdetect.detector import Detector
from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory
from langdetect.utils.ngram import NGram

_SEED = 0
# Detection looks at the first 10,000 characters left after URLs and e-mail addresses are taken
# out. A match is at most 2,084 (URL) or 575 (address) characters long, so what a cut can change
# in the cleaned text lies in its last 3,000 characters.
_WINDOW = 10_000
_CUT_MARGIN = 3_000
_MEMO_MAX_CHARS = 40

_BLANKS = re.compile(" {2,}")
_LATIN = re.compile("[A-z]")
_NON_LATIN = re.compile("[\u0300-\u1dff\u1f00-\U0010ffff]")  # All but Latin Extended Additional.


class _Normal(dict):
    """Character -> the one that the n-grams use; filled as characters come up."""

    def __missing__(self, code: int) -> str:
        self[code] = NGram.normalize(chr(code))
        return self[code]


def _load_factory() -> DetectorFactory:
    factory = DetectorFactory()
    profiles = sorted(p for p in Path(PROFILES_DIRECTORY).iterdir() if not p.name.startswith("."))
    factory.load_json_profile([p.read_text(encoding="utf-8") for p in profiles])
    factory.set_seed(_SEED)
    return factory


_factory = _load_factory()
_normal = _Normal()


@lru_cache(maxsize=8192)
def _vector(gram: str) -> np.ndarray:
    """Probability of a known n-gram in each language."""
    return np.array(_factory.word_lang_prob_map[gram])


def _word_grams(word: str) -> tuple[str, ...]:
    """Known 1- to 3-grams of a blank-separated word, in order; a blank may end the word.

    Inside a run of capitals there are none.
    """
    known = _factory.word_lang_prob_map
    padded, found = " " + word, []
    for end in range(2, len(padded) + 1):
        if padded[end - 1].isupper() and padded[end - 2].isupper():
            continue
        for gram in (padded[end - 1], padded[end - 2 : end], padded[max(end - 3, 0) : end]):
            if gram != " " and gram in known:
                found.append(gram)
            if end == 2 and len(gram) == 2:  # The first character has no 3-gram.
                break
    return tuple(found)


_memo_word_grams = lru_cache(maxsize=16384)(_word_grams)


def _grams(text: str) -> list[str]:
    """Known n-grams of `text` after ``langdetect``'s cleaning."""
    text = Detector.MAIL_RE.sub(" ", Detector.URL_RE.sub(" ", text))
    text = _BLANKS.sub(" ", NGram.normalize_vi(text)[:_WINDOW])
    if not text.isascii() and 2 * len(_LATIN.findall(text)) < len(_NON_LATIN.findall(text)):
        text = _LATIN.sub("", text)
    grams: list[str] = []
    *closed, last = text.translate(_normal).split(" ")
    for word in [*(w + " " for w in closed if w), last]:
        short = len(word) <= _MEMO_MAX_CHARS
        grams.extend(_memo_word_grams(word) if short else _word_grams(word))
    return grams


def _most_probable(grams: list[str]) -> str:
    """Language with the highest mean posterior over the sampled trials."""
    rng = random.Random(_SEED)
    n_languages, n_trials = len(_factory.langlist), 7
    total = np.zeros(n_languages)
    for trial in range(1, n_trials + 1):
        total += _posterior(grams, rng, n_languages) / n_trials
        second, first = np.partition(total, -2)[-2:]
        if first - second > (n_trials - trial) / n_trials + 1e-9:
            break  # The trials left cannot change the winner.
    best = int(total.argmax())
    return _factory.langlist[best] if total[best] > Detector.PROB_THRESHOLD else "unknown"


def _posterior(grams: list[str], rng: random.Random, n_languages: int) -> np.ndarray:
    """One trial: multiply probabilities of sampled n-grams until one language is near 1."""
    alpha = Detector.ALPHA_DEFAULT + rng.gauss(0.0, 1.0) * Detector.ALPHA_WIDTH
    factors = np.empty((6, n_languages))  # The posterior so far, then up to five n-grams.
    posterior = np.full(n_languages, 1.0 / n_languages)
    for drawn in range(0, Detector.ITERATION_LIMIT + 1, 5):
        rows = 5 if drawn else 1
        for row in range(1, rows + 1):
            factors[row] = _vector(rng.choice(grams))
        factors[1 : rows + 1] += alpha / Detector.BASE_FREQ
        factors[0] = posterior
        posterior = np.multiply.reduce(factors[: rows + 1], axis=0)  # Row by row, in order.
        posterior /= sum(posterior.tolist())  # Not .sum(), which adds in another order.
        if posterior.max() > Detector.CONV_THRESHOLD:
            break
    return posterior


def detect(text: str) -> str | None:
    """Language code of `text` (``"en"``, ``"zh-cn"``, ``"unknown"``), None if it has no features.

    None stands for the exception that ``langdetect.detect`` raises on a text without letters.
    """
    grams = _grams(_window(text))
    return _most_probable(grams) if grams else None


def _window(text: str) -> str:
    """Start of `text` that decides the detection, so that 1 MB costs no more than 20 KB."""
    size = 2 * _WINDOW
    while size < len(text):
        head = text[:size]
        cleaned = Detector.MAIL_RE.sub(" ", Detector.URL_RE.sub(" ", head))
        if len(cleaned) >= _WINDOW + _CUT_MARGIN:
            return head
        size *= 4
    return text
