"""Run folders: rows that survive a kill, units, the manifest, where things lie."""

import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from califkit.runs import folders, jsonl, paths
from califkit.runs.folders import open_run
from califkit.runs.jsonl import RowLog, lines_from_end, read_jsonl, write_json
from califkit.runs.params import Settings, load_params
from califkit.runs.settings import ParamsError
from califkit.runs.stages import ScoreStage, stage_hash
from califkit.runs.units import resume_units

ROWS = [{"n": 0, "text": "plain"}, {"n": 1, "text": "two\nlines\r\u2028\x85 and ä 🙂"}, {"n": 2}]


@pytest.fixture
def stage() -> ScoreStage:
    return Settings().score_stages()[-1]


@pytest.fixture
def run(tmp_path, monkeypatch, stage):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    return open_run("test", stage)


def test_rows_come_back_as_they_were_appended(tmp_path):
    log = RowLog(tmp_path / "rows.jsonl")
    assert log.rows() == []
    log.append(ROWS[:1])
    log.append(ROWS[1:])
    assert log.rows() == ROWS
    assert read_jsonl(log.path) == ROWS
    assert len(log.path.read_bytes().split(b"\n")) == len(ROWS) + 1, "one line a row"


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_torn_last_line_is_cut_when_the_file_is_opened(tmp_path, cut):
    path = tmp_path / "rows.jsonl"
    RowLog(path).append(ROWS[:2])
    path.write_bytes(path.read_bytes()[:-cut])
    log = RowLog(path)
    assert log.rows() == ROWS[:1]
    log.append(ROWS[2:])
    assert log.rows() == [ROWS[0], ROWS[2]], "the next row starts on a line of its own"


