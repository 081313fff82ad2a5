"""Jobs on this machine, for real through submitit; what a cluster is told (see test_slurm.py)."""

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from filelock import FileLock, Timeout
from tiny_runs import environment, n_lines, params_file, start, tiny_params, wait_for

from califkit.judges.client import JudgeError
from califkit.runs import compute, dispatch, jobs, machine, slurm
from califkit.runs.dispatch import NotSubmittedError
from califkit.runs.folders import LOG, MANIFEST, ROLLOUTS, Run, StaleRunError, open_run
from califkit.runs.jobs import Job, JobError
from califkit.runs.jsonl import read_jsonl, write_json
from califkit.runs.params import Params, Settings
from califkit.runs.settings import Execution, ParamsError
from califkit.runs.stages import AnchorStage, stage_hash

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


def absent(folder: Path) -> dict:
    """Settings of training prompts that are not there."""
    numbers = {"min_constraints": 1, "max_constraints": 5, "constraint_ids": None}
    return {"source": str(folder / "absent.jsonl"), **numbers}


def is_locked(folder: Path) -> bool:
    try:
        with FileLock(folder / ".lock", timeout=0):
            return False
    except Timeout:
        return True


# ---------------------------------------------------------------- decisions, without processes


class Machine:
    """Stands for the scheduler: the job of a folder ends after its number of rounds (1 if not
    given), complete or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rounds: dict[str, int] | None = None):
        self.rounds = rounds or {}
        self.failing: set[str] = set()
        self.now = 0
        self.started: dict[str, int] = {}
        self.jobs: dict[str, Job] = {}
        self.after: dict[str, tuple[str, ...]] = {}
        self.cancelled: list[str] = []
        monkeypatch.setattr(jobs, "start", self._start)
        monkeypatch.setattr(jobs, "is_alive", lambda job: not self._ended(job.job_id))
        monkeypatch.setattr(jobs, "cancel", self._cancel)
        monkeypatch.setattr(dispatch.time, "sleep", self._sleep)

    def _ended(self, name: str) -> bool:
        return self.now >= self.started[name] + self.rounds.get(name, 1)

    def _start(self, profile, run, execution, count, gpus=(), after=()) -> Job:
        name = name_of(run)
        run.folder.mkdir(parents=True)
        self.started[name], self.after[name] = self.now, after
        self.jobs[name] = Job(run, execution.cluster, name, gpus)
        return self.jobs[name]

    def _sleep(self, seconds: float) -> None:
        self.now += 1
        for name, job in self.jobs.items():
            if self._ended(name) and name not in self.failing:
                write_json(job.run.folder / MANIFEST, {})

    def _cancel(self, jobs: list[Job]) -> None:
        self.cancelled += [job.job_id for job in jobs if job.state == "running"]


def name_of(run: Run) -> str:
    """``anchors 3`` for the anchors of data seed 3, else kind and name."""
    if isinstance(run.stage, AnchorStage):
        return f"anchors {run.stage.data.seed}"
    return f"{run.stage.kind} {run.stage.name}"


def test_the_next_job_starts_when_a_slot_is_free(runs, tmp_path, monkeypatch):
    rounds = {"anchors 0": 10, "anchors 1": 2, "anchors 2": 3, "anchors 3": 1}
    scheduler = Machine(monkeypatch, rounds)
    stages = with_data_seeds(tiny_params(tmp_path), 0, 1, 2, 3)
    done = dispatch.compute_all("tiny", stages, Execution(workers=2))
    assert scheduler.started == {"anchors 0": 0, "anchors 1": 0, "anchors 2": 2, "anchors 3": 5}
    assert [run.stage.data.seed for run in done] == [0, 1, 2, 3]
    assert all(run.is_complete for run in done)


def test_a_cluster_gets_all_jobs_at_once(runs, tmp_path, monkeypatch):
    scheduler = Machine(monkeypatch, {"anchors 0": 3, "anchors 2": 2})
    stages = with_data_seeds(tiny_params(tmp_path), 0, 1, 2)
    dispatch.compute_all("tiny", stages, Execution(workers=1, cluster="slurm"))
    assert set(scheduler.started.values()) == {0}


def test_a_failure_ends_the_other_local_jobs(runs, tmp_path, monkeypatch):
    scheduler = Machine(monkeypatch, {"anchors 0": 10, "anchors 1": 2, "anchors 2": 3})
    scheduler.failing = {"anchors 1"}
    stages = with_data_seeds(tiny_params(tmp_path), 0, 1, 2)
    with pytest.raises(JobError, match="has ended, and .* has no manifest"):
        dispatch.compute_all("tiny", stages, Execution(workers=2))
    assert scheduler.cancelled == ["anchors 0"]
    assert "anchors 2" not in scheduler.started


def test_complete_stages_start_nothing(runs, tmp_path, monkeypatch):
    scheduler = Machine(monkeypatch)
    stages = with_data_seeds(tiny_params(tmp_path), 0, 1)
    dispatch.compute_all("tiny", stages, Execution())
    again = Machine(monkeypatch)
    assert [run.folder for run in dispatch.compute_all("tiny", stages, Execution())] == [
        scheduler.jobs[f"anchors {seed}"].run.folder for seed in (0, 1)
    ]
    assert again.started == {}


ORDER = {  # what an evaluation of the base and of two policies needs, and when with two workers
    "generation base-seed0": 0,
    "anchors 0": 0,
    "scores base-seed0": 1,
    "training if_rlvr-seed0": 1,
    "training calif-seed0": 2,
    "generation if_rlvr-trained0-seed0": 2,
    "scores if_rlvr-trained0-seed0": 3,
    "generation calif-trained0-seed0": 3,
    "scores calif-trained0-seed0": 4,
}


def test_policies_are_trained_before_they_are_evaluated(runs, tmp_path, monkeypatch):
    scheduler = Machine(monkeypatch)
    stages = tiny_params(tmp_path).settings.score_stages()
    done = dispatch.compute_all("tiny", stages, Execution(workers=2))
    assert scheduler.started == ORDER
    assert [run.stage for run in done] == stages


@pytest.mark.slow
def test_without_workers_everything_is_computed_in_this_process(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    params = tiny_params(tmp_path, methods=["calif"], execution={"workers": 0})
    stages = params.settings.score_stages()
    ticks = []
    done = dispatch.compute_all(
        "tiny", stages, params.settings.execution, on_tick=lambda: ticks.append(1)
    )
    assert [run.stage for run in done] == stages and all(run.is_complete for run in done)
    assert ticks and not list((tmp_path / "runs").rglob("job.json"))
    assert not list((tmp_path / "runs").rglob("jobs"))


def test_a_cluster_is_told_which_jobs_wait_for_which(runs, tmp_path, monkeypatch):
    scheduler = Machine(monkeypatch)
    stages = tiny_params(tmp_path).settings.score_stages()
    dispatch.compute_all("tiny", stages, Execution(cluster="slurm"))
    assert set(scheduler.started.values()) == {0}
    assert scheduler.after == {
        "generation base-seed0": (),
        "anchors 0": (),
        "scores base-seed0": ("generation base-seed0",),
        "training if_rlvr-seed0": ("anchors 0",),
        "training calif-seed0": ("anchors 0",),
        "generation if_rlvr-trained0-seed0": ("training if_rlvr-seed0",),
        "generation calif-trained0-seed0": ("training calif-seed0",),
        "scores if_rlvr-trained0-seed0": ("generation if_rlvr-trained0-seed0",),
        "scores calif-trained0-seed0": ("generation calif-trained0-seed0",),
    }


def test_a_failed_policy_is_not_evaluated(runs, tmp_path, monkeypatch):
    scheduler = Machine(monkeypatch)
    scheduler.failing = {"training calif-seed0"}
    with pytest.raises(JobError, match="calif-seed0"):
        dispatch.compute_all(
            "tiny", tiny_params(tmp_path).settings.score_stages(), Execution(workers=1)
        )
    assert "generation calif-trained0-seed0" not in scheduler.started


def test_responses_that_are_there_need_no_policy(runs, tmp_path, monkeypatch):
    scheduler = Machine(monkeypatch)
    stage = tiny_params(tmp_path).settings.score_stages()[-1]
    responses = open_run("tiny", stage.responses)
    responses.folder.mkdir(parents=True)
    write_json(responses.folder / MANIFEST, {})
    dispatch.compute_all("tiny", [stage], Execution())
    assert list(scheduler.started) == ["scores calif-trained0-seed0"]


def test_jobs_share_no_gpu(runs, tmp_path, monkeypatch):
    rounds = {"anchors 0": 3, "anchors 1": 1, "anchors 2": 1}
    scheduler = Machine(monkeypatch, rounds)
    monkeypatch.setattr(dispatch, "gpus_of_machine", lambda: ("4", "5"))
    stages = with_data_seeds(tiny_params(tmp_path), 0, 1, 2)
    dispatch.compute_all("tiny", stages, Execution(workers=8))
    assert scheduler.started == {"anchors 0": 0, "anchors 1": 0, "anchors 2": 1}
    gpus = [scheduler.jobs[f"anchors {seed}"].gpus for seed in (0, 1, 2)]
    assert gpus == [("4",), ("5",), ("5",)]


def test_a_job_of_several_processes_has_a_gpu_for_each(runs, tmp_path, monkeypatch):
    scheduler = Machine(monkeypatch)
    monkeypatch.setattr(dispatch, "gpus_of_machine", lambda: ("0", "1", "2", "3"))
    settings = tiny_params(tmp_path, training={"micro_batch_size": 2}).settings
    dispatch.compute_all("tiny", settings.score_stages(), Execution(processes=4))
    assert len(scheduler.jobs["anchors 0"].gpus) == 4
    assert len(scheduler.jobs["training calif-seed0"].gpus) == 4
    assert len(scheduler.jobs["scores calif-trained0-seed0"].gpus) == 1
    assert len(set(scheduler.started.values())) >= 4  # a group of four waits for all four
    with pytest.raises(ParamsError, match="processes = 5, but 4 GPUs are visible"):
        dispatch.compute_all(
            "tiny", with_data_seeds(tiny_params(tmp_path), 7), Execution(processes=5)
        )


def test_gpus_are_found_without_cuda(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "GPU 0: H100 (UUID: a)"\necho "GPU 1: H100 (UUID: b)"\n')
    program.chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert machine.gpus_of_machine() == ("0", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert machine.gpus_of_machine() == ("1",)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.gpus_of_machine() == ()
    monkeypatch.setenv("PATH", "/nowhere")
    assert machine.gpus_of_machine() == ()


def test_one_process_uses_one_gpu(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(compute, "gpus_of_machine", lambda: ("2", "3"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    stage = tiny_params(tmp_path).settings.anchor_stage()
    seen = []
    monkeypatch.setattr(
        compute, "_compute", lambda *args: seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
    )
    compute.compute("tiny", stage, Execution())
    assert seen == ["2"]


def test_who_waits_is_told_at_intervals_and_at_the_end(runs, tmp_path, monkeypatch):
    Machine(monkeypatch, {"anchors 0": 9})
    monkeypatch.setattr(dispatch, "TICK", 0)
    stages = with_data_seeds(tiny_params(tmp_path), 0)
    complete = []
    dispatch.compute_all(
        "tiny",
        stages,
        Execution(),
        on_tick=lambda: complete.append(open_run("tiny", stages[0]).is_complete),
    )
    assert complete == [False] * 9 + [True]


def test_alarms_are_shown_whatever_the_interval(runs, tmp_path):
    run = open_run("tiny", tiny_params(tmp_path).settings.anchor_stage())
    lines = [
        "train a: step 1 of 9: r_ver 0.5",
        "train a: alarm: it is hot",
        "train a: step 2 of 9: r_ver 0.5",
    ]

    class Printed(Job):
        output = "\n".join(lines)

    job, shown = Printed(run, "local", "1"), {}
    assert list(jobs.news([job], ["running"], shown, 60)) == [lines[1], lines[2]]
    assert list(jobs.news([job], ["running"], shown, 60)) == []
    Printed.output += "\ntrain a: alarm: it is hotter\ntrain a: step 3 of 9: r_ver 0.6"
    assert list(jobs.news([job], ["running"], shown, 60)) == ["train a: alarm: it is hotter"]


@pytest.mark.parametrize(
    ("configured", "jobs", "cores", "free_gb", "gpus", "expected"),
    [
        (None, 4, 8, 100, 0, 4),  # no more than there are jobs
        (None, 4, 2, 100, 0, 2),  # than cores
        (None, 4, 8, 13, 0, 2),  # than memory holds at 6 GB each
        (None, 4, 8, 1, 0, 1),  # but one always
        (3, 4, 1, 1, 0, 3),  # a configured number is taken as it is
        (8, 4, 8, 100, 0, 4),
        (None, 1, 8, 100, 0, 1),
        (4, 0, 8, 100, 0, 1),
        (None, 4, 8, 100, 1, 1),  # never two on one GPU
        (4, 4, 8, 100, 2, 2),
        (2, 4, 8, 100, 8, 2),
    ],
)
def test_workers(monkeypatch, configured, jobs, cores, free_gb, gpus, expected):
    memory = type("Memory", (), {"available": free_gb * 1e9})
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(machine, "cores", lambda: cores)
    execution = Execution(workers=configured, memory_per_worker_gb=6)
    assert machine.workers(execution, jobs, gpus) == expected


def test_missing_runs_on_a_cluster_are_listed_not_submitted(runs, tmp_path, monkeypatch):
    scheduler = Machine(monkeypatch)
    params = tiny_params(tmp_path, execution={"cluster": "slurm"})
    stage = params.settings.anchor_stage()
    with pytest.raises(NotSubmittedError, match="1 of 1 runs are not there") as caught:
        dispatch.ensure(params, [stage])
    assert f"tiny/anchors/{open_run('tiny', stage).folder.name}" in str(caught.value)
    assert scheduler.started == {} and not runs.exists()
    with pytest.raises(NotSubmittedError, match="3 of 3 runs are not there") as caught:
        dispatch.ensure(params, params.settings.score_stages())
    listed = [line.split("/")[1] for line in str(caught.value).splitlines()[1:]]
    policy = ["training", "generation", "scores"]
    assert listed == ["generation", "scores", "anchors", *policy, *policy]
    dispatch.ensure(params, [stage], submit=True)
    assert scheduler.started == {"anchors 0": 0}


@pytest.mark.parametrize("cluster", ["local", "slurm"])
def test_settings_that_would_end_training_start_no_job(runs, tmp_path, monkeypatch, cluster):
    """Whether training was asked for, or the scores of a policy."""
    scheduler = Machine(monkeypatch)
    settings = tiny_params(tmp_path, methods=["calif"]).settings
    execution = Execution(cluster=cluster, processes=3)
    for stages in (settings.train_stages(), settings.score_stages()):
        with pytest.raises(ParamsError, match="8 rollouts a step do not divide among 3 processes"):
            dispatch.compute_all("tiny", stages, execution)
    assert not scheduler.started and not runs.exists()


def test_anchors_with_reasoning_need_a_model_that_reasons(runs, tmp_path):
    params = tiny_params(tmp_path, thinking=True)
    with pytest.raises(ParamsError, match="thinking = true: "):
        dispatch.run_stage("tiny", params.settings.anchor_stage(), Execution())
    assert not runs.exists()


def test_a_run_begun_with_other_processes_starts_no_job(runs, tmp_path, monkeypatch):
    scheduler = Machine(monkeypatch)
    (stage,) = tiny_params(tmp_path, methods=["calif"]).settings.train_stages()
    checkpoints = open_run("tiny", stage).folder / "checkpoints"
    (checkpoints / "checkpoint-2").mkdir(parents=True)
    write_json(checkpoints / "checkpoint-2" / "trainer_state.json", {})
    write_json(checkpoints / "facts.json", {"processes": 1})
    with pytest.raises(StaleRunError, match="begun with 1 processes and cannot go on with 2"):
        dispatch.compute_all("tiny", [stage], Execution(processes=2))
    assert not scheduler.started


@pytest.mark.parametrize("seen", [None, "2,3"])
def test_a_local_job_sees_the_gpus_of_its_parent(monkeypatch, runs, tmp_path, seen):
    """submitit starts local jobs with CUDA_VISIBLE_DEVICES empty, which hides every GPU."""
    params = tiny_params(tmp_path)
    stage = params.settings.anchor_stage()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(jobs, "end_with_parent", lambda parent: None)
    environment = type("JobEnvironment", (), {"job_id": "1"})
    monkeypatch.setattr(jobs.submitit, "JobEnvironment", environment)

    def compute(profile, stage, execution, threads, nodes):
        assert nodes is None
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == seen
        return open_run(profile, stage)

    monkeypatch.setattr(jobs, "compute", compute)
    jobs._StageJob()("tiny", stage, params.settings.execution, 1, seen)


class TestSlurmQueue:
    """What ``squeue`` says decides whether a job is alive; it is asked seldom."""

    @pytest.fixture
    def squeue(self, tmp_path, monkeypatch):
        program = tmp_path / "bin" / "squeue"
        program.parent.mkdir()
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        slurm.forget()

        def answer(text: str, status: int = 0) -> Path:
            program.write_text(
                f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nprintf "{text}"\nexit {status}\n'
            )
            program.chmod(0o755)
            return tmp_path / "calls"

        yield answer
        slurm.forget()

    def test_one_call_serves_all_jobs_also_those_that_are_over(self, squeue):
        calls = squeue("11|RUNNING|None\\n12|PENDING|Resources\\n")
        assert slurm.find("11").state == "RUNNING"
        asked = n_lines(calls)
        found = slurm.find("12")
        assert (found.waits, str(found)) == (True, "pending (Resources)")
        assert [slurm.find(str(old), submitted=1.0) for old in range(1, 9)] == [None] * 8
        assert asked == 1 and n_lines(calls) <= 2  # 2 if a period of ten seconds ended meanwhile
        assert f"--user={os.getuid()}" in calls.read_text()

    def test_a_job_younger_than_the_list_is_looked_up_again(self, squeue):
        squeue("11|RUNNING|None\\n")
        assert slurm.find("11")
        squeue("11|RUNNING|None\\n12|RUNNING|None\\n")
        assert slurm.find("12", submitted=time.time())

    def test_a_job_that_left_the_queue_has_ended(self, squeue):
        squeue("11|RUNNING|None\\n")
        assert slurm.find("1") is None

    def test_no_answer_is_not_an_end(self, squeue):
        squeue("", status=1)
        assert slurm.find("11")

    def test_a_folder_from_a_cluster_looked_at_elsewhere(self, squeue, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        assert slurm.find("11") is None


def test_a_cluster_that_is_not_there(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    params = tiny_params(tmp_path)
    with pytest.raises(JobError, match="slurm did not take the job"):
        dispatch.compute_all("tiny", [params.settings.anchor_stage()], Execution(cluster="slurm"))


def test_a_process_id_used_again_is_not_the_job(runs, tmp_path):
    """After a restart of the machine another process may bear the id of an old job."""
    run = open_run("tiny", tiny_params(tmp_path).settings.anchor_stage())
    run.folder.mkdir(parents=True)
    write_json(run.folder / jobs.JOB, {"cluster": "local", "id": str(os.getpid())})
    assert jobs.find_job(run) is None
    assert Job(run, "local", str(os.getpid())).state == "failed"


# ---------------------------------------------------------------- judges


def judged_settings(folder: Path, **judge) -> Settings:
    usual = {"name": "grader", "model": "m", "base_url": "http://127.0.0.1:9/v1"}
    execution = {"judges": [usual | judge], "workers": 2}
    return tiny_params(folder, judge="grader", execution=execution).settings


@pytest.fixture
def judging(runs, tmp_path, monkeypatch):
    """The scheduler, the settings, and what is computed in this process."""
    scheduler = Machine(monkeypatch)
    done = []

    def compute_here(profile, stage, execution):
        assert all(run.is_complete for run in map(partial(open_run, profile), stage.needs))
        run = open_run(profile, stage)
        run.folder.mkdir(parents=True)
        write_json(run.folder / MANIFEST, {})
        done.append(stage)

    monkeypatch.setattr(dispatch, "compute", compute_here)
    return scheduler, judged_settings(tmp_path), done


def test_a_judge_is_asked_here_when_all_else_is_there(judging):
    scheduler, settings, done = judging
    told = []
    stages = [*settings.quality_stages(), *settings.pairwise_stages()]
    runs = dispatch.compute_all(
        "tiny",
        stages,
        settings.execution,
        before_judging=lambda: told.append((scheduler.now, list(done))),
    )
    assert done == stages == [run.stage for run in runs]
    assert [run.is_complete for run in runs] == [True] * 4
    kinds = {name.split()[0] for name in scheduler.started}
    assert kinds == {"anchors", "training", "generation"}, "a judge needs no scores"
    assert told == [(scheduler.now, [])], "once, before the first"


def test_what_is_told_before_judging_may_stop_it(judging):
    _, settings, done = judging
    stages = settings.quality_stages()

    def refuse() -> None:
        raise ParamsError("too dear")

    with pytest.raises(ParamsError, match="too dear"):
        dispatch.compute_all("tiny", stages, settings.execution, before_judging=refuse)
    assert done == [] and open_run("tiny", stages[0].responses).is_complete


def test_what_a_judge_does_is_no_job_of_a_cluster(judging):
    scheduler, settings, done = judging
    execution = settings.execution.model_copy(update={"cluster": "slurm"})
    told = []
    dispatch.compute_all(
        "tiny",
        settings.quality_stages(),
        execution,
        before_judging=lambda: told.append(scheduler.now),
    )
    assert set(scheduler.started.values()) == {0} and told and told[0] > 0
    assert not any(name.startswith("quality") for name in scheduler.started)
    assert len(done) == 3, "it is done here, as it wants a network and nothing of a node"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"api_key_env": "NO_SUCH_JUDGE_KEY"}, JudgeError, "NO_SUCH_JUDGE_KEY is not set"),
        ({"temperature": 1.0}, ParamsError, "not the judge that was asked for: temperature = 1.0"),
    ],
)
def test_a_judge_that_cannot_be_asked_starts_nothing(
    runs, tmp_path, monkeypatch, changes, error, message
):
    scheduler = Machine(monkeypatch)
    stages = judged_settings(tmp_path).quality_stages()
    execution = judged_settings(tmp_path, **changes).execution
    for stage in stages:
        with pytest.raises(error, match=message):
            dispatch.compute_all("tiny", [stage], execution)
        with pytest.raises(error, match=message):
            dispatch.run_stage("tiny", stage, execution)
    assert scheduler.started == {} and not runs.exists()


# ---------------------------------------------------------------- real processes


@pytest.mark.slow
def test_two_jobs_side_by_side(runs, tmp_path, monkeypatch, capsys):
    params = tiny_params(tmp_path)
    stages = with_data_seeds(params, 0, 1)
    states, ids = set(), set()

    def look() -> None:
        states.update(row["state"] for row in dispatch.job_list("tiny", stages))
        ids.update(
            job.job_id for stage in stages if (job := jobs.find_job(open_run("tiny", stage)))
        )

    monkeypatch.setattr(dispatch, "TICK", 0)
    done = dispatch.compute_all("tiny", stages, Execution(workers=2), 0.1, on_tick=look)
    lines = capsys.readouterr().out.splitlines()
    told = [line for line in lines if line.endswith(" of 2 runs are complete")]
    assert told[-1].startswith("2 of 2")
    rest = set(lines) - set(told)
    assert rest and rest <= {f"anchors: {n} of 3" for n in (1, 2, 3)}
    assert lines.count("anchors: 3 of 3") == 2
    assert all(run.is_complete for run in done)
    assert states == {"running", "complete"} and len(ids) == 2


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_failing_stage(runs, tmp_path, processes):
    params = tiny_params(
        tmp_path,
        data=absent(tmp_path),
        execution={"processes": processes},
    )
    run = open_run("tiny", params.settings.anchor_stage())
    job = jobs.start("tiny", run, params.settings.execution, 1)  # unchecked
    wait_for(lambda: job.state == "failed", "the end of the job", 120)
    message = jobs.failure(job)
    assert f"anchors reference: job {job.job_id} has ended, and " in message
    assert message.splitlines()[1].endswith(f"DataError: {tmp_path}/absent.jsonl: no such file")


SUBMIT = """
import sys
from califkit.runs import dispatch, jobs
from califkit.runs.folders import open_run
from califkit.runs.params import load_params
params = load_params(sys.argv[1])
stage = params.settings.anchor_stage()
job = jobs.start(params.profile, open_run(params.profile, stage), params.settings.execution, 1)
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
    job = jobs.start("tiny", open_run("tiny", stage), execution, 1)
    assert job.job_id == (tmp_path / "other.log").read_text().strip()
    folder = job.run.folder
    rows = folder / DRAWS
    wait_for(lambda: n_lines(rows) >= 3, "rows")
    assert len(family_of(folder)) == 2  # one controller, one stage

    jobs.cancel([job])
    assert family_of(folder) == []
    assert not is_locked(folder)
    assert job.state == "failed" and not job.run.is_complete
    kept = rows.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]

    # The next job continues. Its controller is killed: the stage must not go on unseen.
    second = jobs.start("tiny", job.run, execution, 1)
    assert second.job_id != job.job_id
    wait_for(lambda: n_lines(rows) > kept.count(b"\n"), "further rows")
    assert "are there, continuing" in second.output
    os.kill(int(second.job_id), signal.SIGKILL)
    wait_for(lambda: not family_of(folder), "the end of the stage", 10)
    assert second.state == "failed"
    assert "has no manifest" in jobs.failure(second)
    assert rows.read_bytes().startswith(kept)

    third = jobs.start("tiny", job.run, execution, 1)
    assert third.state == "running"
    jobs.cancel([third])


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_the_waiting_process_ends(runs, tmp_path, sent):
    """Ctrl-C takes the jobs along; after a sudden death they go on and are found again."""
    changes = LONG | {"train_seeds": [0, 1], "methods": ["if_rlvr"], "execution": {"workers": 2}}
    file = params_file(tmp_path, **changes)
    log = tmp_path / "output.log"
    parent = start(["-m", "califkit.cli.main", "train", "--profile", str(file)], runs, log)
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
        jobs.cancel([jobs.find_job(open_run("tiny", stage)) for stage in stages])
        assert not any(family_of(folder) for folder in folders)


