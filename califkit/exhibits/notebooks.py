"""Run the notebooks of a profile through papermill, strictly.

papermill only warns about a misspelt parameter or a forgotten `parameters` tag and then runs with
the defaults, so every notebook is checked here (`check`) before the first one runs.

The executed notebooks are kept in ``figures/<profile>/report/``.
"""

from __future__ import annotations

import ast
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError
from traitlets import default

from califkit import CalifkitError
from califkit.exhibits.report import (
    Result,
    first_error,
    natural_key,
    started,
    tidy,
    timestamp,
    write_results,
)
from califkit.runs.params import load_params, params_path, read_params_file
from califkit.runs.paths import project_root
from califkit.runs.text import one_line

PIPELINE = ("00_tour", "01_anchors", "02_train", "03_evaluate", "04_study", "05_campaign")
"""The notebooks that come first, in this order."""

NEEDED = PIPELINE[:4]
"""Without what they compute, those behind them have nothing to show."""

_TAG = "parameters"
_SHELL = re.compile(
    r"\s*(\w[\w, ]*=\s*)?(!|%(system|sx|sc)\b|%%(!|(bash|sh|script|system|sx|cmd)\b))"
)
_START_TIMEOUT = 120  # seconds; a loaded machine takes long to import IPython
_OUTPUT_TIMEOUT = 60  # seconds to wait for the outputs of a finished cell


def _say(line: str) -> None:
    print(line, flush=True)


class NotebookError(CalifkitError, ValueError):
    """A notebook or its parameters cannot be used; raised before anything runs."""


class NotebookFailed(NotebookError):
    """A notebook raised while it ran; what did run is in `report`."""

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report


@dataclass(frozen=True)
class Report:
    """What `execute` did: the results in the order of the run, and where the notebooks are."""

    profile: str
    folder: Path
    results: tuple[Result, ...]


def order() -> list[str]:
    """Names of all notebooks in the order they run: the pipeline, the figures, the tables.

    Figures and tables are whatever ``notebooks/fig*.ipynb`` and ``notebooks/tab*.ipynb`` there
    are, sorted by number, so that ``fig4`` comes before ``fig10``.
    """
    if not _notebooks_dir().is_dir():
        raise NotebookError(
            f"{_notebooks_dir()}: no such folder; notebooks are part of a checkout of the project, "
            "not of the installed package"
        )
    found = [path.stem for path in _notebooks_dir().glob("*.ipynb")]
    groups = [[n for n in found if n.startswith(prefix)] for prefix in ("fig", "tab")]
    return [*PIPELINE, *(name for group in groups for name in sorted(group, key=natural_key))]


def select(names: Iterable[str] | None = None) -> list[str]:
    """The asked notebooks (all if None) in the order they run; `NotebookError` for others."""
    known = order()
    if names is None:
        return known
    asked = list(names)
    if unknown := [name for name in asked if name not in known]:
        raise NotebookError(
            f"no notebook named {', '.join(map(repr, unknown))}; there are: {', '.join(known)}"
        )
    return [name for name in known if name in asked]


