"""kill -9 in the middle of every stage, then the same command again."""

import io
import json
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import environment, kill_when, n_lines, params_file, start

from califkit.runs.dispatch import run_stage
from califkit.runs.folders import LOG, ROLLOUTS, Run, open_run
from califkit.runs.jsonl import read_jsonl
from califkit.runs.params import Params, load_params
from califkit.runs.stages import Stage

pytestmark = pytest.mark.slow

DRAWS, RESPONSES, SCORES = "draws.jsonl", "responses.jsonl", "scores.jsonl"
SAVE_EVERY, STEPS = 2, 5
BASE_ALONE = """
import sys
from califkit.runs import dispatch
from califkit.runs.params import load_params
kind, file = sys.argv[1:]
params = load_params(file)
scores = params.settings.score_stages()[0]
stage = {"scores": scores, "generation": scores.responses}[kind]
dispatch.run_stage(params.profile, stage, params.settings.execution)
"""


@dataclass
class Killed:
    """A stage that was killed and run again, beside an unbroken run of it.

    ``before`` maps file names to their bytes at the kill, ``printed`` is what the second run said.
    """

    run: Run
    unbroken: Run
    before: dict[str, bytes]
    printed: str

    def rows(self, name: str) -> tuple[list[dict], list[dict]]:
        return read_jsonl(self.run.folder / name), read_jsonl(self.unbroken.folder / name)


class Stages:
    """Two runs folders, ``killed`` and ``unbroken``, with the same tiny experiment."""

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, training: dict[str, Any] | None = None
    ) -> None:
        self.folder = folder
        self.patch = patch
        # Small units, so that there is a middle to be killed in.
        self.file = params_file(
            folder,
            methods=["calif"],
            data={"n_prompts": 12},
            anchors={"sampling": {"max_tokens": 8, "batch_size": 1}},
            training=training or {"steps": STEPS},
            evaluation={"n_prompts": 200, "sampling": {"max_tokens": 2, "batch_size": 10}},
            execution={"save_every": SAVE_EVERY},
        )

    @property
    def params(self) -> Params:
        return load_params(self.file)

    def compute(self, where: str, stage: Stage) -> Run:
        self.patch.setenv("CALIFKIT_RUNS", str(self.folder / where))
        return run_stage("tiny", stage, self.params.settings.execution)

    def open(self, where: str, stage: Stage) -> Run:
        self.patch.setenv("CALIFKIT_RUNS", str(self.folder / where))
        return open_run("tiny", stage)

    def kill_and_continue(self, stage: Stage, command: list[str], name: str, rows: int) -> Killed:
        """Kill ``python <command> <params file>`` once its file ``name`` has some rows, run the
        stage again, and run it unbroken."""
        run, log = self.open("killed", stage), self.folder / "output.log"
        process = start([*command, str(self.file)], self.folder / "killed", log)
        kill_when(process, lambda: n_lines(run.folder / name) >= rows, log)
        assert not run.is_complete
        before = {p.name: p.read_bytes() for p in run.folder.iterdir() if p.is_file()}
        shutil.copytree(run.folder, self.folder / "at-the-kill" / stage.kind)
        with redirect_stdout(io.StringIO()) as printed:
            self.compute("killed", stage)
        return Killed(run, self.compute("unbroken", stage), before, printed.getvalue())


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield Stages(tmp_path_factory.mktemp("resume"), patch)


def whole_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


def assert_continued(killed: Killed, name: str) -> None:
    """Finished units were kept as they were, and the file equals that of an unbroken run."""
    kept = whole_lines(killed.before[name])
    final = (killed.run.folder / name).read_bytes()
    assert kept and final.startswith(kept) and len(final) > len(kept)
    assert final == (killed.unbroken.folder / name).read_bytes()
    assert "are there, continuing" in killed.printed
    assert killed.run.is_complete


def test_anchors(stages):
    stage = stages.params.settings.anchor_stage()
    command = ["-m", "califkit.cli.main", "anchors", "--profile"]
    killed = stages.kill_and_continue(stage, command, DRAWS, 3)
    assert_continued(killed, DRAWS)
    assert len(killed.rows(DRAWS)[0]) == 12 * 2
    tables = [run.folder / "anchors.parquet" for run in (killed.run, killed.unbroken)]
    assert tables[0].read_bytes() == tables[1].read_bytes()


