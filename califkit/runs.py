"""Run folders: where a stage keeps its rows, and how it knows that it is complete.

A stage owns ``runs/<profile>/<kind>/<name>-<hash>/``. It appends rows to JSONL files, flushed one
finished unit at a time, and writes ``manifest.json`` last and atomically. A manifest that is there
means complete; a folder without one means: continue after the last finished unit.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock

from califkit.params import Stage, stage_hash

MANIFEST = "manifest.json"
DATA = "data.sha256"
# Files of a training run, named here so that reading them does not import TRL.
LOG = "log.jsonl"
ROLLOUTS = "rollouts.jsonl"
_RECORDED_PACKAGES = (
    "califkit",
    "torch",
    "transformers",
    "trl",
    "peft",
    "vllm",
    "nltk",
    "langdetect",
    "emoji",
    "syllapy",
)


def project_root() -> Path:
    """The checkout that holds ``params/`` and ``notebooks/``.

    ``CALIFKIT_ROOT`` if set, else the nearest such folder at or above the working directory, else
    the folder around the installed package (an editable install).
    """
    if root := os.environ.get("CALIFKIT_ROOT"):
        return Path(root)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "params").is_dir() and (folder / "notebooks").is_dir():
            return folder
    return Path(__file__).resolve().parent.parent


def runs_dir() -> Path:
    """``CALIFKIT_RUNS`` if set, else ``runs/`` in the project."""
    return Path(os.environ.get("CALIFKIT_RUNS") or project_root() / "runs")


class StaleRunError(ValueError):
    """An unfinished run that was begun with other data."""


class StorageError(OSError):
    """A folder that cannot be written, or a disk that is too small; the message says which."""


@dataclass(frozen=True)
class Run:
    """The folder of one stage."""

    stage: Stage
    folder: Path

    @property
    def is_complete(self) -> bool:
        return (self.folder / MANIFEST).is_file()

    def manifest(self) -> dict[str, Any]:
        """The manifest; FileNotFoundError while the stage is incomplete."""
        return json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))

    @contextmanager
    def computing(self) -> Iterator[bool]:
        """Hold the folder for one process; yields False if it is complete by then.

        A second process that asks for the same stage waits here and then finds the result.
        """
        if self.is_complete:
            yield False
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".lock"):
            yield not self.is_complete

    def pin_data(self, sha256: str) -> None:
        """Note which data the stage works on, or refuse to continue it on other data.

        A file of prompts may be edited between a kill and the next attempt; its name, which the
        hash covers, stays the same.
        """
        path = self.folder / DATA
        if not path.exists():
            _replace(path, sha256 + "\n")
        elif path.read_text(encoding="utf-8").strip() != sha256:
            raise StaleRunError(
                f"{self.folder}: was begun with other prompts than there are now; "
                "delete the folder to begin again"
            )

    def finish(self, started: float, **facts: Any) -> None:
        """Write the manifest, which declares the stage complete.

        ``started`` is a `time.monotonic` reading; the wall time of earlier, interrupted attempts
        is not included, which ``attempt_seconds`` says by its name.
        """
        manifest = {
            "stage": self.stage.kind,
            "name": self.stage.name,
            "hash": stage_hash(self.stage),
            "settings": self.stage.model_dump(mode="json"),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "attempt_seconds": round(time.monotonic() - started, 1),
            "host": host_class(),
            "git_commit": git_commit(),
            "versions": versions(),
            **facts,
        }
        write_json(self.folder / MANIFEST, manifest)


def results_dir() -> Path:
    """Runs that ship with the repository: rows and manifests, no weights."""
    return project_root() / "results"


def open_run(profile: str, stage: Stage) -> Run:
    """The run folder of a stage in a profile; nothing is created yet.

    Where the stage was not computed here but a recorded run of it ships with the repository, that
    one is opened. It is complete, but holds no weights: see `own_run`.
    """
    own = own_run(profile, stage)
    recorded = Run(stage, results_dir() / own.folder.relative_to(runs_dir()))
    return recorded if recorded.is_complete and not own.is_complete else own


def own_run(profile: str, stage: Stage) -> Run:
    """The run folder for computing a stage here, whether or not a recorded run exists."""
    name = f"{stage.name}-{stage_hash(stage)}"
    return Run(stage, runs_dir() / profile / stage.kind / name)


def record_runs(profile: str) -> list[Path]:
    """Copy the rows and manifests of all complete runs of a profile to `results_dir`."""
    recorded = []
    for manifest in sorted((runs_dir() / profile).glob(f"*/*/{MANIFEST}")):
        target = results_dir() / manifest.parent.relative_to(runs_dir())
        target.mkdir(parents=True, exist_ok=True)
        # The manifest last, as in the run itself.
        rows = [p for p in manifest.parent.iterdir() if p.suffix in (".jsonl", ".parquet")]
        for path in [*rows, manifest]:
            shutil.copyfile(path, target / path.name)
        recorded.append(target)
    return recorded


class RowLog:
    """An append-only JSONL file that survives a kill.

    Rows are appended one finished unit at a time in a single flushed write. Opening the file cuts
    a torn last line, so every row read back is whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists():
            with path.open("rb+") as file:
                cut_torn_line(file.fileno())

    def rows(self) -> list[dict[str, Any]]:
        return read_jsonl(self.path) if self.path.exists() else []

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        text = _lines(rows)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def keep(self, rows: list[dict[str, Any]]) -> None:
        """Replace the content atomically, for cutting rows of an unfinished unit."""
        _replace(self.path, _lines(rows))