def check(path: Path, parameters: Mapping[str, Any]) -> None:
    """Make sure that papermill would run a notebook with exactly these parameters.

    Each has to be set in the notebook's `parameters` cell, to a default of the same type (an int
    may replace a float, anything may replace None).
    """
    cells = _read(path).cells
    tagged = [i for i, cell in enumerate(cells) if _TAG in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise NotebookError(f"{path}: {len(tagged)} cells are tagged '{_TAG}', expected one")
    if tagged[0] != next((i for i, c in enumerate(cells) if c.cell_type == "code"), None):
        raise NotebookError(f"{path}: the cell tagged '{_TAG}' is not the first code cell")
    for cell in cells:
        if cell.cell_type == "code" and (line := shell_line(cell.source)):
            raise NotebookError(f"{path}: {line!r} runs a shell command, whose failure is not seen")
    defaults = _defaults(path)
    for key, value in parameters.items():
        if key not in defaults:
            raise NotebookError(
                f"{path}: unknown parameter {key} = {value!r}; "
                f"parameters: {', '.join(defaults) or 'none'}"
            )
        wanted = type(defaults[key])
        allowed = (wanted, int) if wanted is float else (wanted,)
        if wanted is not type(None) and type(value) not in allowed:
            raise NotebookError(
                f"{path}: parameter {key} = {value!r} is of type {type(value).__name__}, "
                f"expected {wanted.__name__} like its default {defaults[key]!r}"
            )


def shell_line(source: str) -> str | None:
    """The first line of a code cell that IPython hands to a shell (``!``, ``%sx``, ``%%bash``)."""
    for line in source.splitlines():
        if _SHELL.match(line):
            return line.strip()
    return None


def prepare(profile: str | Path, folder: Path, names: Iterable[str] | None = None) -> list[Path]:
    """Write copies of the notebooks with the parameters of a profile injected; nothing runs."""
    selected, parameters, _ = _checked(profile, names)
    folder.mkdir(parents=True, exist_ok=True)
    copies = [folder / f"{name}.ipynb" for name in selected]
    for name, copy in zip(selected, copies, strict=True):
        _papermill(name, copy, parameters, prepare_only=True)
    return copies


def execute(
    profile: str | Path, names: Iterable[str] | None = None, echo: Callable[[str], None] = _say
) -> Report:
    """Run notebooks in order and write ``figures/<profile>/report/``.

    A failing one of `NEEDED` stops the run, since the later ones need it; another failing
    one does not. The report is written in both cases, and kept up to date after every
    notebook. Notebooks that were not asked for keep what an earlier run left in the report.

    ``profile`` is the name of a params file or a path to one; ``echo`` gets progress and what the
    notebooks print, line by line. `NotebookError` or `ParamsError` before anything runs;
    `NotebookFailed` at the end, with a line per failed notebook: its name, the cell and the error.
    """
    selected, parameters, profile_name = _checked(profile, names)
    folder = project_root() / "figures" / profile_name / "report"
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Result] = {}
    stopped_by = None
    for number, name in enumerate(selected, start=1):
        label = f"[{number}/{len(selected)}] {name}"
        if stopped_by:
            results[name] = Result(name, "not run", error=f"{stopped_by} failed")
            echo(f"{label}: not run, because {stopped_by} failed")
        else:
            echo(label)
            result = results[name] = _run(name, folder, parameters, echo)
            outcome = f"failed, {result.error}" if result.error else "done"
            echo(f"{label}: {outcome} ({result.seconds:.1f} s)")
            if result.error and name in NEEDED:
                stopped_by = name
        write_results(folder, results, known=order())
    report = Report(profile_name, folder, tuple(results.values()))
    if failed := [result for result in report.results if result.status == "failed"]:
        lines = [f"{result.name}: {result.error}" for result in failed]
        raise NotebookFailed("\n".join(lines), report)
    return report


def _checked(
    profile: str | Path, names: Iterable[str] | None
) -> tuple[list[str], dict[str, Any], str]:
    """Selected names, parameters to inject and the profile's name, after all checks."""
    selected = select(names)
    path = params_path(profile)
    name = load_params(profile).profile
    if path.resolve() != (project_root() / "params" / f"{name}.yaml").resolve():
        raise NotebookError(
            f"{path}: notebooks read params/{name}.yaml; put the file there under that name"
        )
    parameters = read_params_file(path)
    for notebook in selected:
        check(_notebooks_dir() / f"{notebook}.ipynb", parameters)
    return selected, parameters, name


def _notebooks_dir() -> Path:
    return project_root() / "notebooks"


def _read(path: Path) -> nbformat.NotebookNode:
    if not path.is_file():
        raise NotebookError(f"{path}: no such notebook")
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (ValueError, TypeError, LookupError, AttributeError, nbformat.ValidationError) as error:
        raise NotebookError(f"{path}: not a readable notebook: {one_line(error)}") from error
    return notebook


