"""The rules for notebooks: what papermill, nbval, a diff and a reader rely on."""

import ast
import copy
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from IPython.core.inputtransformer2 import TransformerManager
from nbformat.validator import iter_validate

from califkit.exhibits.notebooks import shell_line

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LONGEST_CELL = 25  # lines; the aim is 15


def tags(cell: dict) -> list[str]:
    return cell["metadata"].get("tags", [])


def is_literal_assignment(statement: ast.stmt) -> bool:
    if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
        return False
    try:
        ast.literal_eval(statement.value)
    except ValueError:
        return False
    return len(statement.targets) == 1


def problems(notebook: dict) -> list[str]:
    """Every broken rule of one notebook, as a list of sentences.

    Parameters
    ----------
    notebook
        The notebook as stored: the parsed JSON, untouched by nbformat's repairs.
    """
    errors = list(iter_validate(notebook))  # unlike nbformat.validate, it repairs nothing
    if errors:
        return [f"not a valid notebook: {error}" for error in errors]
    found = []
    kernel = notebook["metadata"].get("kernelspec", {})
    if (kernel.get("name"), kernel.get("language")) != ("python3", "python"):
        found.append("the kernelspec is not python3 / python")
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    tagged = [cell for cell in notebook["cells"] if "parameters" in tags(cell)]
    if len(tagged) != 1 or not cells or tagged[0] is not cells[0]:
        found.append("the first code cell, and only it, has the tag 'parameters'")
    ids = [cell.get("id") for cell in notebook["cells"]]
    if None in ids or len(ids) != len(set(ids)):
        found.append("a cell has no id, or two have the same")
    for number, cell in enumerate(cells, start=1):
        found += [f"code cell {number}: {problem}" for problem in cell_problems(cell)]
    return found


def cell_problems(cell: dict) -> list[str]:
    found = []
    source = "".join(cell["source"])
    if cell["outputs"] or cell["execution_count"] is not None:
        found.append("stored with outputs or an execution count")
    if len(source.splitlines()) > LONGEST_CELL:
        found.append(f"longer than {LONGEST_CELL} lines")
    if line := shell_line(source):
        found.append(f"hands {line!r} to a shell, whose failure would not be seen")
        return found
    tree = ast.parse(TransformerManager().transform_cell(source))  # magics become calls
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    if "califkit.runs.dispatch" in imported:
        found.append("computes runs past exhibit.runs, which asks before it submits")
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    if any(isinstance(node, definitions) for node in ast.walk(tree)):
        found.append("defines a function or class, which belongs in the package")
    if "parameters" in tags(cell) and not all(map(is_literal_assignment, tree.body)):
        found.append("a parameter is not of the form name = literal")
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_follows_the_rules(path):
    assert problems(json.loads(path.read_text(encoding="utf-8"))) == []


def code(source: str, **metadata: object) -> dict:
    return {
        "cell_type": "code",
        "id": f"cell-{abs(hash(source))}",
        "metadata": metadata,
        "source": source.splitlines(keepends=True),
        "outputs": [],
        "execution_count": None,
    }


GOOD = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
    },
    "cells": [
        {"cell_type": "markdown", "id": "title", "metadata": {}, "source": ["# Figure 4"]},
        code("profile = 'cpu'\nalpha = -0.1\nseeds = [0, 1]", tags=["parameters"]),
        code("%matplotlib inline\nprint(profile)"),
    ],
}


def edit_cell(number: int, **changes: object) -> Callable[[dict], None]:
    return lambda notebook: notebook["cells"][number].update(changes)


DEFECTS = {
    "other kernel": (
        lambda notebook: notebook["metadata"]["kernelspec"].update(name="califkit"),
        "kernelspec",
    ),
    "no kernel": (lambda notebook: notebook["metadata"].clear(), "kernelspec"),
    "no parameters": (edit_cell(1, metadata={}), "the tag 'parameters'"),
    "two parameters cells": (
        edit_cell(2, metadata={"tags": ["parameters"]}, source=["n = 1"]),
        "the tag",
    ),
    "parameters not first": (lambda notebook: notebook["cells"].insert(1, code("1")), "the tag"),
    "computed parameter": (edit_cell(1, source=["n = 2 * 3"]), "name = literal"),
    "derived parameter": (edit_cell(1, source=["a = 1\n", "b = a"]), "name = literal"),
    "unpacked parameters": (edit_cell(1, source=["a, b = 1, 2"]), "name = literal"),
    "import among parameters": (edit_cell(1, source=["import os"]), "name = literal"),
    "function": (edit_cell(2, source=["if True:\n", "    def f(): ..."]), "defines a function"),
    "own dispatch": (
        edit_cell(2, source=["from califkit.runs.dispatch import run_stage"]),
        "past exhibit.runs",
    ),
    "class": (edit_cell(2, source=["class C: ..."]), "defines a function or class"),
    "execution count": (edit_cell(2, execution_count=3), "execution count"),
    "output": (
        edit_cell(2, outputs=[{"output_type": "stream", "name": "stdout", "text": ["cpu"]}]),
        "stored with outputs",
    ),
    "long cell": (edit_cell(2, source=["x = 1\n"] * 26), "longer than 25 lines"),
    "shell line": (edit_cell(2, source=["!pip list"]), "'!pip list' to a shell"),
    "shell cell": (edit_cell(2, source=["%%bash\n", "make"]), "'%%bash' to a shell"),
    "no id": (lambda notebook: notebook["cells"][2].pop("id"), "'id' is a required property"),
    "same id twice": (edit_cell(2, id="title"), "two have the same"),
    "not a notebook": (lambda notebook: notebook.pop("cells"), "not a valid notebook"),
}


def test_a_good_notebook_has_no_problems():
    assert problems(copy.deepcopy(GOOD)) == []
    longest = copy.deepcopy(GOOD)
    longest["cells"][2]["source"] = ["x = 1\n"] * 25
    assert problems(longest) == []


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_is_found_and_nothing_else(defect):
    change, expected = DEFECTS[defect]
    notebook = copy.deepcopy(GOOD)
    change(notebook)
    (problem,) = problems(notebook)
    assert expected in problem


def test_the_pre_commit_hook_strips_outputs_and_keeps_tags(tmp_path):
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = {hook["id"]: hook for hook in config["repos"][0]["hooks"]}
    program, *arguments = shlex.split(hooks["nbstripout"]["entry"])
    assert program == ".venv/bin/nbstripout"
    executed = copy.deepcopy(GOOD)
    executed["metadata"]["papermill"] = {"duration": 1.5}
    executed["cells"][2]["metadata"]["papermill"] = {"duration": 0.5}
    edit_cell(2, execution_count=2)(executed)
    executed["cells"][2]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["cpu"]}]
    path = tmp_path / "notebook.ipynb"
    path.write_text(json.dumps(executed))
    command = [sys.executable, "-m", "nbstripout", *arguments, str(path)]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert json.loads(path.read_text()) == GOOD
