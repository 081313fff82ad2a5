"""Once installed, everything works with the network cable out."""

import subprocess
import sys

import pytest
from tiny_runs import environment, params_file

pytestmark = pytest.mark.slow

# Loaded by every Python process at its start, children included.
GUARD = """
import os, socket

def guarded(name, address_of):
    original = getattr(socket.socket, name, None) or getattr(socket, name)

    def checked(*args, **kwargs):
        address = address_of(args)
        if address is not None and address not in ("localhost", "127.0.0.1", "::1", ""):
            with open(os.environ["CONNECTION_LOG"], "a") as log:
                log.write(f"{name} {address}\\n")
            raise OSError(f"no network in this test: {name} {address}")
        return original(*args, **kwargs)

    return checked

def peer(args):
    return None if args[0].family == socket.AF_UNIX else args[1][0]

def host(args):
    name = args[0]
    return name.decode() if isinstance(name, bytes) else name

for name in ("connect", "connect_ex"):
    setattr(socket.socket, name, guarded(name, peer))
for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex"):
    setattr(socket, name, guarded(name, host))
"""

PIPELINE = """
import socket, sys
from califkit.exhibits import summary, training as tables
from califkit.runs import dispatch
from califkit.runs.params import load_params

for attempt in (
    lambda: socket.socket().connect(("192.0.2.1", 80)),
    lambda: socket.getaddrinfo("huggingface.co", 443),
):
    try:
        attempt()
    except OSError as error:
        assert "no network in this test" in str(error), error
    else:
        raise AssertionError("the guard does not work")

params = load_params(sys.argv[1])
settings = params.settings
anchors = dispatch.run_stage(params.profile, settings.anchor_stage(), settings.execution)
for stage in settings.train_stages():
    training = dispatch.run_stage(params.profile, stage, settings.execution)
runs = [dispatch.run_stage(params.profile, s, settings.execution) for s in settings.score_stages()]
table = summary.summary_table(summary.metrics_by_run(runs))
print(sorted(set(table["method"])), len(table), anchors.is_complete, training.is_complete)
print(len(tables.training_table([training])), len(tables.rollout_table([training])))
"""


def test_the_pipeline_connects_nowhere(tmp_path):
    (tmp_path / "guard").mkdir()
    (tmp_path / "guard" / "sitecustomize.py").write_text(GUARD)
    log = tmp_path / "connections"
    file = params_file(tmp_path, methods=["calif"], training={"steps": 1})
    result = subprocess.run(
        [sys.executable, "-c", PIPELINE, str(file)],
        env=environment(tmp_path / "runs")
        | {"PYTHONPATH": str(tmp_path / "guard"), "CONNECTION_LOG": str(log)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    # Nine metrics and response quality, for the base model and the trained one; 2 x 4 rollouts.
    assert result.stdout.splitlines()[-2:] == ["['base', 'calif'] 20 True True", "1 8"]
    # What the script tried on purpose, and nothing else.
    attempts = log.read_text().splitlines()
    assert attempts == ["connect 192.0.2.1", "getaddrinfo huggingface.co"]