TWO = {"execution": {"processes": 2, "save_every": 2}}


def ranks_of(folder: Path) -> list[psutil.Process]:
    """The live rank processes below the local job of a folder."""
    found = [child for p in family_of(folder) for child in p.children(recursive=True)]
    return [p for p in set(found) if "spawn_main" in " ".join(p.cmdline())]


@pytest.mark.slow
def test_two_processes_measure_and_train_as_one(runs, tmp_path, monkeypatch):
    """Anchors in two shards, then two ranks: the prompts of every step are those of one process."""
    params = tiny_params(tmp_path, methods=["calif"], **TWO)
    (stage,) = params.settings.train_stages()
    (run,) = dispatch.compute_all("tiny", [stage], params.settings.execution, interval=0.1)
    anchors = open_run("tiny", stage.anchors)
    shards = [read_jsonl(path) for path in sorted(anchors.folder.glob("draws*.jsonl"))]
    assert len(shards) == 2 and all(shards)
    assert run.manifest()["processes"] == 2
    assert run.manifest()["trl_config"]["gradient_accumulation_steps"] == 1
    assert [row["step"] for row in read_jsonl(run.folder / LOG)] == [1, 2, 3]
    two = read_jsonl(run.folder / ROLLOUTS)
    assert len(two) == 3 * 2 * 4

    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "alone"))
    alone = dispatch.run_stage("tiny", stage, Execution(save_every=2))
    one = read_jsonl(alone.folder / ROLLOUTS)
    assert [(r["step"], r["key"]) for r in two] == [(r["step"], r["key"]) for r in one]
    bounds = {(r["key"], r["l0"], r["l1"]) for r in one}
    assert {(r["key"], r["l0"], r["l1"]) for r in two} == bounds


