"""The part-of-speech tagger behind ``words:start_verb``: found in NLTK's data path, loaded once.

Nothing is downloaded; without the data one error names the command that gets it. Imported on
first use only, because it imports NLTK.
"""

from __future__ import annotations

from functools import lru_cache

import nltk
from nltk.tag.perceptron import PerceptronTagger

from califkit.verifiers.registry import ConstraintError

RESOURCE = "averaged_perceptron_tagger_eng"


class MissingTaggerError(ConstraintError):
    """The tagger's data is not in NLTK's data path."""


@lru_cache(maxsize=1)
def require() -> PerceptronTagger:
    """The tagger; `MissingTaggerError` unless its data is there."""
    try:
        nltk.data.find(f"taggers/{RESOURCE}/")
    except LookupError:
        raise MissingTaggerError(
            f"words:start_verb needs NLTK's data package {RESOURCE!r}, which is not in NLTK's data "
            f"path. Get it with: python -m nltk.downloader {RESOURCE}"
        ) from None
    return PerceptronTagger()


@lru_cache(maxsize=4096)  # the loose variants of a response mostly begin alike
def starts_with_verb(tokens: tuple[str, ...]) -> bool:
    """Whether the first token of a text gets a verb tag (``VB``, ``VBG``, ...).

    The tagger looks two tokens ahead, so the first three give the tag that the whole text gives.
    """
    return bool(tokens) and "VB" in require().tag(list(tokens))[0][1]