def test_a_file_that_holds_only_a_torn_line_is_emptied(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"n": ')
    assert RowLog(path).rows() == []


@pytest.mark.parametrize("block", [1, 2, 3, 64])
@pytest.mark.parametrize("content", ["", "torn", "one\n", "\n\n", "one\ntwo\n\nfour\ntorn", "a\nb"])
def test_lines_from_the_end_are_the_whole_ones(tmp_path, content, block):
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    whole = content.encode().split(b"\n")[:-1]
    assert list(lines_from_end(path, block)) == whole[::-1]


def test_keep_replaces_the_rows_and_touches_nothing_else(tmp_path):
    neighbour = tmp_path / "rows.tmp"
    neighbour.write_text("mine")
    log = RowLog(tmp_path / "rows.jsonl")
    log.append(ROWS)
    log.keep(ROWS[1:])
    assert log.rows() == ROWS[1:]
    assert neighbour.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.jsonl", "rows.tmp"]


@pytest.mark.parametrize(
    ("n_rows", "done", "kept"),
    [(0, 0, 0), (1, 0, 0), (2, 1, 2), (4, 1, 2), (5, 2, 5), (6, 3, 6), (8, 3, 6)],
)
def test_rows_of_a_torn_unit_are_cut(tmp_path, n_rows, done, kept):
    log = RowLog(tmp_path / "rows.jsonl")
    log.append([{"n": n} for n in range(n_rows)])
    assert resume_units(log, [2, 3, 1]) == done
    assert [row["n"] for row in log.rows()] == list(range(kept))


def test_json_is_replaced_as_a_whole(tmp_path, monkeypatch):
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})

    def killed(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["value.json"]


def test_the_folder_of_a_run_follows_from_profile_and_stage(run, stage, tmp_path):
    expected = tmp_path / "runs" / "test" / "scores" / f"calif-trained0-seed2-{stage_hash(stage)}"
    assert run.folder == expected
    assert not (tmp_path / "runs").exists(), "asking creates nothing"
    assert not run.is_complete
    with pytest.raises(FileNotFoundError):
        run.manifest()


def test_the_manifest_is_what_makes_a_run_complete(run, stage):
    with run.computing() as needed:
        assert needed
        RowLog(run.folder / "rows.jsonl").append(ROWS)
        assert not run.is_complete
        run.finish(time.monotonic() - 2, rows=3, data_sha256="abc")
    assert run.is_complete
    manifest = run.manifest()
    assert manifest["settings"] == json.loads(json.dumps(stage.model_dump(mode="json")))
    assert manifest["hash"] == stage_hash(stage)
    assert (manifest["stage"], manifest["name"]) == ("scores", "calif-trained0-seed2")
    assert (manifest["rows"], manifest["data_sha256"]) == (3, "abc")
    assert 2 <= manifest["attempt_seconds"] < 60
    assert {"torch", "transformers", "trl", "califkit", "python"} <= set(manifest["versions"])
    assert manifest["host"]
    with run.computing() as needed:
        assert not needed


def test_a_run_that_fails_stays_incomplete(run):
    with pytest.raises(RuntimeError), run.computing():
        raise RuntimeError
    assert not run.is_complete
    with run.computing() as needed:
        assert needed, "and can be taken up again"


def test_a_second_request_waits_and_finds_the_result(run):
    answers = []

    def ask():
        with run.computing() as needed:
            answers.append(needed)

    with run.computing():
        second = threading.Thread(target=ask)
        second.start()
        second.join(0.3)
        assert answers == [], "the folder is held"
        run.finish(time.monotonic())
    second.join(10)
    assert answers == [False]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Path:
    for name in ("CALIFKIT_ROOT", "CALIFKIT_RUNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_project_is_around_the_working_directory(elsewhere, monkeypatch):
    for name in ("params", "notebooks/deep"):
        (elsewhere / "mine" / name).mkdir(parents=True)
    monkeypatch.chdir(elsewhere / "mine" / "notebooks" / "deep")
    assert paths.project_root() == elsewhere / "mine"
    assert paths.runs_dir() == elsewhere / "mine" / "runs"


def test_the_project_is_around_the_package_when_started_elsewhere(elsewhere):
    (elsewhere / "params").mkdir()  # not enough: there is no notebooks/ beside it
    assert paths.project_root() == Path(folders.__file__).parents[2]


def test_the_environment_names_project_and_runs(elsewhere, monkeypatch):
    monkeypatch.setenv("CALIFKIT_ROOT", str(elsewhere / "root"))
    assert paths.project_root() == elsewhere / "root"
    assert paths.runs_dir() == elsewhere / "root" / "runs"
    monkeypatch.setenv("CALIFKIT_RUNS", str(elsewhere / "big-disk"))
    assert paths.runs_dir() == elsewhere / "big-disk"


def test_the_commit_is_marked_when_files_differ(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "__file__", str(tmp_path / "package" / "runs.py"))
    assert folders.git_commit() is None

    def git(*command: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        run = ["git", "-C", str(tmp_path), *identity, *command]
        return subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "runs.py").write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    assert folders.git_commit() == git("rev-parse", "HEAD")[:12]
    (tmp_path / "package" / "runs.py").write_text("2")
    assert folders.git_commit() == git("rev-parse", "HEAD")[:12] + "+changes"


def test_a_run_does_not_continue_on_other_data(run):
    run.folder.mkdir(parents=True)
    run.pin_data("a" * 64)
    run.pin_data("a" * 64)
    with pytest.raises(folders.StaleRunError, match="begun with other prompts") as refused:
        run.pin_data("b" * 64)
    assert str(run.folder) in str(refused.value)


def test_a_folder_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(paths.StorageError, match="cannot be written: ") as refused:
        paths.check_writable(tmp_path / "file" / "runs")
    assert str(tmp_path / "file" / "runs") in str(refused.value)


def test_a_disk_that_is_too_small_is_refused_with_both_numbers(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1_250_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    paths.check_writable(tmp_path / "runs", 1_250_000_000)
    with pytest.raises(paths.StorageError) as refused:
        paths.check_writable(tmp_path / "runs", 4_570_000_000)
    expected = "about 4.57 GB are needed, 1.25 GB are free"
    assert str(refused.value) == f"{tmp_path / 'runs'}: {expected}"
    assert list((tmp_path / "runs").iterdir()) == [], "the trial leaves nothing"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MB of its own, where one may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_with_rows(folder: Path) -> None:
    RowLog(folder / "rows.jsonl").append([{"text": "x" * 2**20}] * 20)


def fill_with_a_checkpoint(folder: Path) -> None:
    import torch

    torch.save(torch.zeros(2**23), folder / "weights.pt")


def fill_with_weights(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2**23)}, folder / "model.safetensors")


@pytest.mark.parametrize("fill", [fill_with_rows, fill_with_a_checkpoint, fill_with_weights])
def test_a_disk_that_fills_up_is_named_as_such(small_disk, fill):
    """Each library reports it in its own way."""
    with pytest.raises(paths.StorageError) as failed, paths.explaining_full_disk(small_disk):
        fill(small_disk)
    assert str(small_disk) in str(failed.value)
    assert "the disk is full" in str(failed.value) and "continues the run" in str(failed.value)


@pytest.mark.parametrize("error", [ValueError("bad"), RuntimeError("CUDA"), OSError(2, "gone")])
def test_other_errors_stay_what_they_are(tmp_path, error):
    with pytest.raises(type(error)) as passed, paths.explaining_full_disk(tmp_path):
        raise error
    assert passed.value is error


def test_rows_of_a_growing_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert jsonl.finished_rows(path) == []
    RowLog(path).append(ROWS)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"n": 3, "te')
    assert jsonl.finished_rows(path) == ROWS


def test_whole_lines_are_read_from_a_byte_on(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"one\ntwo\r\n\nthr")
    assert list(jsonl.whole_lines(path)) == [b"one\n", b"two\r\n", b"\n"]
    assert list(jsonl.whole_lines(path, 4)) == [b"two\r\n", b"\n"]
    assert list(jsonl.whole_lines(path, 10)) == []


@pytest.mark.parametrize("torn", [b"", b'{"a": 3', b"x" * 5_000_000])
def test_a_torn_line_of_any_length_is_cut(tmp_path, torn):
    path = tmp_path / "rows.jsonl"
    whole = b'{"a": 1}\n' * 3 + b'{"a": "' + b"y" * 3_000_000 + b'"}\n'
    path.write_bytes(whole + torn)
    RowLog(path)
    assert path.read_bytes() == whole
    path.write_bytes(torn)
    RowLog(path)
    assert path.read_bytes() == b""


def test_an_installed_package_has_its_params_and_keeps_runs_in_the_working_directory(
    elsewhere, monkeypatch
):
    """No checkout around the package or the working directory."""
    monkeypatch.setattr(paths, "__file__", str(elsewhere / "lib" / "califkit" / "runs" / "p.py"))
    monkeypatch.setattr(paths.sys, "prefix", str(elsewhere / "prefix"))
    installed = elsewhere / "prefix" / "share" / "califkit" / "params"
    installed.mkdir(parents=True)
    for name in ("ci.yaml", "zero3.json"):
        shutil.copy(Path(folders.__file__).parents[2] / "params" / name, installed)
    assert paths.runs_dir() == elsewhere / "runs"
    assert load_params("ci").profile == "ci"
    assert paths.project_file("params/zero3.json") == installed / "zero3.json"
    with pytest.raises(ParamsError, match="profiles: ci$"):
        load_params("none")
    (elsewhere / "params").mkdir()
    (elsewhere / "params" / "ci.yaml").write_text("profile: mine\n")
    assert load_params("ci").profile == "mine", "one's own comes first"
