"""A verifier of the user's own, from a file of theirs: docs/verifiers.md, run as it stands.

Every test works in processes of its own, because what a file registers stays registered.
"""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "verifiers.md"
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
FILE, SESSION = (text for kind, text in BLOCKS if kind == "python")
_, COMMANDS, EXPORT = (text for kind, text in BLOCKS if kind == "")
(ROW,) = (json.loads(text) for kind, text in BLOCKS if kind == "json")


@pytest.fixture
def folder(tmp_path):
    """A working folder with the page's file and responses of two policies."""
    (tmp_path / "haiku.py").write_text(FILE)
    for name, n_followed in (("base", 2), ("trained", 1)):
        responses = ["Haiku: the sea is grey."] * n_followed + ["The sea."] * (4 - n_followed)
        rows = [
            ROW | {"key": i, "prompt": f"{ROW['prompt']} {i}", "response": response}
            for i, response in enumerate(responses)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)
    return tmp_path


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(PAGE.parents[1])} | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


def python(folder: Path, code: str, **variables: str) -> str:
    done = run(folder, "-c", textwrap.dedent(code), **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def califkit(folder: Path, command: str, **variables: str) -> subprocess.CompletedProcess:
    arguments = command.removeprefix("califkit ").split()
    return run(folder, "-c", "from califkit.cli.main import main; main()", *arguments, **variables)


def output(folder: Path, command: str, **variables: str) -> str:
    done = califkit(folder, command, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def command(name: str) -> str:
    (line,) = (line for line in COMMANDS.splitlines() if line.startswith(f"califkit {name}"))
    return line


def test_the_session_of_the_page(folder):
    assert python(folder, SESSION).splitlines() == [
        "True Start your response with the word haiku.",
        "[1.0, 0.0]",
    ]


def test_constraint_shows_and_lists_it(folder):
    assert "parameter word: a string" in output(folder, command("constraint"))
    listing = output(folder, "califkit constraint --verifiers haiku.py")
    assert listing.rstrip().endswith("mine:starts_with")


@pytest.mark.parametrize("processes", [1, 2])
def test_verify_checks_it_in_several_processes(folder, processes):
    shown = output(folder, f"{command('verify')} --processes {processes}")
    assert re.search(r"^mine:starts_with +4 +0\.2500 +0\.2500$", shown, re.MULTILINE)
    assert re.search(r"^own +4 +0\.2500 +0\.2500$", shown, re.MULTILINE)


def test_audit_counts_it(folder):
    shown = output(folder, command("audit"))
    assert re.search(r"Constraints followed \(loose\): .* 50\.0 to 25\.0%", shown)


@pytest.mark.slow
def test_score_pays_the_reward_of_the_rule(folder):
    shown = output(folder, command("score"))
    rows = [json.loads(line) for line in (folder / "trained.scores.jsonl").open()]
    assert re.search(r"^r_ver +0\.2500$", shown, re.MULTILINE)
    assert [row["zone"] for row in rows] == ["inside"] * 4  # a tiny random model's l is near -10.8
    assert [row["reward"] for row in rows] == [1.1, 0.0, 0.0, 0.0]


def test_the_variable_reaches_rows_of_all_layouts_and_spawned_workers(folder):
    (name, value), *_ = re.findall(r"export (\w+)=(\S+)", EXPORT)
    code = """
        import json
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        from califkit import Constraint, verify
        from califkit.data.rows import read_constraints, to_instance
        from califkit.rewards.adapters import compute_score

        if __name__ == "__main__":
            row = json.loads(open("trained.jsonl").readline())
            truth = str([{"instruction_id": ["mine:starts_with"], "kwargs": [{"word": "haiku"}]}])
            training = {
                "messages": [{"role": "user", "content": "Describe it. Start with haiku."}],
                "ground_truth": truth,
                "constraint": "Start with haiku.",
            }
            print(to_instance(training, "1", "here").request)
            print(to_instance(row, "1", "here").constraints == read_constraints(truth))
            haiku = Constraint("mine:starts_with", {"word": "haiku"})
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                print(pool.submit(verify, haiku, "Haiku!").result())
                print(pool.submit(compute_score, "", "No.", truth).result())
        """
    (folder / "work.py").write_text(textwrap.dedent(code))
    done = run(folder, "work.py", **{name: value.replace("$PWD", str(folder))})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:4] == ["Describe it.", "True", "True", "0.0"]


def test_a_file_imported_under_two_names_registers_once(folder):
    code = """
        from califkit.verifiers import Constraint, own, verify
        own.use("haiku.py")
        import haiku
        own.use("haiku.py")
        print(verify(Constraint("mine:starts_with", {"word": "tea"}), "Tea."))
        """
    assert python(folder, code) == "True\n"


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("word.lower()]", "word.lower(", ["SyntaxError"]),
        ("import Example", "import Exampel, Example", ["line 2", "ImportError", "Exampel"]),
        ("mine:starts_with", "keywords:existence", ["keywords:existence", "taken", "ifeval.py"]),
        ("mine:starts_with", "starts_with", ["'starts_with'", "type:name"]),
        ("word: str", "word", ["'word'", "needs a type"]),
        ("word: str", "word: dict", ["'word'", "needs a type"]),
        ("{word}.", "{wrod}.", ["'wrod'", "not a parameter"]),
        ('{"word": "haiku"}', "{}", ["'word'", "missing"]),
        ("return ", "", ["'Haiku: the sea is grey.'", "None", "not True"]),
        ("The sea is grey.", "Haiku.", ["'Haiku.'", "gives True"]),
        ("# haiku.py", "exit(3)", ["line 1", "SystemExit"]),
    ],
)
def test_a_broken_file_is_one_line_that_names_file_and_cause(folder, old, new, parts):
    (folder / "haiku.py").write_text(FILE.replace(old, new))
    done = califkit(folder, command("verify"))
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.count("\n") == 1
    assert all(part in done.stderr for part in [str(folder / "haiku.py"), *parts]), done.stderr


def test_a_file_that_is_not_there(folder):
    done = califkit(folder, "califkit verify trained.jsonl", CALIFKIT_VERIFIERS="/no/haiku.py")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "/no/haiku.py" in done.stderr


def test_without_the_file_the_id_is_unknown(folder):
    done = califkit(folder, "califkit verify trained.jsonl")
    assert done.returncode == 2 and "unknown constraint id 'mine:starts_with'" in done.stderr