@pytest.fixture(scope="module")
def training(stages) -> Killed:
    (stage,) = stages.params.settings.train_stages()
    command = ["-m", "califkit.cli.main", "train", "--profile"]
    return stages.kill_and_continue(stage, command, LOG, SAVE_EVERY + 1)


def test_training(training):
    killed = training
    # Steps up to the checkpoint were not computed again: their rows kept even the seconds.
    old = [json.loads(line) for line in whole_lines(killed.before[LOG]).splitlines()]
    ours, unbroken = killed.rows(LOG)
    at = int(killed.printed.split("continuing after step ")[1].split(" of ")[0])
    assert at in (SAVE_EVERY, 2 * SAVE_EVERY)
    assert ours[:at] == old[:at]
    assert "step 1 of" not in killed.printed and f"step {at + 1} of {STEPS}" in killed.printed
    for row in ours + unbroken:
        del row["seconds"]
    assert [row["step"] for row in ours] == [1, 2, 3, 4, 5]
    assert ours == unbroken
    rollouts = [(run.folder / ROLLOUTS).read_bytes() for run in (killed.run, killed.unbroken)]
    assert rollouts[0] == rollouts[1]
    policies = [
        run.folder / "policy" / "model.safetensors" for run in (killed.run, killed.unbroken)
    ]
    assert policies[0].read_bytes() == policies[1].read_bytes()
    assert not (killed.run.folder / "checkpoints").exists()


@pytest.mark.parametrize(
    "change",
    [{"lora": {"r": 4}}, {"beta": 0.0}, {"precision": "bfloat16"}],
    ids=["adapters", "no KL term", "bfloat16"],
)
def test_training_otherwise(tmp_path, monkeypatch, change):
    """The adapter, or the reference that the trainer does not hold, survives a kill too; and what
    is computed in another precision."""
    stages = Stages(tmp_path, monkeypatch, training={"steps": STEPS, **change})
    (stage,) = stages.params.settings.train_stages()
    command = ["-m", "califkit.cli.main", "train", "--profile"]
    killed = stages.kill_and_continue(stage, command, LOG, SAVE_EVERY + 1)
    assert "continuing after step" in killed.printed
    ours, unbroken = killed.rows(LOG)
    for row in ours + unbroken:
        del row["seconds"]
    assert [row["step"] for row in ours] == [1, 2, 3, 4, 5]
    assert ours == unbroken
    for name in (ROLLOUTS, "policy/model.safetensors"):
        files = [run.folder / name for run in (killed.run, killed.unbroken)]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert killed.run.manifest()["reference"] == killed.unbroken.manifest()["reference"]


def test_rows_after_the_checkpoint_are_cut(tmp_path):
    """Rollouts are written before their step's row, so a kill may leave one step more of them."""
    from califkit.training.log import TrainingLog

    log = TrainingLog(tmp_path, STEPS, "train")
    log.steps.append([{"step": step} for step in (1, 2, 3)])
    log.rollouts.append([{"step": step, "key": key} for step in (1, 2, 3, 4) for key in "ab"])
    log.resume_at(2)
    assert [row["step"] for row in log.steps.rows()] == [1, 2]
    assert [row["step"] for row in log.rollouts.rows()] == [1, 1, 2, 2]
    log.resume_at(0)  # killed before the first checkpoint
    assert log.steps.rows() == log.rollouts.rows() == []


def torn_without_state(checkpoint: Path) -> None:
    (checkpoint / "trainer_state.json").unlink()


