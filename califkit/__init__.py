"""Diagnose and correct reward hacking in verifiable instruction following.

The names below are the everyday entry points; everything else lives in the module its name says.
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
    from califkit.trl_reward import CalifReward
    from califkit.verifiers import Constraint, verify

__version__ = "0.1.0"

__all__ = ["CalifReward", "Constraint", "__version__", "verify"]

_HOME = {
    "CalifReward": "califkit.trl_reward",
    "Constraint": "califkit.verifiers",
    "verify": "califkit.verifiers",
}


def __getattr__(name: str) -> object:
    """Import an exported name from its module the first time it is asked for (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
