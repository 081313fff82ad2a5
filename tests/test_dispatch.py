"""Jobs on this machine, for real through submitit; and on Slurm where there is one."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from filelock import FileLock, Timeout
from tiny_runs import environment, n_lines, params_file, start, tiny_params, wait_for

from califkit import dispatch
from califkit.dispatch import Job, JobError, NotSubmittedError
from califkit.params import AnchorStage, Execution, Params
from califkit.runs import MANIFEST, Run, open_run, write_json

DRAWS = "draws.jsonl"
# Long enough to be found, cancelled and killed while it runs.
LONG = {"anchors": {"sampling": {"max_tokens": 40, "batch_size": 1}, "draws": 20}}


def family_of(folder: Path) -> list[psutil.Process]:
    """The live processes of a local job: controller and stage both name its log folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder / "jobs") in process.cmdline():
                found.append(process)
        except psutil.Error:
            pass
    return found


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """The runs folder of a test; what a failed test leaves running is ended."""
    folder = tmp_path / "runs"
    for key, value in environment(folder).items():
        monkeypatch.setenv(key, value)
    yield folder
    for path in folder.glob("*/*/*"):
        for process in family_of(path):
            process.kill()


def with_data_seeds(params: Params, *seeds: int) -> list[AnchorStage]:
    stage = params.settings.anchor_stage()
    return [
        stage.model_copy(update={"data": stage.data.model_copy(update={"seed": seed})})
        for seed in seeds
    ]


def is_locked(folder: Path) -> bool:
    try:
        with FileLock(folder / ".lock", timeout=0):
            return False
    except Timeout:
        return True


def slurm_answers() -> bool:
    """Whether jobs can be submitted: Slurm may be installed without running."""
    if shutil.which("sbatch") is None:
        return False
    return subprocess.run(["sinfo"], capture_output=True, timeout=60).returncode == 0


# ---------------------------------------------------------------- decisions, without processes