def resume_units(log: RowLog, unit_sizes: list[int]) -> int:
    """How many whole units a row log holds, after cutting the rows of a torn one.

    ``unit_sizes[i]`` is the number of rows of unit i; units were appended in order.
    """
    rows = log.rows()
    done = kept = 0
    for size in unit_sizes:
        if kept + size > len(rows):
            break
        done, kept = done + 1, kept + size
    if kept < len(rows):
        log.keep(rows[:kept])
    return done


def check_writable(folder: Path, need_bytes: int = 0) -> None:
    """Make a folder and make sure that it takes files and has room, before work begins.

    Raises
    ------
    StorageError
        Naming the folder, and the bytes that are needed and free where those are too few.
    """
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
    """Turn what a full disk raises inside the block into a `StorageError` that says how to go on.

    Libraries that write weights pass on the system's words without its error number.
    """
    try:
        yield
    except Exception as error:
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


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All rows of a JSONL file."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def finished_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file that may be growing: all whole lines, none if there is no file."""
    lines = whole_lines(path) if path.exists() else ()
    return [json.loads(line) for line in lines if line.strip()]


def whole_lines(path: Path, start: int = 0) -> Iterator[bytes]:
    """Lines of a file that may be growing, from a byte on; a last line without its end is torn, by
    a kill or because it is just being written, and left out."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield line


def cut_torn_line(file: int, block: int = 1 << 16) -> None:
    """Cut what a kill left of a last line; for whoever alone writes the file, by its descriptor.

    The end of the last whole line is looked for from the end: files may be large.
    """
    size = end = os.fstat(file).st_size
    while end:
        start = max(0, end - block)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        os.ftruncate(file, end)


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never half of it."""
    _replace(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """Installed versions of the packages that can move a number."""
    found = {}
    for name in _RECORDED_PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found | {"python": platform.python_version()}


def host_class() -> str:
    """What kind of machine this is, without naming it."""
    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"


def git_commit() -> str | None:
    """Commit of the checkout, with ``+changes`` when files differ; None outside a checkout."""
    command = ["git", "-C", str(Path(__file__).resolve().parent)]
    try:
        head = subprocess.run(
            [*command, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True
        )
        if head.returncode:
            return None
        status = subprocess.run(
            [*command, "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return None
    return head.stdout.strip() + ("+changes" if status.stdout.strip() else "")
