"""Files that are damaged, foreign or hostile: exit code 2, one line that names them, nothing made.

Each of the three commands that take files of responses reads rows alike, so each meets each row.
"""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helpers import write_rows

ROW = {
    "key": "k",
    "prompt": "Tea. Use no comma.",
    "request": "Tea.",
    "instruction_id_list": ["punctuation:no_comma"],
    "kwargs": [{}],
    "response": "Tea is warm.",
}
REFERENCE = ["--reference", "tiny-random-llama"]
DIGITS = "9" * 400
DEEP = "[" * 5000 + "]" * 5000


@pytest.fixture
def refused(califkit, tmp_path):
    """Runs a command that has to be refused; returns its one line."""

    def run(*arguments: object) -> str:
        before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        code, out, error = califkit(*arguments)
        assert (code, out, error.count("\n")) == (2, "", 1), error
        assert error.startswith("califkit: ")
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
        return error

    return run


def with_field(name: str, value: str) -> str:
    """The row with a field of that JSON text."""
    rest = {key: field for key, field in ROW.items() if key != name}
    return f"{json.dumps(rest)[:-1]}, {json.dumps(name)}: {value}}}"


def commands(path: Path, out: Path) -> dict[str, list]:
    return {
        "verify": ["verify", path, "--processes", 1, "--out", out / "v.jsonl"],
        "score": ["score", path, *REFERENCE, "--out", out / "s.jsonl"],
        "audit": ["audit", path, path, "--processes", 1, "--out", out / "audit"],
    }


ALL, SCORING = ("verify", "score", "audit"), ("score", "audit")
ROWS = {
    "nested": (ALL, with_field("more", DEEP), "line 2: not a line of JSON"),
    "key list": (ALL, with_field("key", '["k"]'), "line 2: field 'key' must be text or a number"),
    "key boolean": (ALL, with_field("key", "true"), "line 2: field 'key' must be text or a number"),
    "a name twice": (
        ALL,
        json.dumps(ROW)[:-1] + ', "response": "another one"}',
        "line 2: not a line of JSON in UTF-8: the name 'response' comes twice",
    ),
    "key surrogate": (ALL, with_field("key", r'"\ud800"'), r"field 'key' is not valid Unicode"),
    "request surrogate": (SCORING, with_field("request", r'"\ud800"'), "'request' is not valid"),
    "request number": (SCORING, with_field("request", "5"), "'request' must be text, not 5"),
    "key digits": (ALL, with_field("key", "9" * 5000), "line 2: not a line of JSON"),
    "id list": (
        ALL,
        with_field("instruction_id_list", '[["a"]]'),
        "line 2, key 'k': constraint 1 of 1: the id must be text, not ['a']",
    ),
    "ids nested": (ALL, with_field("ground_truth", json.dumps(DEEP)), "line 2, key 'k': "),
    "l0 digits": (
        SCORING,
        with_field("l0", DIGITS),
        "line 2, key 'k': field l0 must be a finite number or None, not 9999",
    ),
    "l0 infinite": (SCORING, with_field("l0", "1e400"), "line 2, key 'k': field l0 must be"),
    "token ids": (SCORING, with_field("token_ids", "[1.5]"), "field 'token_ids' must list ids"),
    "own id": (
        ALL,
        '{"request": "Tea.", "response": "Tea.", "constraints": [{"id": ["a"]}]}',
        "line 2: field 'constraints': ground truth that cannot be used: constraint 1 of 1",
    ),
    "own kwargs": (
        ALL,
        '{"request": "a", "response": "b", "constraints": [{"id": "format:emoji", "kwargs": 5}]}',
        "line 2: field 'constraints': ground truth that cannot be used: constraint 1 of 1: kwargs",
    ),
}


@pytest.mark.parametrize(
    ("name", "command"), [(name, command) for name in ROWS for command in ROWS[name][0]]
)
def test_a_hostile_row(refused, tmp_path, name, command):
    _, line, message = ROWS[name]
    path = write_rows(tmp_path / "r.jsonl", ROW | {"key": "first"}, line)
    error = refused(*commands(path, tmp_path)[command])
    assert str(path) in error and message in error


@pytest.mark.parametrize(
    ("request_value", "message"),
    [(r'"\ud800"', "not valid Unicode"), ("5", "must be text, not 5"), ("[]", "must be text")],
)
def test_a_first_row_without_constraints_whose_request_is_none(
    refused, tmp_path, request_value, message
):
    path = tmp_path / "r.jsonl"
    path.write_text(f'{{"request": {request_value}, "response": "Tea."}}\n')
    error = refused("score", path, *REFERENCE)
    assert f"{path}, line 1: field 'request'" in error and message in error


