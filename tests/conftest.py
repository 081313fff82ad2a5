"""What several test modules share."""

import os
import sys
from pathlib import Path

import pytest

# Read once when the hub client is first imported, so it has to be set before any test module is.
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with golden vectors and reference data that may lie beside the repository."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("the folder ../shared is not here")
    return folder


@pytest.fixture(scope="session")
def tiny_folder() -> Path:
    """Folder of the tiny random Llama, built in the user's cache if it is not there."""
    from califkit.models.resolve import resolve

    return resolve("tiny-random-llama")


@pytest.fixture(scope="session")
def tiny(tiny_folder):
    """An engine with the tiny model on the CPU in float32: ``.model``, ``.tokenizer``."""
    import torch
    from transformers import AutoModelForCausalLM

    from califkit.models.engines import TransformersEngine
    from califkit.models.resolve import load_tokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()
    return TransformersEngine(model, load_tokenizer(tiny_folder))


@pytest.fixture
def califkit(monkeypatch, capsys):
    """Runs a command in this process; returns exit code, standard output, standard error."""
    from califkit.cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["califkit", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main.main()
        return (end.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def fake_slurm(tmp_path, monkeypatch) -> Path:
    """A folder with ``sbatch`` and others; each submitted script is kept in it as 1.sh, 2.sh ..."""
    from califkit.runs import slurm

    folder = tmp_path / "bin"
    folder.mkdir()
    programs = {
        "srun": "exit 0",
        "squeue": f"ls {folder} | sed -n 's/[.]sh$/|RUNNING|None/p'",
        "scontrol": "echo ClusterName = fake",
        "scancel": f"for job; do rm {folder}/$job.sh; done",
        "sbatch": f"n=$(ls {folder}/*.sh 2>/dev/null | wc -l); n=$((n + 1))\n"
        f"cp $1 {folder}/$n.sh; echo Submitted batch job $n",
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    slurm.forget()
    yield folder
    slurm.forget()
