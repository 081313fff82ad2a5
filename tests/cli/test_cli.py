"""Bad input, command by command: exit code 2, one line that names it, nothing written."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from tiny_runs import params_file

from califkit import __version__
from califkit.cli import profiles
from califkit.data.load import load_jsonl
from califkit.runs import folders
from califkit.runs.params import load_params

STAGES = ["anchors", "train", "generate", "evaluate"]
PROFILED = [*STAGES, "reproduce", "notebooks", "plan", "jobs", "rehearse"]
SETTINGS = {
    "model": "tiny-random-llama",
    "eval_seeds": [0],
    "data": {"n_prompts": 2},
    "training": {"prompts_per_step": 2, "anchors_may_differ": True},
    "evaluation": {"n_prompts": 2},
}
ROW = {
    "key": "k1",
    "prompt": "Name a drink. Use no comma.",
    "instruction_id_list": ["punctuation:no_comma"],
    "kwargs": [{}],
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """Runs go to a folder of the test; params files are written into it."""
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("CALIFKIT_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(califkit, place):
    """Runs a command that has to be refused: code 2, one line, no file made or changed."""

    def run(*arguments: object) -> str:
        before = snapshot(place)
        code, _, error = califkit(*arguments)
        assert code == 2, error
        assert error.startswith("califkit: ")
        assert error.count("\n") == 1, f"one line: {error}"
        assert "Traceback" not in error
        assert snapshot(place) == before, "nothing is written"
        return error

    return run


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(p): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def params(place: Path, name: str = "test.yaml", **settings) -> Path:
    path = place / name
    path.write_text(yaml.safe_dump({"profile": "test", "settings": SETTINGS | settings}))
    return path


def command(name: str, profile: object, place: Path) -> list[object]:
    extra = ["--prepare", place / "copies"] if name == "notebooks" else []
    return [name, *extra, "--profile", profile]


# ---------------------------------------------------------------- params files


def test_the_version_is_that_of_the_package(califkit):
    assert califkit("--version")[:2] == (0, f"califkit {__version__}\n")


@pytest.mark.parametrize("name", PROFILED)
def test_a_missing_params_file(refused, place, name):
    assert "no params file" in (error := refused(*command(name, "nope", place)))
    assert "params/nope.yaml; profiles: ci, cpu" in error
    error = refused(*command(name, place / "nope.yaml", place))
    assert str(place / "nope.yaml") in error


@pytest.mark.parametrize("name", PROFILED)
def test_a_params_file_that_is_no_yaml(refused, place, name):
    path = place / "broken.yaml"
    path.write_text("profile: test\nsettings: {alpha: [0.1\n")
    error = refused(*command(name, path, place))
    assert f"{path}: not readable as YAML" in error
    assert "line 3" in error or "line 2" in error


@pytest.mark.parametrize("name", PROFILED)
def test_a_params_file_with_a_wrong_key_or_value(refused, place, name):
    path = params(place, alhpa=0.1)
    error = refused(*command(name, path, place))
    assert f"{path}: settings.alhpa: unknown key (got 0.1)" in error
    path = params(place, alpha="much")
    error = refused(*command(name, path, place))
    assert f"{path}: settings.alpha: " in error
    assert "'much'" in error


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize(
    ("item", "parts"),
    [
        ("training.steps", ["expected KEY=VALUE"]),
        ("=5", ["expected KEY=VALUE"]),
        ("training..steps=5", ["expected KEY=VALUE"]),
        ("training.steps=abc", ["settings.training.steps: ", "'abc'"]),
        ("training.steps=", ["settings.training.steps: ", "None"]),
        ("training.step=5", ["settings.training.step: unknown key", "5"]),
        ("nope=5", ["settings.nope: unknown key"]),
        ("training.steps.more=5", ["settings.training.steps: ", "{'more': 5}"]),
        ("training.steps=[", ["--set 'training.steps=['", "not readable"]),
        ("training.steps=2020-13-45", ["--set 'training.steps=2020-13-45'", "month"]),
        ("data.n_prompts=1", ["data.n_prompts = 1", "prompts_per_step = 2"]),
        ("train_seeds=[1, 1]", ["settings.train_seeds: ", "[1, 1]"]),
    ],
)
def test_a_setting_that_cannot_be_used(refused, place, name, item, parts):
    error = refused(name, "--profile", params(place), "--set", item)
    assert all(part in error for part in parts), error
    assert item.partition("=")[0].split(".")[0] in error or item.startswith("=")


def test_settings_that_overwrite_each_other(refused, place):
    path = params(place)
    error = refused("train", "--profile", path, "--set", "training=5", "--set", "training.steps=3")
    assert "--set 'training.steps=3': training was set to 5" in error


def test_settings_reach_the_stage(place, monkeypatch, califkit):
    seen = []
    monkeypatch.setattr("califkit.runs.dispatch.run_stage", lambda *stage: seen.append(stage))
    monkeypatch.setattr(profiles, "show_run", print)
    path = params(place)
    arguments = [
        "--set",
        "data.seed=7",
        "--set",
        "data.max_constraints=2",
        "--set",
        "model=ignored",
    ]
    arguments += ["--set", "model=tiny-random-llama", "--set", "execution={save_every: 3}"]
    code, _, error = califkit("anchors", "--profile", path, *arguments)
    assert code == 0, error
    ((profile, stage, execution),) = seen
    assert profile == "test"
    assert (stage.data.seed, stage.data.max_constraints, stage.data.n_prompts) == (7, 2, 2)
    assert stage.model == "tiny-random-llama", "the last one counts"
    assert execution.save_every == 3


# ---------------------------------------------------------------- anchors


def test_a_shard_is_computed_and_the_last_one_completes_the_run(califkit, place):
    path = params(place, anchors={"sampling": {"max_tokens": 4, "batch_size": 1}})
    stage = load_params(path).settings.anchor_stage()
    code, out, error = califkit("anchors", "--profile", path, "--shard", "1/2")
    assert code == 0, error
    assert "anchors: shard 1 of 2 is done, 2 of 4 batches are there" in out
    assert not folders.open_run("test", stage).is_complete
    error = califkit("anchors", "report", "--profile", path)[2]
    assert error.endswith(" are not complete\n")
    code, out, error = califkit("anchors", "--profile", path, "--shard", "0/2")
    assert code == 0, error
    run = folders.open_run("test", stage)
    assert out.endswith(f"{run.folder}: complete, 2 rows\n")
    assert {p.name for p in run.folder.glob("draws*")} == {
        "draws-0-of-2.jsonl",
        "draws-1-of-2.jsonl",
    }
    code, out, error = califkit("anchors", "report", "--profile", path, "--out", place / "health")
    assert code == 0, error
    assert "reversed bounds (l0 > l1), share" in out
    assert "not measured, because one sample a side" in out
    written = {p.name for p in (place / "health").iterdir()}
    names = ("health", "length_ratio", "n_constraints", "length", "type", "missing")
    assert written == {f"anchors_{name}.{end}" for name in names for end in ("csv", "md")}
    text = (place / "health" / "anchors_health.md").read_text()
    assert text.startswith("| finding | what | value | n | comment |")
    code, out, error = califkit("anchors", "report", "--profile", path, "--probe", "2")
    assert code == 0, error
    assert "not measured, because one sample a side" not in out
    assert "probe of 2 prompts" in out
    assert error.startswith("WARNING: below 2 the region is too narrow"), "random answers are alike"
    again = califkit("anchors", "report", "--profile", path)[1]
    assert again == out[out.index("\nhealth\n") :], "later reports use it"
    error = califkit("anchors", "report", "--profile", path, "--probe", "3")[2]
    assert "a probe takes 1 to 2 prompts here, not 3" in error


def test_anchors_in_a_folder_that_cannot_be_written(refused, place, monkeypatch):
    monkeypatch.setenv("CALIFKIT_RUNS", "/proc/x")
    for more in ((), ("--shard", "0/2")):
        error = refused("anchors", "--profile", params(place), *more)
        assert error.startswith("califkit: /proc/x/test/anchors/")
        assert ": cannot be written: " in error


@pytest.mark.parametrize("shard", ["2/2", "1", "-1/2", "a/b", "1/0", "0/"])
def test_a_shard_that_cannot_be(refused, place, shard):
    error = refused("anchors", "--profile", params(place), f"--shard={shard}")
    assert f"--shard '{shard}': expected I/N" in error


def test_a_report_on_anchors_that_are_not_there(refused, place):
    path = params(place)
    assert "are not complete" in refused("anchors", "report", "--profile", path)
    (place / "file").write_text("mine")
    error = refused("anchors", "report", "--profile", path, "--out", place / "file")
    assert f"{place / 'file'}: is not a folder" in error


def test_options_before_the_report_are_not_dropped(refused, place):
    error = refused("anchors", "--profile", params(place), "report")
    assert "options come after the command: califkit anchors report --profile" in error


# ---------------------------------------------------------------- what settings name


@pytest.mark.parametrize("name", [*STAGES, "reproduce"])
def test_an_unknown_model(refused, place, name):
    path = params(place, model="nope")
    assert "model 'nope': not a folder" in refused(*command(name, path, place))
    path = params(place, model="califkit-test/no-such-model")
    assert "model 'califkit-test/no-such-model'" in refused(*command(name, path, place))


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vllm is installed")
@pytest.mark.parametrize("name", STAGES)
def test_an_engine_that_is_not_installed(refused, place, name):
    error = refused(*command(name, params(place, engine="vllm"), place))
    assert "settings.engine: vllm is not installed" in error


@pytest.mark.parametrize("name", [*STAGES, "reproduce"])
def test_a_missing_prompt_file(refused, place, name):
    path = params(place, data={"source": str(place / "nope.jsonl"), "n_prompts": 2})
    error = refused(*command(name, path, place))
    assert f"settings.data: {place / 'nope.jsonl'}: no such file" in error


@pytest.mark.parametrize("name", ["anchors", "train"])
def test_constraints_that_cannot_be_composed(refused, place, name):
    path = params(place, data={"n_prompts": 2, "constraint_ids": ["punctuation:no_coma"]})
    error = refused(*command(name, path, place))
    assert "settings.data: " in error
    assert "'punctuation:no_coma'" in error
    path = params(place, data={"n_prompts": 2, "constraint_ids": []})
    assert "constraint_ids is empty" in refused(*command(name, path, place))


@pytest.mark.parametrize("name", ["train", "generate", "evaluate"])
@pytest.mark.parametrize(
    ("item", "part"),
    [
        ("execution.processes=3", "16 rollouts a step do not divide among 3 processes"),
        ("thinking=true", "thinking = true: the chat template of model tiny-random-llama has no"),
        ("training.lora.target_modules=[q_prj]", "target_modules: no linear layer of model"),
        ("execution.report_to=[wandb]", "report_to = wandb: the package wandb is not installed"),
    ],
)
def test_settings_that_would_end_training_after_the_anchors(refused, place, name, item, part):
    if "wandb" in item and find_spec("wandb") is not None:
        pytest.skip("wandb is installed")
    assert part in refused(name, "--profile", params(place), "--set", item)


@pytest.mark.parametrize("arguments", [["train"], ["anchors"], ["anchors", "--shard", "0/1"]])
def test_complete_runs_of_a_file_that_was_replaced(califkit, refused, place, arguments):
    """Training is complete, or its anchors are; with the old rows back all is opened."""
    rows = place / "rows.jsonl"
    text = "".join(json.dumps(ROW | {"key": f"k{i}"}) + "\n" for i in range(2))
    rows.write_text(text)
    path = params(place, methods=["calif"], data={"source": str(rows), "n_prompts": 2})
    settings = load_params(path).settings
    known = load_jsonl(rows).sha256
    stages = [settings.anchor_stage(), *settings.train_stages()]
    for stage in stages[: 2 if arguments == ["train"] else 1]:
        run = folders.open_run("test", stage)
        with run.computing():
            run.finish(0.0, rows=2, data_sha256=known)
    command = [*arguments, "--profile", path]
    assert califkit(*command)[0] == 0
    rows.write_text(text.replace("a drink", "a river"))
    error = refused(*command)
    assert f"was computed from other prompts than {rows} holds now; delete the folder" in error
    rows.write_text(text)
    assert califkit(*command)[0] == 0
    rows.unlink()  # nothing to compare with
    assert califkit(*command)[0] == 0


@pytest.mark.parametrize("name", ["generate", "evaluate", "reproduce"])
def test_test_prompts_that_are_not_there(refused, place, name):
    path = params(place, evaluation={"n_prompts": 100_000})
    error = refused(*command(name, path, place))
    assert "settings.evaluation: n=100000" in error
    path = params(place, evaluation={"benchmark": "nope.jsonl"})
    assert "settings.evaluation: nope.jsonl: no such file" in refused(*command(name, path, place))


def test_a_policy_that_the_profile_does_not_train(refused, place):
    path = params(place, train_seeds=[4])
    error = refused("train", "--profile", path, "--method", "dpo")
    assert "no method 'dpo'" in error
    assert "if_rlvr seed 4, calif seed 4" in error
    assert "seed 9" in refused("train", "--profile", path, "--seed", 9)


def test_an_unknown_notebook(refused, place):
    error = refused("reproduce", "--profile", params(place), "--only", "fig99_nothing")
    assert "no notebook named 'fig99_nothing'; there are: 00_tour" in error


# ---------------------------------------------------------------- folders


@pytest.mark.parametrize("name", STAGES)
def test_runs_that_point_at_a_file(refused, place, monkeypatch, name):
    (place / "file").write_text("mine")
    monkeypatch.setenv("CALIFKIT_RUNS", str(place / "file"))
    assert f"{place / 'file'}" in refused(name, "--profile", params(place))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder that nobody can write")
@pytest.mark.parametrize("name", STAGES)
def test_runs_that_cannot_be_written(refused, place, monkeypatch, name):
    monkeypatch.setenv("CALIFKIT_RUNS", "/proc/califkit")
    assert "califkit: /proc/califkit" in refused(name, "--profile", params(place))


def test_an_error_of_the_file_system_is_told_in_one_line(refused, place, monkeypatch):
    def fails(*stage):
        raise PermissionError(13, "Permission denied", "/data/runs")

    monkeypatch.setattr("califkit.runs.dispatch.run_stage", fails)
    error = refused("anchors", "--profile", params(place))
    assert error == "califkit: /data/runs: Permission denied\n"


def test_copies_that_would_lie_under_a_file(refused, place):
    (place / "file").write_text("mine")
    error = refused("notebooks", "--profile", "ci", "--prepare", place / "file")
    assert str(place / "file") in error


def test_a_params_file_that_notebooks_would_not_read_is_refused(refused, place):
    path = params(place)
    error = refused("notebooks", "--profile", path, "--prepare", place / "copies")
    assert str(path) in error and "params/test.yaml" in error
    assert not (place / "copies").exists()


# ---------------------------------------------------------------- compose


def test_composed_prompts_are_written_and_load(califkit, place):
    code, out, _ = califkit("compose", place / "rows.jsonl", "--n", 3, "--seed", 5)
    assert code == 0
    assert "rows.jsonl: 3 prompts" in out
    code, out, _ = califkit("data", place / "rows.jsonl")
    assert code == 0
    assert "3 rows, 3 usable" in out
    assert [p.name for p in place.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--n", 0], "n = 0"),
        (["--seed", -1], "seed = -1"),
        (["--min-constraints", 4, "--max-constraints", 2], "min_constraints = 4"),
        (["--max-constraints", 6], "max_constraints = 6"),
        (["--min-constraints", 0], "min_constraints = 0"),
    ],
)
def test_prompts_that_cannot_be_composed(refused, place, options, part):
    assert part in refused("compose", place / "rows.jsonl", *options)


def test_a_file_that_is_there_is_not_overwritten(refused, place):
    (place / "rows.jsonl").write_text("mine")
    assert "rows.jsonl: exists" in refused("compose", place / "rows.jsonl")
    assert f"{place}: exists" in refused("compose", place)


def test_a_folder_that_is_not_there(refused, place):
    assert "no/rows.jsonl: the folder" in refused("compose", place / "no" / "rows.jsonl")


def test_a_value_of_the_wrong_type_is_refused_by_the_option(califkit, place):
    code, _, error = califkit("compose", place / "rows.jsonl", "--n", "many")
    assert code == 2
    assert "--n" in error
    assert "Traceback" not in error
    assert not (place / "rows.jsonl").exists()


# ---------------------------------------------------------------- data, model, the rest


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("{", ["row 2 (key None)", "JSON"]),
        (json.dumps(ROW | {"key": "k2", "instruction_id_list": ["no:such"]}), ["k2", "no:such"]),
        (json.dumps(ROW | {"key": "k2", "kwargs": [{"n": 3}]}), ["k2", "no_comma", "n"]),
        (json.dumps(ROW | {"key": "k2", "prompt": 5}), ["k2", "'prompt'", "5"]),
        (json.dumps(ROW), ["k1", "row 1"]),
    ],
)
def test_rows_that_cannot_be_used_are_listed(califkit, place, line, parts):
    path = place / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + line + "\n")
    code, out, error = califkit("data", path)
    assert code == 2
    assert error == f"califkit: {path}: 1 of 2 rows are unusable\n"
    summary, row = out.splitlines()
    assert f"{path}: 2 rows, 1 usable" in summary
    assert row.startswith("row 2 (key ")
    assert all(part in row for part in parts), row


def test_a_data_set_that_is_not_there(refused, place):
    assert f"{place / 'nope.jsonl'}: no such file" in refused("data", place / "nope.jsonl")
    assert f"{place}: is not a file" in refused("data", place)
    (place / "empty.jsonl").write_text("")
    assert "empty.jsonl: holds no rows" in refused("data", place / "empty.jsonl")
    error = refused("data", "hub:califkit-test/no-such-data", "--split", "test")
    assert "'califkit-test/no-such-data', split 'test'" in error


def test_the_benchmark_is_loaded_with_its_broken_record_counted(califkit):
    code, out, _ = califkit("data")
    assert code == 0, "a published data set may have rows that cannot be used"
    assert "294 rows" in out
    assert "sha256" in out


def test_a_model_that_is_not_there(refused, place):
    assert "model 'nope': not a folder" in refused("model", "nope")
    assert f"model '{place}': the folder has no config.json" in refused("model", place)


def test_a_model_is_shown_as_its_folder(califkit, tiny_folder):
    assert califkit("model", "tiny-random-llama") == (0, f"{tiny_folder}\n", "")


def test_versions(califkit):
    code, out, _ = califkit("version")
    assert code == 0
    assert {"califkit", "torch", "python"} <= {line.split()[0] for line in out.splitlines()}


def test_failed_work_ends_with_exit_code_1(califkit, place, monkeypatch):
    from califkit.runs.jobs import JobError

    def fails(*stages, **options):
        raise JobError("the job's last lines")

    monkeypatch.setattr("califkit.runs.dispatch.compute_all", fails)
    assert califkit("train", "--profile", params(place)) == (
        1,
        "",
        "califkit: the job's last lines\n",
    )


def test_an_interrupt_says_how_to_go_on(califkit, place, monkeypatch):
    def interrupted(*stage):
        raise KeyboardInterrupt

    monkeypatch.setattr("califkit.runs.dispatch.run_stage", interrupted)
    code, _, error = califkit("anchors", "--profile", params(place))
    assert code == 130
    assert "califkit: interrupted; the same command continues" in error


def test_complete_stages_are_not_checked_again(califkit, place, monkeypatch):
    path = params(place, model="gone")
    stage = load_params(path).settings.anchor_stage()
    run = folders.open_run("test", stage)
    with run.computing():
        run.finish(0.0, rows=2)
    code, out, _ = califkit("anchors", "--profile", path)
    assert code == 0
    assert out == f"{run.folder}: complete, 2 rows\n"


@pytest.mark.slow
def test_the_installed_command(place):
    script = Path(sys.executable).with_name("califkit")
    run = subprocess.run(
        [script, "anchors", "--profile", params(place), "--set", "alpha=much"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.startswith("califkit: ")
    assert run.stderr.count("\n") == 1
    assert "settings.alpha" in run.stderr


# --- what would be done -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "kinds"),
    [
        (["anchors"], {"anchors"}),
        (["train", "--method", "calif"], {"anchors", "training"}),
        (["generate"], {"anchors", "training", "generation"}),
        (["evaluate"], {"anchors", "training", "generation", "scores"}),
        (["reproduce"], {"anchors", "training", "generation", "scores"}),
    ],
)
def test_a_dry_run_lists_what_is_missing_and_starts_nothing(
    tmp_path, califkit, monkeypatch, command, kinds
):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    profile = "cpu" if command == ["reproduce"] else params_file(tmp_path)
    code, out, _ = califkit(*command, "--profile", profile, "--dry-run")
    assert code == 0
    head, table = re.search(r"^(\d+) runs would be computed\n(.*)", out, re.M | re.S).groups()
    rows = [line.split() for line in table.splitlines()[1:]]
    assert int(head) == len(rows)
    assert kinds <= {row[0] for row in rows}
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_refuses_what_the_run_would(tmp_path, califkit, monkeypatch):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    file = params_file(tmp_path, execution={"processes": 3})
    code, _, err = califkit("train", "--profile", file, "--dry-run")
    assert code == 2 and "do not divide among 3 processes" in err


@pytest.mark.parametrize("command", ["jobs", "plan"])
def test_json_is_a_list_of_rows_and_nothing_else(tmp_path, califkit, monkeypatch, command):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    code, out, _ = califkit(command, "--profile", params_file(tmp_path), "--json")
    assert code == 0
    rows = json.loads(out)
    assert {row["state"] for row in rows} == {"to do"}
    assert {"anchors", "training", "generation", "scores"} <= {row["stage"] for row in rows}


def test_quiet_leaves_results_and_errors(place, monkeypatch, califkit):
    monkeypatch.setenv("CALIFKIT_QUIET", "")  # what the option sets ends with this test
    path = params(place)
    code, told, _ = califkit("anchors", "--profile", path)
    assert code == 0 and "anchors: " in told and ": complete, 2 rows" in told
    code, told, _ = califkit("-q", "generate", "--method", "base", "--profile", path)
    assert code == 0 and told.count("\n") == 1 and ": complete, 2 rows" in told


def test_a_method_that_the_profile_has_not(refused, place):
    error = refused("evaluate", "--profile", params(place), "--method", "califf")
    assert "--method califf: the profile has base, if_rlvr, calif" in error