def torn_inside_state(checkpoint: Path) -> None:
    text = (checkpoint / "trainer_state.json").read_text()
    (checkpoint / "trainer_state.json").write_text(text[: len(text) // 2])


def torn_after_the_weights(checkpoint: Path) -> None:
    for path in checkpoint.iterdir():
        if path.name != "model.safetensors":
            path.unlink()


@pytest.mark.parametrize("tear", [torn_without_state, torn_inside_state, torn_after_the_weights])
def test_a_torn_checkpoint_is_passed_over(tmp_path, tear):
    from califkit.training.checkpoints import last_checkpoint

    for step in (8, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").write_bytes(b"weights")
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text('{"global_step": 8}')
    tear(tmp_path / "checkpoint-10")
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-8"
    assert not (tmp_path / "checkpoint-10").exists()
    tear(tmp_path / "checkpoint-8")
    assert last_checkpoint(tmp_path) is None
    assert last_checkpoint(tmp_path / "absent") is None


def test_killed_inside_a_checkpoint(stages, training, capfd):
    """Continues from the older checkpoint, and ends with the same policy."""
    stage, unbroken = training.run.stage, training.unbroken
    run = stages.open("torn", stage)
    shutil.copytree(stages.folder / "at-the-kill" / "training", run.folder)
    newest = max((run.folder / "checkpoints").glob("checkpoint-*"))
    at = int(newest.name.rsplit("-", 1)[1])
    torn = newest.with_name(f"checkpoint-{at + SAVE_EVERY}")
    shutil.copytree(newest, torn)
    torn_inside_state(torn)
    anchors = stages.open("unbroken", stage.anchors).folder
    shutil.copytree(anchors, stages.open("torn", stage.anchors).folder)
    stages.compute("torn", stage)
    assert f"continuing after step {at} of {STEPS}" in capfd.readouterr().out
    for name in (ROLLOUTS, "policy/model.safetensors"):
        assert (run.folder / name).read_bytes() == (unbroken.folder / name).read_bytes()


def test_killed_after_the_last_checkpoint(stages, training, capfd, monkeypatch):
    """Killed right before the manifest: no step is taken twice, nor one too many.

    On the way there, whenever a checkpoint was deleted, a newer one was whole.
    """
    from califkit.training.checkpoints import is_whole

    stage, unbroken = training.run.stage, training.unbroken
    run = stages.open("late", stage)
    anchors = stages.open("unbroken", stage.anchors).folder
    shutil.copytree(anchors, stages.open("late", stage.anchors).folder)
    rmtree, deleted = shutil.rmtree, []

    def watched(path, *args, **kwargs):
        path = Path(path)
        if path.name.startswith("checkpoint-"):
            deleted.append(path.name)
            step = int(path.name.rsplit("-", 1)[1])
            newer = [
                p
                for p in path.parent.glob("checkpoint-*")
                if int(p.name.rsplit("-", 1)[1]) > step and is_whole(p)
            ]
            assert newer, f"{path.name} is deleted while no newer one is whole"
        rmtree(path, *args, **kwargs)

    class Dead(BaseException):
        pass

    def kill(*args, **facts):
        raise Dead

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", watched)
        patch.setattr(Run, "finish", kill)
        with pytest.raises(Dead):
            stages.compute("late", stage)
    assert deleted == ["checkpoint-2", "checkpoint-4"]
    assert [p.name for p in (run.folder / "checkpoints").glob("checkpoint-*")] == ["checkpoint-5"]
    log = (run.folder / LOG).read_bytes()
    capfd.readouterr()
    stages.compute("late", stage)
    assert f"all {STEPS} steps are there" in capfd.readouterr().out
    assert (run.folder / LOG).read_bytes() == log
    assert run.manifest()["rows"] == STEPS
    for name in (ROLLOUTS, "policy/model.safetensors"):
        assert (run.folder / name).read_bytes() == (unbroken.folder / name).read_bytes()


def test_generation(stages):
    stage = stages.params.settings.score_stages()[0].responses
    killed = stages.kill_and_continue(stage, ["-c", BASE_ALONE, stage.kind], RESPONSES, 20)
    assert_continued(killed, RESPONSES)
    assert len(killed.rows(RESPONSES)[0]) == 200


def test_scoring(stages):
    stage = stages.params.settings.score_stages()[0]
    stages.compute("killed", stage.responses)
    killed = stages.kill_and_continue(stage, ["-c", BASE_ALONE, stage.kind], SCORES, 32)
    assert_continued(killed, SCORES)
    assert len(killed.rows(SCORES)[0]) == 200


def test_a_complete_stage_costs_nothing(stages):
    """Opening every stage again takes well under a second and loads no torch."""
    settings = stages.params.settings
    for stage in (*settings.train_stages(), settings.score_stages()[0]):
        stages.compute("unbroken", stage)
    script = """
import sys, time
from califkit.runs import dispatch
from califkit.runs.params import load_params
started = time.perf_counter()
params = load_params(sys.argv[1])
settings = params.settings
scores = settings.score_stages()[0]
wanted = [settings.anchor_stage(), *settings.train_stages(), scores.responses, scores]
runs = [dispatch.run_stage("tiny", stage, settings.execution) for stage in wanted]
runs += dispatch.ensure(params, wanted)
assert all(run.is_complete for run in runs)
assert "torch" not in sys.modules
print(time.perf_counter() - started)
"""
    result = subprocess.run(
        [sys.executable, "-c", script, str(stages.file)],
        env=environment(stages.folder / "unbroken"),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert float(result.stdout.splitlines()[-1]) < 0.5
