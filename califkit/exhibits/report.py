"""The HTML report of executed notebooks: a self-contained page for each, and an index on top.

Nothing in a page is loaded from the network. Formulas are not typeset, since that needs MathJax.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Literal

import jinja2
import nbformat
from nbconvert import HTMLExporter

from califkit.runs.folders import git_commit, versions
from califkit.runs.jsonl import replace_file, write_json

_STREAM_LIMIT = 8_000  # characters a cell may print into the stored notebook
_PAGE = """{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js_requirejs -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
{%- block body_header -%}{{ super() }}
<p style="margin: 1em; font-family: sans-serif"><a href="index.html">&larr; report</a></p>
{%- endblock -%}
"""


@dataclass(frozen=True)
class Result:
    """How the last run of one notebook ended; ``error`` is one line."""

    name: str
    status: Literal["ok", "failed", "not run"]
    seconds: float | None = None
    finished: str | None = None
    error: str | None = None


def write_page(output: Path, error: str | None) -> None:
    """Tidy an executed notebook and write its ``.html`` page beside it.

    ``error`` is the line that says why the notebook failed, None if it did not.
    """
    notebook = nbformat.read(output, as_version=4)
    _tidy(notebook, output.stem, error)
    replace_file(output, nbformat.writes(notebook) + "\n")
    exporter = HTMLExporter(raw_template=_PAGE)
    page, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": output.stem}})
    replace_file(output.with_suffix(".html"), page)


def write_index(profile: str, folder: Path, fresh: Mapping[str, Result], known: list[str]) -> None:
    """Draw ``index.html`` from the results so far and the files in the folder above.

    ``folder`` is ``figures/<profile>/report``; its ``results.json`` keeps the results of earlier
    runs, which ``fresh`` ones replace. ``known`` are the notebooks there are, in the order of the
    page; results of others are dropped.
    """
    log = folder / "results.json"
    earlier = json.loads(log.read_text(encoding="utf-8")) if log.exists() else []
    merged = {entry["name"]: Result(**entry) for entry in earlier} | dict(fresh)
    results = [merged[name] for name in known if name in merged]
    write_json(log, [asdict(result) for result in results])
    files: dict[str, dict[str, str]] = {}
    for path in sorted(folder.parent.iterdir(), key=lambda path: natural_key(path.stem)):
        if path.suffix in (".png", ".pdf", ".csv", ".md"):
            files.setdefault(path.stem, {})[path.suffix[1:]] = path.name
    source = (
        resources.files("califkit.exhibits").joinpath("resources/report.html.j2").read_text("utf-8")
    )
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    html = environment.from_string(source).render(
        profile=profile,
        now=timestamp(),
        results=results,
        seconds=sum(result.seconds or 0 for result in results),
        figures={stem: kinds for stem, kinds in files.items() if "png" in kinds},
        tables={stem: kinds for stem, kinds in files.items() if "png" not in kinds},
        pages={path.stem for path in folder.glob("*.html")},
        versions=versions() | {"commit": git_commit() or "unknown"},
    )
    replace_file(folder / "index.html", html)


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


def _tidy(notebook: nbformat.NotebookNode, name: str, error: str | None) -> None:
    """Make an executed notebook fit to keep: it shows the error, is small, and names no machine."""
    if error and first_error(notebook) is None:  # the kernel could not report it itself
        first = next(cell for cell in notebook.cells if cell.cell_type == "code")
        [first, *started(notebook)][-1].outputs.append(
            nbformat.v4.new_output("error", ename="Kernel", evalue=error, traceback=[error])
        )
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and len(output.text) > _STREAM_LIMIT:
                half = _STREAM_LIMIT // 2
                left_out = len(output.text) - 2 * half
                output.text = (
                    f"{output.text[:half]}\n[... {left_out} characters left out ...]\n"
                    f"{output.text[-half:]}"
                )
    notebook.metadata.papermill.input_path = f"notebooks/{name}.ipynb"
    notebook.metadata.papermill.output_path = f"{name}.ipynb"
