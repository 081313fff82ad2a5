"""Diagnose and correct reward hacking in verifiable instruction following.

The names below are the everyday entry points; everything else lives in the room its name says.
They are resolved on first use, so that ``import califkit`` loads neither torch nor transformers
nor nltk.

Examples
--------
>>> from califkit import Constraint, verify
>>> verify(Constraint("punctuation:no_comma"), "Tea first and then the news.")
True
>>> verify(Constraint("punctuation:no_comma"), "Tea first, then the news.")
False
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from califkit.anchors.bounds import measure_bounds
    from califkit.data.rows import constraints_json
    from califkit.rewards.trl import CalifReward
    from califkit.verifiers import Constraint, verify

__version__ = "0.2.0"

__all__ = [
    "CalifReward",
    "CalifkitError",
    "Constraint",
    "__version__",
    "constraints_json",
    "measure_bounds",
    "verify",
]

_HOME = {
    "CalifReward": "califkit.rewards.trl",
    "Constraint": "califkit.verifiers",
    "constraints_json": "califkit.data.rows",
    "measure_bounds": "califkit.anchors.bounds",
    "verify": "califkit.verifiers",
}


class SelfExplaining:
    """An error whose message says all: a notebook shows it without the way through our code."""

    def _render_traceback_(self) -> list[str]:  # the name that IPython looks for
        return [f"{type(self).__name__}: {self}"]


class CalifkitError(SelfExplaining, Exception):
    """What was asked for cannot be done as asked: a file, a setting, a model, a judge.

    The message names what has to change. The command line prints it and ends with exit code 2.
    """


def __getattr__(name: str) -> object:
    """Import an exported name from its module the first time it is asked for (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
