"""Who may import what: the rules that keep the package light and its modules apart."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import califkit

PACKAGE = Path(califkit.__file__).parent
HEAVY = {"torch", "transformers", "trl", "peft", "vllm", "nltk", "datasets", "openai"}

# Third-party package -> the only modules of ours that may import it, at any depth in the file.
ONLY = {
    "trl": {"califkit.training", "califkit.reference"},
    "peft": {"califkit.training", "califkit.reference"},
    "vllm": {"califkit.generate"},
    "submitit": {"califkit.dispatch"},
    "openai": {"califkit.judges.client"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, module: str, is_package: bool) -> set[str]:
    """Absolute dotted names of everything a file imports, inside functions too.

    ``from a import b`` counts as ``a.b`` as well as ``a``, since ``b`` may be a module.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                drop = node.level - 1 if is_package else node.level
                base = ".".join([*parents[: len(parents) - drop], *base.split(".")]).rstrip(".")
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


GRAPH = {
    module_name(path): imports(path.read_text(), module_name(path), path.name == "__init__.py")
    for path in sorted(PACKAGE.rglob("*.py"))
}


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import califkit.cli", {"califkit.cli"}),
        ("from califkit import cli", {"califkit", "califkit.cli"}),
        ("from . import cli", {"califkit.verifiers", "califkit.verifiers.cli"}),
        ("from .text import Text", {"califkit.verifiers.text", "califkit.verifiers.text.Text"}),
        ("from ..data import x", {"califkit.data", "califkit.data.x"}),
        ("def f():\n    import trl", {"trl"}),
    ],
)
def test_imports_are_read_from_the_source(source, expected):
    assert imports(source, "califkit.verifiers.ifeval", is_package=False) == expected


@pytest.mark.parametrize("module", GRAPH)
def test_import_graph(module):
    names = GRAPH[module]
    ours = {name for name in names if within(name, "califkit")}
    if module != "califkit.__main__":
        assert not {name for name in ours if within(name, "califkit.cli")}
    if within(module, "califkit.verifiers"):
        assert not {name for name in ours if not within(name, "califkit.verifiers")}
    if module == "califkit.metrics":
        assert not ours
        assert not {"matplotlib", "seaborn"} & {name.split(".")[0] for name in names}
    for package, allowed in ONLY.items():
        if module not in allowed:
            assert not {name for name in names if within(name, package)}, f"{package} in {module}"


@pytest.mark.parametrize(
    "module", ["califkit", "califkit.verifiers", "califkit.metrics", "califkit.rubrics"]
)
def test_importing_a_light_module_loads_nothing_heavy(module):
    if module not in GRAPH:
        pytest.skip(f"{module} is not written yet")
    allowed = {"nltk"} if module != "califkit" else set()
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert not (HEAVY - allowed) & set(run.stdout.split())


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("Constraint", "califkit.verifiers"),
        ("verify", "califkit.verifiers"),
        ("CalifReward", "califkit.trl_reward"),
    ],
)
def test_exported_names_are_found_on_first_use(name, module):
    assert name in califkit.__all__
    assert name in dir(califkit)
    if module not in GRAPH:
        pytest.skip(f"{module} is not written yet")
    assert getattr(califkit, name) is getattr(importlib.import_module(module), name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'califkit' has no attribute 'no_such_name'"):
        _ = califkit.no_such_name


def test_the_package_ships_its_type_marker():
    assert (PACKAGE / "py.typed").is_file()
