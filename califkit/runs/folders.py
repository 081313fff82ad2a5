"""Run folders: where a stage keeps its rows, and how it knows that it is complete.

A stage owns ``runs/<profile>/<kind>/<name>-<hash>/``. It appends rows to JSONL files, flushed one
finished unit at a time, and writes ``manifest.json`` last and atomically. A manifest that is there
means complete; a folder without one means: continue after the last finished unit.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from califkit import CalifkitError
from califkit.runs.jsonl import replace_file, write_json
from califkit.runs.locks import locked
from califkit.runs.paths import results_dir, runs_dir
from califkit.runs.stages import Stage, stage_hash

MANIFEST = "manifest.json"
DATA = "data.sha256"
# Files of a training run, named here so that reading them does not import TRL.
LOG = "log.jsonl"
ROLLOUTS = "rollouts.jsonl"
POLICY = "policy"
_RECORDED_PACKAGES = (
    *("califkit", "torch", "transformers", "trl", "peft", "vllm"),
    *("nltk", "langdetect", "emoji", "syllapy"),
)


class StaleRunError(CalifkitError, ValueError):
    """An unfinished run that was begun with other data."""


class MissingRunError(CalifkitError):
    """A run that another one is made of is not complete."""


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
        """Hold the folder for one process; yields False if it is complete by then."""
        if self.is_complete:
            yield False
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / ".lock"):
            yield not self.is_complete

    def pin_data(self, sha256: str) -> None:
        """Note which data the stage works on, or refuse to continue it on other data.

        The hash covers the name of a file of prompts; what it holds may be edited meanwhile.
        """
        path = self.folder / DATA
        if not path.exists():
            replace_file(path, sha256 + "\n")
        elif path.read_text(encoding="utf-8").strip() != sha256:
            raise StaleRunError(
                f"{self.folder}: was begun with other prompts than there are now; "
                "delete the folder to begin again"
            )

    def finish(self, started: float, **facts: Any) -> None:
        """Write the manifest, which declares the stage complete.

        ``started`` is a `time.monotonic` reading of this attempt; earlier ones are not counted.
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


def open_run(profile: str, stage: Stage) -> Run:
    """The run folder of a stage, of a recorded run where it was not computed here.

    Nothing is created. A recorded run is complete, but holds no weights: see `own_run`.
    """
    own = own_run(profile, stage)
    recorded = Run(stage, results_dir() / own.folder.relative_to(runs_dir()))
    return recorded if recorded.is_complete and not own.is_complete else own


def own_run(profile: str, stage: Stage) -> Run:
    """The run folder for computing a stage here, whether or not a recorded run exists."""
    name = f"{stage.name}-{stage_hash(stage)}"
    return Run(stage, runs_dir() / profile / stage.kind / name)


def require_complete(run: Run) -> Run:
    """The same run; `MissingRunError` says what computes it if it is not complete."""
    if not run.is_complete:
        profile = run.folder.parts[-3]
        raise MissingRunError(
            f"{run.folder}: is not complete; `{run.stage.command}` with the profile {profile} "
            "computes it"
        )
    return run


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
    here = Path(__file__).resolve().parent
    head = git(here, "rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    status = git(here, "status", "--porcelain", "--untracked-files=no")
    return head.strip() + ("+changes" if (status or "").strip() else "")


def git(folder: Path, *arguments: str) -> str | None:
    """What git prints in a folder; None where it fails or is not there."""
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