class Machine:
    """Stands for the scheduler: a job ends after its number of rounds, complete or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rounds: dict[int, int]) -> None:
        self.rounds = rounds
        self.failing: set[int] = set()
        self.now = 0
        self.started: dict[int, int] = {}
        self.runs: dict[int, Run] = {}
        self.cancelled: list[str] = []
        monkeypatch.setattr(dispatch, "_start", self._start)
        monkeypatch.setattr(dispatch, "_is_alive", lambda job: not self._ended(int(job.job_id)))
        monkeypatch.setattr(dispatch, "cancel", self._cancel)
        monkeypatch.setattr(dispatch.time, "sleep", self._sleep)

    def _ended(self, seed: int) -> bool:
        return self.now >= self.started[seed] + self.rounds[seed]

    def _start(self, profile: str, run: Run, execution: Execution, count: int) -> Job:
        seed = run.stage.data.seed
        run.folder.mkdir(parents=True)
        self.started[seed], self.runs[seed] = self.now, run
        return Job(run, "local", str(seed))

    def _sleep(self, seconds: float) -> None:
        self.now += 1
        for seed, run in self.runs.items():
            if self._ended(seed) and seed not in self.failing:
                write_json(run.folder / MANIFEST, {})

    def _cancel(self, jobs: list[Job]) -> None:
        self.cancelled += [job.job_id for job in jobs if job.state == "running"]


def test_the_next_job_starts_when_a_slot_is_free(runs, tmp_path, monkeypatch):
    machine = Machine(monkeypatch, {0: 10, 1: 2, 2: 3, 3: 1})
    stages = with_data_seeds(tiny_params(tmp_path), 0, 1, 2, 3)
    done = dispatch.compute_all("tiny", stages, Execution(workers=2))
    assert machine.started == {0: 0, 1: 0, 2: 2, 3: 5}
    assert [run.stage.data.seed for run in done] == [0, 1, 2, 3]
    assert all(run.is_complete for run in done)


def test_a_cluster_gets_all_jobs_at_once(runs, tmp_path, monkeypatch):
    machine = Machine(monkeypatch, {0: 3, 1: 1, 2: 2})
    stages = with_data_seeds(tiny_params(tmp_path), 0, 1, 2)
    dispatch.compute_all("tiny", stages, Execution(workers=1, cluster="slurm"))
    assert set(machine.started.values()) == {0}


def test_a_failure_ends_the_other_local_jobs(runs, tmp_path, monkeypatch):
    machine = Machine(monkeypatch, {0: 10, 1: 2, 2: 3})
    machine.failing = {1}
    stages = with_data_seeds(tiny_params(tmp_path), 0, 1, 2)
    with pytest.raises(JobError, match="has no manifest after its job ended"):
        dispatch.compute_all("tiny", stages, Execution(workers=2))
    assert machine.cancelled == ["0"]
    assert 2 not in machine.started


def test_complete_stages_start_nothing(runs, tmp_path, monkeypatch):
    machine = Machine(monkeypatch, {0: 1, 1: 1})
    stages = with_data_seeds(tiny_params(tmp_path), 0, 1)
    dispatch.compute_all("tiny", stages, Execution())
    again = Machine(monkeypatch, {})
    assert [run.folder for run in dispatch.compute_all("tiny", stages, Execution())] == [
        machine.runs[seed].folder for seed in (0, 1)
    ]
    assert [job.state for job in dispatch.submit("tiny", stages, Execution())] == ["complete"] * 2
    assert again.started == {}


@pytest.mark.parametrize(
    ("configured", "jobs", "cores", "free_gb", "expected"),
    [
        (None, 4, 8, 100, 4),  # no more than there are jobs
        (None, 4, 2, 100, 2),  # than cores
        (None, 4, 8, 13, 2),  # than memory holds at 6 GB each
        (None, 4, 8, 1, 1),  # but one always
        (3, 4, 1, 1, 3),  # a configured number is taken as it is
        (8, 4, 8, 100, 4),
        (None, 1, 8, 100, 1),
        (4, 0, 8, 100, 1),
    ],
)
def test_workers(monkeypatch, configured, jobs, cores, free_gb, expected):
    memory = type("Memory", (), {"available": free_gb * 1e9})
    monkeypatch.setattr(dispatch.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(dispatch, "_cores", lambda: cores)
    execution = Execution(workers=configured, memory_per_worker_gb=6)
    assert dispatch.workers(execution, jobs) == expected


def test_missing_runs_on_a_cluster_are_listed_not_submitted(runs, tmp_path, monkeypatch):
    machine = Machine(monkeypatch, {0: 1})
    params = tiny_params(tmp_path, execution={"cluster": "slurm"})
    stage = params.settings.anchor_stage()
    with pytest.raises(NotSubmittedError, match="1 of 1 runs are not there") as caught:
        dispatch.ensure(params, [stage])
    assert f"tiny/anchors/{open_run('tiny', stage).folder.name}" in str(caught.value)
    assert machine.started == {} and not runs.exists()
    dispatch.ensure(params, [stage], submit=True)
    assert machine.started == {0: 0}


@pytest.mark.parametrize("seen", [None, "2,3"])
def test_a_local_job_sees_the_gpus_of_its_parent(monkeypatch, runs, tmp_path, seen):
    """submitit starts local jobs with CUDA_VISIBLE_DEVICES empty, which hides every GPU."""
    params = tiny_params(tmp_path)
    stage = params.settings.anchor_stage()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(dispatch, "_end_with_parent", lambda: None)

    def run_stage(profile, stage, execution):
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == seen
        return open_run(profile, stage)

    monkeypatch.setattr(dispatch, "run_stage", run_stage)
    dispatch._job("tiny", stage, params.settings.execution, 1, seen)


class TestSlurmQueue:
    """What ``squeue`` says decides whether a job is alive; it is asked seldom."""

    @pytest.fixture
    def squeue(self, tmp_path, monkeypatch):
        program = tmp_path / "bin" / "squeue"
        program.parent.mkdir()
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        dispatch._slurm_queue.cache_clear()

        def answer(text: str, status: int = 0) -> Path:
            program.write_text(
                f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nprintf "{text}"\nexit {status}\n'
            )
            program.chmod(0o755)
            return tmp_path / "calls"

        yield answer
        dispatch._slurm_queue.cache_clear()

    def test_one_call_serves_all_jobs(self, squeue):
        calls = squeue("11\\n12\\n")
        assert dispatch._in_slurm_queue("11")
        asked = n_lines(calls)
        assert dispatch._in_slurm_queue("12") and dispatch._in_slurm_queue("11")
        assert asked == 1 and n_lines(calls) <= 2  # 2 if a period of ten seconds ended meanwhile
        assert f"--user={os.getuid()}" in calls.read_text()

    def test_a_job_younger_than_the_list_is_looked_up_again(self, squeue):
        squeue("11\\n")
        assert dispatch._in_slurm_queue("11")
        squeue("11\\n12\\n")
        assert dispatch._in_slurm_queue("12")

    def test_a_job_that_left_the_queue_has_ended(self, squeue):
        squeue("11\\n")
        assert not dispatch._in_slurm_queue("1")

    def test_no_answer_is_not_an_end(self, squeue):
        squeue("", status=1)
        assert dispatch._in_slurm_queue("11")

    def test_a_folder_from_a_cluster_looked_at_elsewhere(self, squeue, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        assert not dispatch._in_slurm_queue("11")


def test_a_cluster_that_is_not_there(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    params = tiny_params(tmp_path)
    with pytest.raises(JobError, match="slurm did not take the job"):
        dispatch.submit("tiny", [params.settings.anchor_stage()], Execution(cluster="slurm"))


def test_a_process_id_used_again_is_not_the_job(runs, tmp_path):
    """After a restart of the machine another process may bear the id of an old job."""
    run = open_run("tiny", tiny_params(tmp_path).settings.anchor_stage())
    run.folder.mkdir(parents=True)
    write_json(run.folder / dispatch.JOB, {"cluster": "local", "id": str(os.getpid())})
    assert dispatch._find_job(run) is None
    assert Job(run, "local", str(os.getpid())).state == "failed"


# ---------------------------------------------------------------- real processes


@pytest.mark.slow
def test_two_jobs_side_by_side(runs, tmp_path):
    params = tiny_params(tmp_path)
    stages = with_data_seeds(params, 0, 1)
    jobs = dispatch.submit("tiny", stages, params.settings.execution)
    assert {row["state"] for row in dispatch.job_list("tiny", stages)} == {"running"}
    lines = list(dispatch.watch(jobs, interval=0.1))
    assert lines and set(lines) <= {f"anchors: {n} of 3" for n in (1, 2, 3)}
    assert lines.count("anchors: 3 of 3") == 2
    assert [job.state for job in jobs] == ["complete", "complete"]
    assert all(row["state"] == "complete" for row in dispatch.job_list("tiny", stages))
    assert len({job.job_id for job in jobs}) == 2


@pytest.mark.slow
def test_a_failing_stage(runs, tmp_path):
    params = tiny_params(tmp_path, data={"source": str(tmp_path / "absent.jsonl")})
    with pytest.raises(JobError) as caught:
        dispatch.compute_all("tiny", [params.settings.anchor_stage()], params.settings.execution)
    assert f"DataError: {tmp_path}/absent.jsonl: no such file" in str(caught.value)


SUBMIT = """
import sys
from califkit import dispatch
from califkit.params import load_params
params = load_params(sys.argv[1])
stage = params.settings.anchor_stage()
(job,) = dispatch.submit(params.profile, [stage], params.settings.execution)
# A notebook kernel: submitting and looking must leave CUDA, and so torch, alone.
assert dispatch.job_list(params.profile, [stage])[0]["state"] == "running"
assert job.output is not None and "torch" not in sys.modules
print(job.job_id)
"""


@pytest.mark.slow
def test_found_again_cancelled_killed_and_continued(runs, tmp_path):
    file = params_file(tmp_path, **LONG)
    with (tmp_path / "other.log").open("w") as output:  # the job keeps a pipe open, so no pipe
        subprocess.run([sys.executable, "-c", SUBMIT, str(file)], stdout=output, check=True)
    params = tiny_params(tmp_path, **LONG)
    stage, execution = params.settings.anchor_stage(), params.settings.execution
    (job,) = dispatch.submit("tiny", [stage], execution)
    assert job.job_id == (tmp_path / "other.log").read_text().strip()
    folder = job.run.folder
    rows = folder / DRAWS
    wait_for(lambda: n_lines(rows) >= 3, "rows")
    assert len(family_of(folder)) == 2  # one controller, one stage

    dispatch.cancel([job])
    assert family_of(folder) == []
    assert not is_locked(folder)
    assert job.state == "failed" and not job.run.is_complete
    kept = rows.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]

    # The next job continues. Its controller is killed: the stage must not go on unseen.
    (second,) = dispatch.submit("tiny", [stage], execution)
    assert second.job_id != job.job_id
    wait_for(lambda: n_lines(rows) > kept.count(b"\n"), "further rows")
    assert "are there, continuing" in second.output
    os.kill(int(second.job_id), signal.SIGKILL)
    wait_for(lambda: not family_of(folder), "the end of the stage", 10)
    assert second.state == "failed"
    with pytest.raises(JobError, match="no manifest"):
        list(dispatch.watch([second]))
    assert rows.read_bytes().startswith(kept)

    (third,) = dispatch.submit("tiny", [stage], execution)
    assert third.state == "running"
    dispatch.cancel([third])


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_the_waiting_process_ends(runs, tmp_path, sent):
    """Ctrl-C takes the jobs along; after a sudden death they go on and are found again."""
    changes = LONG | {"train_seeds": [0, 1], "methods": ["if_rlvr"], "execution": {"workers": 2}}
    file = params_file(tmp_path, **changes)
    log = tmp_path / "output.log"
    parent = start(["-m", "califkit.cli", "train", "--profile", str(file)], runs, log)
    params = tiny_params(tmp_path, **changes)
    stages = params.settings.train_stages()
    folders = [open_run("tiny", stage).folder for stage in stages]
    wait_for(lambda: all(len(family_of(folder)) == 2 for folder in folders), "two jobs")
    os.kill(parent.pid, sent)
    parent.wait(timeout=30)
    states = [row["state"] for row in dispatch.job_list("tiny", stages)]
    if sent == signal.SIGINT:
        assert parent.returncode == 130
        assert "interrupted; the same command continues" in log.read_text()
        assert states == ["to do", "to do"]
        assert not any(family_of(folder) for folder in folders)
    else:
        assert states == ["running", "running"]
        dispatch.cancel(dispatch.submit("tiny", stages, params.settings.execution))
        assert not any(family_of(folder) for folder in folders)


@pytest.mark.slow
@pytest.mark.skipif(not slurm_answers(), reason="there is no running Slurm here")
def test_slurm(runs, tmp_path):
    params = tiny_params(tmp_path)
    execution = Execution(cluster="slurm", slurm={"cpus_per_task": 1, "timeout_min": 10})
    stages = with_data_seeds(params, 0)
    jobs = dispatch.submit("tiny", stages, execution)
    record = json.loads((jobs[0].run.folder / dispatch.JOB).read_text())
    assert record == {"cluster": "slurm", "id": jobs[0].job_id}
    assert dispatch.submit("tiny", stages, execution)[0].job_id == jobs[0].job_id
    assert list(dispatch.watch(jobs, interval=0.1))[-1] == "anchors: 3 of 3"
    assert jobs[0].state == "complete"

    failing = tiny_params(tmp_path, data={"source": str(tmp_path / "absent.jsonl")})
    with pytest.raises(JobError, match="no such file"):
        dispatch.compute_all("tiny", [failing.settings.anchor_stage()], execution)

    long = tiny_params(tmp_path, **LONG).settings.anchor_stage()
    (job,) = dispatch.submit("tiny", [long], execution)
    wait_for(lambda: n_lines(job.run.folder / DRAWS) >= 3, "rows")
    dispatch.cancel([job])
    wait_for(lambda: job.state == "failed", "the end of the job", 60)
    assert dispatch.job_list("tiny", [long])[0]["state"] == "to do"