@pytest.mark.slow
def test_one_of_two_processes_dies(runs, tmp_path):
    """The job ends, and with it the other process; nothing waits for the dead one."""
    params = tiny_params(tmp_path, methods=["calif"], **(TWO | {"training": {"steps": 500}}))
    (stage,) = params.settings.train_stages()
    run = open_run("tiny", stage)
    execution = params.settings.execution
    dispatch.compute_all("tiny", [stage.anchors], Execution())
    job = jobs.start("tiny", run, execution, 1)
    wait_for(lambda: n_lines(run.folder / LOG) >= 1, "a step")
    ranks = ranks_of(run.folder)
    assert len(ranks) == 2
    ranks[1].kill()
    wait_for(lambda: job.state == "failed", "the end of the job", 60)
    assert "of 2 ended with" in job.output
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in ranks)


def test_what_slurm_is_told(runs, tmp_path, monkeypatch, fake_slurm):
    """Jobs in order, dependencies, GPUs for as many processes, and the user's options."""
    params = tiny_params(
        tmp_path,
        methods=["calif"],
        training={"micro_batch_size": 1},
        execution={
            "cluster": "slurm",
            "processes": 8,
            "slurm": {
                "gpus_per_node": 8,
                "slurm_partition": "big",
                "timeout_min": 600,
                "slurm_additional_parameters": {"account": "us"},
            },
        },
    )

    class Enough(BaseException):
        pass

    def leave() -> None:
        raise Enough

    monkeypatch.setattr(dispatch, "TICK", 0)
    with pytest.raises(Enough):
        dispatch.ensure(params, params.settings.score_stages(), submit=True, on_tick=leave)
    scripts = {
        name: [line for line in text.splitlines() if line.startswith("#SBATCH")]
        for path in sorted(fake_slurm.glob("*.sh"))
        for text in [path.read_text()]
        for name in [text.split("--job-name=")[1].split()[0]]
    }
    base, base_scores, anchors, calif, responses, scores = scripts.values()
    base_stage, calif_stage = params.settings.score_stages()
    assert list(scripts) == [
        f"califkit-{stage.name}-{stage.kind}-{stage_hash(stage)[:6]}"
        for stage in (
            base_stage.responses,
            base_stage,
            calif_stage.responses.policy.anchors,
            calif_stage.responses.policy,
            calif_stage.responses,
            calif_stage,
        )
    ]
    own = {"#SBATCH --partition=big", "#SBATCH --account=us", "#SBATCH --time=600"}
    for script, count in zip(scripts.values(), (1, 1, 8, 8, 1, 1), strict=True):
        assert own | {f"#SBATCH --gpus-per-node={count}"} <= set(script)
    assert "#SBATCH --dependency=afterok:1" in base_scores
    assert "#SBATCH --dependency=afterok:3" in calif
    assert "#SBATCH --dependency=afterok:4" in responses
    assert "#SBATCH --dependency=afterok:5" in scores
    assert not any("dependency" in line for line in base + anchors)
    assert any("--signal=USR2@" in line for line in calif)  # the warning before the time runs out
    rows = dispatch.job_list("tiny", params.settings.train_stages())
    assert [row["state"] for row in rows] == ["running"]  # left in the queue, found again