def test_a_field_name_that_is_no_unicode_is_shown_escaped(refused, tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"prompt": "a", "\\ud800": 1}\n')
    assert "fields found: 'prompt', '\\ud800'" in refused("verify", path)


@pytest.mark.parametrize("command", ALL)
def test_a_line_of_100_million_bytes(califkit, tmp_path, command):
    path = write_rows(tmp_path / "r.jsonl", json.dumps(ROW | {"response": "a" * 100_000_000}))
    code, _, error = califkit(*commands(path, tmp_path)[command])
    assert (code, error) == (2, f"califkit: {path}, line 1: longer than 16777216 bytes\n")


@pytest.mark.parametrize("alpha", ["inf", "nan", "-1"])
def test_an_alpha_that_is_no_size(refused, tmp_path, alpha):
    path = write_rows(tmp_path / "r.jsonl", ROW)
    error = refused("score", path, *REFERENCE, "--alpha", alpha)
    assert f"--alpha {float(alpha)}: must be positive and finite" in error


# --- a score file of its own to continue from -----------------------------------------------------


def changed(**fields):
    return lambda line: json.dumps(json.loads(line) | fields)


DAMAGED_SCORES = {
    "no JSON": (lambda line: "{", "line 1: row: Invalid JSON"),
    "nested": (lambda line: DEEP, "line 1: row: Invalid JSON"),
    "a list": (lambda line: "[1]", "line 1: row: "),
    "foreign": (lambda line: '{"a": 1}', "line 1: line: Field required"),
    "text": (changed(loglik="x"), "line 1: loglik: "),
    "infinite": (lambda line: line.replace('"l0": null', '"l0": 1e400'), "line 1: l0: "),
    "digits": (lambda line: line.replace('"l0": null', f'"l0": {DIGITS}'), "line 1: l0: "),
    "a list for a zone": (changed(zone=["inside"]), "line 1: zone: "),
    "of another row": (changed(line=7), "line 1: line: is 7, not 1"),
    "twice": (lambda line: f"{line}\n{line}", "line 3: there are only 2 responses"),
}


@pytest.fixture
def own_scores(califkit, tmp_path) -> tuple[list, Path, Path]:
    """The command that made a score file of two rows, the file and its settings."""
    path = write_rows(tmp_path / "r.jsonl", ROW, ROW | {"key": "l"})
    output = tmp_path / "s.jsonl"
    call = ["score", path, *REFERENCE, "--out", output]
    assert califkit(*call)[0] == 0
    return call, output, output.with_name("s.jsonl.settings.json")


@pytest.mark.parametrize("name", DAMAGED_SCORES)
def test_a_damaged_score_file_says_what_to_delete(own_scores, refused, name):
    damage, message = DAMAGED_SCORES[name]
    call, output, settings = own_scores
    first, rest = output.read_text().split("\n", 1)
    output.write_text(f"{damage(first)}\n{rest}")
    error = refused(*call)
    assert f"{output}, {message}" in error
    assert f"; delete {output} and {settings} to begin anew" in error


@pytest.mark.parametrize("content", ["", "{", "[]", DEEP, "\udcff"])
def test_damaged_settings_of_a_score_file_say_what_to_delete(own_scores, refused, content):
    call, output, settings = own_scores
    settings.write_text(content, errors="surrogateescape")
    error = refused(*call)
    assert error.startswith(f"califkit: {settings}: ")
    assert f"; delete {output} and {settings} to begin anew" in error


# --- reference folders ----------------------------------------------------------------------------


class Touch:
    """What a hostile pickle does when it is loaded."""

    def __reduce__(self):
        return os.system, ("touch loaded",)


def edited(name: str, **fields):
    def edit(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return edit


def written(name: str, content: str | bytes):
    content = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(content)


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Touch()))


def without_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


