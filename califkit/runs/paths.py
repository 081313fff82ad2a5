"""Where things are kept, and whether they can be: the project, runs, recorded results, the disk."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from califkit import CalifkitError


def project_root() -> Path:
    """The checkout that holds ``params/`` and ``notebooks/``.

    ``CALIFKIT_ROOT`` if set, else the nearest such folder at or above the working directory, else
    the folder around the package (an editable install). Without a checkout the working directory:
    runs go there, and never among installed packages.
    """
    if root := os.environ.get("CALIFKIT_ROOT"):
        return Path(root)
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[2]):
        if (folder / "params").is_dir() and (folder / "notebooks").is_dir():
            return folder
    return here


def project_file(relative: str) -> Path:
    """A file or folder of the project, such as ``params/cpu.yaml``: of the checkout, or where it
    has none, as it was installed with the package."""
    own = project_root() / relative
    installed = Path(sys.prefix) / "share" / "califkit" / relative
    return installed if installed.exists() and not own.exists() else own


def runs_dir() -> Path:
    """``CALIFKIT_RUNS`` if set, else ``runs/`` in the project."""
    return Path(os.environ.get("CALIFKIT_RUNS") or project_root() / "runs")


class StorageError(CalifkitError, OSError):
    """A folder that cannot be written, or a disk that is too small; the message says which."""


def results_dir() -> Path:
    """Runs that ship with the repository: rows and manifests, no weights."""
    return project_root() / "results"


def check_writable(folder: Path, need_bytes: int = 0) -> None:
    """Make a folder; `StorageError` unless it takes files and has room."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written: {error.strerror}") from error
    free = shutil.disk_usage(folder).free
    if free < need_bytes:
        raise StorageError(
            f"{folder}: about {need_bytes / 1e9:.2f} GB are needed, {free / 1e9:.2f} GB are free"
        )


@contextmanager
def explaining_full_disk(folder: Path) -> Iterator[None]:
    """Turn what a full disk raises inside the block into a `StorageError`."""
    try:
        yield
    except Exception as error:
        # Libraries that write weights pass on the system's words without its error number.
        told = os.strerror(errno.ENOSPC) in str(error)
        if not told and not (type(error) is RuntimeError and _is_full(folder)):
            raise
        raise StorageError(
            f"{folder}: the disk is full; free some space and start the same command again, "
            "which continues the run"
        ) from error


def _is_full(folder: Path) -> bool:
    """Whether a file of a mebibyte finds no room: torch reports a failed write without a reason."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 2**20)
    except OSError as error:
        return error.errno == errno.ENOSPC
    return False
