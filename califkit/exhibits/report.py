"""What running the notebooks of a profile leaves: each as executed, and how each of them ended.

They are in ``figures/<profile>/report``; `califkit.exhibits.site` makes pages of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import nbformat

from califkit.runs.jsonl import replace_file, write_json

_STREAM_LIMIT = 8_000  # characters a cell may print into the stored notebook
_LOG = "results.json"

WIDGET = "application/vnd.jupyter.widget-view+json"
"""Kind of an output that only a running kernel can show."""


@dataclass(frozen=True)
class Result:
    """How the last run of one notebook ended; ``error`` is one line."""

    name: str
    status: Literal["ok", "failed", "not run"]
    seconds: float | None = None
    finished: str | None = None
    error: str | None = None


def tidy(path: Path, error: str | None) -> None:
    """Make an executed notebook fit to keep: it shows its error, is small, and names no machine.

    ``error`` is the line that says why it failed, None if it did not.
    """
    notebook = nbformat.read(path, as_version=4)
    if error and first_error(notebook) is None:  # the kernel could not report it itself
        first = next(cell for cell in notebook.cells if cell.cell_type == "code")
        [first, *started(notebook)][-1].outputs.append(
            nbformat.v4.new_output("error", ename="Kernel", evalue=error, traceback=[error])
        )
    notebook.metadata.pop("widgets", None)  # the state of controls, which a page cannot use
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_bar(output)]
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and len(output.text) > _STREAM_LIMIT:
                half = _STREAM_LIMIT // 2
                left_out = len(output.text) - 2 * half
                output.text = (
                    f"{output.text[:half]}\n[... {left_out} characters left out ...]\n"
                    f"{output.text[-half:]}"
                )
    notebook.metadata.papermill.input_path = f"notebooks/{path.name}"
    notebook.metadata.papermill.output_path = path.name
    replace_file(path, nbformat.writes(notebook) + "\n")


def _is_bar(output: nbformat.NotebookNode) -> bool:
    """Whether an output is a progress bar: tqdm displays it, while controls are a cell's value."""
    return output.output_type == "display_data" and WIDGET in output.data


def write_results(folder: Path, fresh: Mapping[str, Result], known: list[str]) -> None:
    """Keep how notebooks ended: ``fresh`` results replace those of earlier runs in the folder.

    ``known`` are the notebooks there are, in their order; results of others are dropped.
    """
    merged = {result.name: result for result in read_results(folder)} | dict(fresh)
    write_json(folder / _LOG, [asdict(merged[name]) for name in known if name in merged])


def read_results(folder: Path) -> list[Result]:
    """How the notebooks of a report ended, in their order; none where there is no report."""
    log = folder / _LOG
    entries = json.loads(log.read_text(encoding="utf-8")) if log.exists() else []
    return [Result(**entry) for entry in entries]


def started(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The code cells papermill has begun to run; the last one was running when it stopped."""
    return [
        cell
        for cell in notebook.cells
        if cell.cell_type == "code"
        and cell.source.strip()
        and cell.metadata.get("papermill", {}).get("start_time")
    ]


def first_error(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode | None:
    """The first cell with an error among its outputs."""
    for cell in notebook.cells:
        if any(output.output_type == "error" for output in cell.get("outputs", [])):
            return cell
    return None


def natural_key(name: str) -> list[tuple[str, int]]:
    """Sort key that compares the numbers in a name as numbers."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def timestamp() -> str:
    """The current time as the report shows it."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
