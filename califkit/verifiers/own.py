"""Verifiers of the user's own: Python files that register them, imported where ids are looked up.

The environment variable ``CALIFKIT_VERIFIERS`` names the files, separated as in ``PATH``; worker
processes, jobs and notebook kernels inherit it. Each process imports a file once, when it first
meets an id that is not registered. A file is the user's own code and may do what the process may.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType

from califkit import CalifkitError

VARIABLE = "CALIFKIT_VERIFIERS"

_lock = threading.RLock()
_imported: set[Path] = set()


class VerifierFileError(CalifkitError):
    """A file of verifiers that cannot be imported; names the file and the cause."""


def use(path: str | Path) -> None:
    """Import a file of verifiers, here and in every process that is started from here on."""
    path = Path(path).resolve()
    _import(path)
    named = os.environ.get(VARIABLE, "").split(os.pathsep)
    if str(path) not in named:
        os.environ[VARIABLE] = os.pathsep.join(filter(None, [*named, str(path)]))


def import_files() -> None:
    """Import the files that the environment variable names, each once a process."""
    for name in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        _import(Path(name).resolve())


def _import(path: Path) -> None:
    with _lock:
        if path in _imported:
            return
        _imported.add(path)  # before it runs, because it may look ids up itself
        module = sys.modules[str(path)] = ModuleType(str(path))
        module.__file__ = str(path)
        try:
            # Compiled here, so that jobs that start together write no byte code beside the file.
            exec(compile(path.read_bytes(), path, "exec"), vars(module))
        except (Exception, SystemExit) as error:
            _imported.discard(path)
            raise VerifierFileError(f"verifiers of {path}: {_cause(path, error)}") from error


def _cause(path: Path, error: BaseException) -> str:
    """What went wrong and in which line of the file, on one line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    where = f"line {frames[-1].lineno}: " if frames else ""
    return f"{where}{type(error).__name__}: {' '.join(str(error).split())}"
