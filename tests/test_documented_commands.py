"""Every command that README and docs show is run, in a copy of the project at the ci profile."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from califkit.generation import RESPONSES
from califkit.runs.folders import open_run
from califkit.runs.params import load_params

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# What stands for something else in the pages, and what costs more than it shows.
SUBSTITUTES = {
    "MODEL": "tiny-random-llama",
    "--profile cpu": "--profile ci",
    "-p profile cpu": "-p profile ci",
    "params/cpu.yaml": "params/ci.yaml",
    "evaluation.n_prompts=100": "evaluation.n_prompts=9",
    "{steps: 60}": "{steps: 3}",
}
# Run by other means: `make test` is what runs this, and the others are made to be started by hand.
BY_HAND = {"make reproduce", "make test", "make rehearse"}
PROGRAMS = ("califkit", "papermill", "make", "python")


def documented() -> list[str]:
    """The commands in code blocks, without their comments, each once, in the order of the pages."""
    found = []
    for page in PAGES:
        blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        for block in [text for language, text in blocks if not language]:
            for line in block.splitlines():
                command = re.sub(r"\s+# .*", "", line).strip()
                if command.split(" ")[0] in PROGRAMS and command not in found:
                    found.append(command)
    return found


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A project of its own with runs that the commands share, and files of responses.

    Tests that run beside each other share it too: what one command has computed, others open.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "documented"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            fill(folder)
    return folder


def fill(folder: Path) -> None:
    for name in ("params", "notebooks", "figures/laptop"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("report"))
    for name in ("docs", "califkit", "examples", "benchmarks", "results"):  # the site shows them
        (folder / name).symlink_to(ROOT / name)
    for path in [*ROOT.glob("*.md"), ROOT / "CITATION.cff"]:
        shutil.copy(path, folder)
    page = (ROOT / "docs" / "verifiers.md").read_text()
    (folder / "haiku.py").write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
    stages = {stage.method: stage for stage in load_params("laptop").settings.generate_stages()}
    for name, policy in (("base", "base"), ("trained", "if_rlvr"), ("responses", "base")):
        source = open_run("laptop", stages[policy]).folder / RESPONSES
        rows = source.read_text().splitlines(keepends=True)
        (folder / f"{name}.jsonl").write_text("".join(rows[:12]))


def test_the_pages_show_commands():
    programs = {command.split(" ")[0] for command in documented()}
    assert {"califkit", "papermill", "make"} <= programs


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in documented() if c not in BY_HAND])
def test_a_documented_command_works(project, command):
    for shown, used in SUBSTITUTES.items():
        command = command.replace(shown, used)
    arguments = shlex.split(command)
    if arguments[0] == "make":
        arguments[1:1] = ["--dry-run", f"--file={ROOT / 'Makefile'}", f"--directory={ROOT}"]
    else:
        arguments[0] = str(Path(sys.executable).with_name(arguments[0]))
    done = subprocess.run(
        arguments,
        cwd=project,
        env=os.environ | {"CALIFKIT_ROOT": str(project), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
