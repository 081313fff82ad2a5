"""What the tests of the verifiers share."""

from pathlib import Path

import pytest

NLTK_DATA = Path(__file__).resolve().parents[3] / "shared" / "nltk_data"


@pytest.fixture
def tagger_path(monkeypatch) -> Path:
    """Has NLTK look for the tagger's data beside the repository, too; nothing is kept of before."""
    import nltk

    from califkit.verifiers import tagger

    monkeypatch.setattr(nltk.data, "path", [str(NLTK_DATA), *nltk.data.path])
    tagger.require.cache_clear()
    return NLTK_DATA


@pytest.fixture
def tagger(tagger_path):
    """The tagger's module, where its data is installed."""
    from califkit.verifiers import tagger

    try:
        tagger.require()
    except tagger.MissingTaggerError:
        pytest.skip("the tagger's data is not installed")
    return tagger