def test_a_stage_of_one_process_gets_the_share_of_one(tmp_path):
    stages = tiny_params(tmp_path).settings.score_stages()
    node = {"gpus_per_node": "h100:8", "cpus_per_task": 60, "mem_gb": 500.5, "nodes": 2}
    execution = Execution(
        cluster="slurm",
        processes=16,
        slurm=node | {"slurm_setup": ["module load cuda"]},
        slurm_stages={"generation": {"slurm_partition": "small"}},
    )
    anchors = tiny_params(tmp_path).settings.anchor_stage()
    shared = slurm.job_options(anchors, execution, ())
    assert (shared["nodes"], shared["slurm_gpus_per_node"]) == (2, "h100:8")
    assert (shared["cpus_per_task"], shared["mem_gb"]) == (60, 500.5)
    alone = slurm.job_options(stages[0], execution, ("7",))
    assert (alone["nodes"], alone["slurm_gpus_per_node"]) == (1, "h100:1")
    assert (alone["cpus_per_task"], alone["mem_gb"]) == (8, 63)
    assert alone["slurm_setup"] == ["module load cuda"] and "slurm_partition" not in alone
    assert alone["slurm_additional_parameters"]["dependency"] == "afterok:7"
    drawn = slurm.job_options(stages[0].responses, execution, ())
    assert drawn["slurm_partition"] == "small"
    assert {o["slurm_additional_parameters"]["requeue"] for o in (shared, alone, drawn)} == {True}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus_per_node": 4}, "gpus_per_node = 4 is no multiple of the 8 processes of a node"),
        ({"nodes": 3}, "processes = 8 do not divide evenly among slurm.nodes = 3"),
        ({"gpus_per_node": "h100"}, "gpus_per_node = 'h100': must be a number of GPUs"),
        ({"mem_gb": "8"}, "mem_gb = '8': must be a number of gigabytes"),
        ({"slurm_setup": "module load x"}, "slurm_setup = 'module load x': must be a list"),
        ({"tasks_per_node": 2}, "tasks_per_node = 2: must be 1"),
        ({"slurm_teardown": ["true"]}, "would hide whether a job failed"),
        ({"nodes": True}, "nodes = True: must be a whole number"),
    ],
)
def test_options_that_would_end_jobs_are_refused_when_they_are_read(tmp_path, options, message):
    changes = {"processes": 8, "slurm": options}
    with pytest.raises(ParamsError, match=re.escape(message)):
        tiny_params(tmp_path, execution=changes, training={"micro_batch_size": 1})


def test_a_job_that_runs_out_of_time_can_be_submitted_as_it_was(tmp_path):
    """What submitit puts back into the queue."""
    stage = tiny_params(tmp_path).settings.anchor_stage()
    again = jobs._StageJob().checkpoint("tiny", stage, Execution(), None, None)
    assert isinstance(again.function, jobs._StageJob)
    assert again.args == ("tiny", stage, Execution(), None, None)