NO_TENSORS = b"\x02\0\0\0\0\0\0\0{}"
ESCAPE = "{{ ''.__class__.__mro__ }}"
REFERENCES = {
    "broken config": (written("config.json", "{"), "with this config.json"),
    "nested config": (written("config.json", DEEP), "with this config.json"),
    "unknown config": (edited("config.json", model_type="zzz"), "with this config.json"),
    "foreign config": (
        edited("config.json", model_type="bert", architectures=["BertModel"]),
        "weights of its architecture are not in its files",
    ),
    "more layers": (edited("config.json", num_hidden_layers=3), "9 weights of its architecture"),
    "fewer layers": (edited("config.json", num_hidden_layers=1), "9 weights of its files have no"),
    "another width": (
        edited("config.json", hidden_size=128),
        "20 weights of its files have another",
    ),
    "truncated weights": (cut, "with these weights"),
    "empty weights": (written("model.safetensors", b""), "with these weights"),
    "no tensors": (written("model.safetensors", NO_TENSORS), "weights of its architecture are not"),
    "a pickle": (pickled, "with these weights: UnpicklingError"),
    "broken generation config": (written("generation_config.json", "{"), "with these weights"),
    "no tokenizer": (without_tokenizer, "with this tokenizer"),
    "damaged tokenizer": (written("tokenizer.json", "{"), "with this tokenizer"),
    "foreign tokenizer": (written("tokenizer.json", "{}"), "with this tokenizer"),
    "escaping template": (written("chat_template.jinja", ESCAPE), "SecurityError"),
    "broken template": (written("chat_template.jinja", "{% for %}"), "TemplateSyntaxError"),
    "refusing template": (
        written("chat_template.jinja", "{{ raise_exception('no user') }}"),
        "TemplateError: no user",
    ),
    "fixed template": (written("chat_template.jinja", "Hello"), "leaves the request out"),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_folder_that_cannot_be_used(refused, tiny_folder, tmp_path, monkeypatch, name):
    change, message = REFERENCES[name]
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    change(folder)
    path = write_rows(tmp_path / "r.jsonl", ROW)
    error = refused("score", path, "--reference", folder)
    assert f"model {folder}: " in error and message in error
    error = refused("audit", path, path, "--reference", folder, "--out", tmp_path / "audit")
    assert f"model {folder}: " in error and message in error
    assert not (tmp_path / "audit").exists(), "not even a folder"


# --- judges of an audit ---------------------------------------------------------------------------

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)
JUDGES = {
    "alias bomb": (f"{BOMB}judges: [{{name: *j}}]", "aliases stand for more than 100000 values"),
    "endless": ("judges: &a [*a]", "aliases stand for more than 100000 values"),
    "nested": (f"judges: {DEEP}", "nested too deeply"),
    "long": ("#" * 100_000_000, "longer than 262144 bytes"),
    "date": ("judges: [{name: 2020-13-45}]", "month must be in 1..12"),
    "digits": (f"judges: [{{name: j, timeout_s: {DIGITS}}}]", "judge j: "),
}


@pytest.mark.parametrize("name", JUDGES)
def test_hostile_judges(refused, tmp_path, name):
    text, message = JUDGES[name]
    path = write_rows(tmp_path / "r.jsonl", ROW)
    judges = tmp_path / "judges.yaml"
    judges.write_text(text)
    error = refused("audit", path, path, "--judges", judges, "--out", tmp_path / "audit")
    assert str(judges) in error and message in error


@pytest.mark.parametrize("name", [name for name in JUDGES if name != "digits"])
def test_hostile_params_files(refused, tmp_path, name):
    text, message = JUDGES[name]
    path = tmp_path / "params.yaml"
    path.write_text(text)
    error = refused("generate", "--profile", path)
    assert f"{path}: not readable as YAML: " in error and message in error


def test_a_setting_nested_deeply(refused):
    error = refused("generate", "--set", f"alpha={DEEP}")
    assert "--set 'alpha=[[[" in error and "the value is not readable: nested too deeply" in error


def test_a_key_nested_deeply(refused):
    assert "settings: nested too deeply" in refused("generate", "--set", f"{'a.' * 5000}b=1")
    assert "settings: nested too deeply" in refused("generate", "--set", f"{'a.' * 60}b=1")


def test_a_file_whose_name_is_not_unicode(tmp_path):
    path = write_rows(tmp_path / os.fsdecode(b"\xff.jsonl"), ROW)
    command = [sys.executable, "-m", "califkit.cli.main", "verify", path, "--processes", "1"]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONUTF8": "1"})
    assert done.returncode == 0, done.stderr
    assert b"\\udcff.jsonl" in done.stdout


def test_aliases_are_welcome(califkit, tmp_path):
    """What makes a bomb is the number of values, not the alias."""
    path = write_rows(tmp_path / "r.jsonl", ROW)
    judges = tmp_path / "judges.yaml"
    one = {"name": "a", "model": "m", "base_url": "http://127.0.0.1:9/v1"}
    judges.write_text(yaml.safe_dump({"judges": [one, one]}))
    assert "*id001" in judges.read_text()
    call = ["audit", path, path, "--judges", judges, "--judge", "b", "--out", tmp_path / "out"]
    assert "has no judge 'b'; there are: a, a" in califkit(*call)[2]
