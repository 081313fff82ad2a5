"""The package stays light on import, and its everyday names are where they are said to be.

Who may import whom is held by the contracts of import-linter in ``pyproject.toml``.
"""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import califkit

PACKAGE = Path(califkit.__file__).parent
HEAVY = {"torch", "transformers", "trl", "peft", "vllm", "nltk", "datasets", "openai"}
ROOMS = sorted(
    path.stem
    for path in PACKAGE.iterdir()
    if path.suffix == ".py" or (path / "__init__.py").exists()
)


def test_at_most_fourteen_names_stand_at_the_top():
    assert len(set(ROOMS) - {"__init__"}) <= 14


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "__init__"])
def test_every_room_says_what_it_is_for(room):
    assert importlib.import_module(f"califkit.{room}").__doc__


@pytest.mark.parametrize(
    "module", ["califkit", "califkit.verifiers", "califkit.metrics", "califkit.judges.rubrics"]
)
def test_importing_a_light_module_loads_nothing_heavy(module):
    allowed = {"nltk"} if module != "califkit" else set()
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert not (HEAVY - allowed) & set(run.stdout.split())


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("CalifReward", "califkit.rewards.trl"),
        ("Constraint", "califkit.verifiers"),
        ("constraints_json", "califkit.data.rows"),
        ("measure_bounds", "califkit.anchors.bounds"),
        ("verify", "califkit.verifiers"),
    ],
)
def test_exported_names_are_found_on_first_use(name, module):
    assert name in califkit.__all__
    assert name in dir(califkit)
    assert getattr(califkit, name) is getattr(importlib.import_module(module), name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'califkit' has no attribute 'no_such_name'"):
        _ = califkit.no_such_name


def test_the_package_ships_its_type_marker():
    assert (PACKAGE / "py.typed").is_file()