def _defaults(path: Path) -> dict[str, Any]:
    """The parameters of a notebook with their defaults, which have to be literals."""
    defaults = {}
    for name, found in papermill.inspect_notebook(_literal(path)).items():
        try:
            defaults[name] = ast.literal_eval(found["default"])
        except (ValueError, TypeError, SyntaxError) as error:
            line = f"{name} = {found['default']}"
            raise NotebookError(f"{path}: parameter '{line}' is no literal") from error
    return defaults


def _literal(path: Path) -> str:
    """papermill fills {placeholders} in paths; ours have none, whatever the folders are called."""
    return str(path).replace("{", "{{").replace("}", "}}")


class _ThisPython(AsyncKernelManager):
    """Kernels of the interpreter califkit runs in, whatever kernelspecs the user has installed."""

    @default("kernel_spec_manager")
    def _only_the_native_kernel(self) -> KernelSpecManager:
        return KernelSpecManager(kernel_dirs=[])

    @default("transport_encryption")
    def _without_a_warning_at_every_start(self) -> str:
        return "auto"

    async def start_kernel(self, **options: Any) -> None:
        """Start with an environment in which notebooks find the project and store no bars."""
        environment = {
            "CALIFKIT_ROOT": str(project_root()),
            "TQDM_DISABLE": "1",
            "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm, where ipywidgets are missing
            **os.environ,
        }
        environment.pop("MPLBACKEND", None)  # the kernel's own one puts figures into the notebook
        await super().start_kernel(**options, env=environment)


def _papermill(
    name: str, output: Path, parameters: dict[str, Any], **options: Any
) -> nbformat.NotebookNode:
    source = _literal(_notebooks_dir() / f"{name}.ipynb")
    return papermill.execute_notebook(
        source, _literal(output), parameters, kernel_name="python3", progress_bar=False, **options
    )


def _run(
    name: str, folder: Path, parameters: dict[str, Any], echo: Callable[[str], None]
) -> Result:
    """Execute one notebook into the report folder."""
    output = folder / f"{name}.ipynb"
    begin = time.monotonic()
    error = _execute(name, output, parameters, echo)
    tidy(output, error)
    seconds = round(time.monotonic() - begin, 1)
    return Result(name, "failed" if error else "ok", seconds, timestamp(), error)


def _execute(
    name: str, output: Path, parameters: dict[str, Any], echo: Callable[[str], None]
) -> str | None:
    """Run papermill; the error in one line, or None. The output notebook is there either way."""
    for last_attempt in (False, True):
        relay = _Relay(echo)
        try:
            notebook = _papermill(
                name,
                output,
                parameters,
                kernel_manager_class=_ThisPython,
                start_timeout=_START_TIMEOUT,
                iopub_timeout=_OUTPUT_TIMEOUT,
                coalesce_streams=True,
                stdout_file=relay,
            )
        except PapermillExecutionError as error:
            return f"cell [{error.exec_count}]: {error.ename}: {one_line(error.evalue)}"
        except (RuntimeError, TimeoutError) as error:
            number = len(started(nbformat.read(output, as_version=4)))
            if not number and not last_attempt:
                # Kernels that start at the same moment can pick the same port.
                echo(f"    the kernel did not start ({one_line(error)}); trying once more")
                continue
            if not number:
                return f"the kernel did not start: {one_line(error)}"
            if isinstance(error, DeadKernelError):
                error = "the kernel died, most often because memory ran out"
            return f"cell [{number}]: {one_line(error)}"
        finally:
            relay.close()
        if ended := first_error(notebook):  # papermill takes SystemExit(0) for success
            return f"cell [{ended.execution_count}]: SystemExit: the notebook ended itself"
        return None


class _Relay:
    """A file that passes on each line a notebook prints, once it is whole."""

    def __init__(self, echo: Callable[[str], None]) -> None:
        self._echo = echo
        self._pending = ""

    def write(self, text: str) -> None:
        *lines, self._pending = (self._pending + text).split("\n")
        for line in lines:
            self._echo(f"    {line.rsplit(chr(13), 1)[-1]}")

    def flush(self) -> None:
        """Nothing to do: papermill flushes after every message, also in the middle of a line."""

    def close(self) -> None:
        if self._pending:
            self.write("\n")
