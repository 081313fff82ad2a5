"""Jobs on a real Slurm, as a person with a cluster meets it."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml
from slurm_cluster import Cluster, is_installed
from tiny_runs import environment, n_lines, params_file, tiny_params, wait_for

from califkit.exhibits.rehearsal import rehearsal
from califkit.runs import dispatch, jobs, slurm
from califkit.runs.arms import load_arms
from califkit.runs.folders import LOG, open_run
from califkit.runs.jobs import JobError
from califkit.runs.jsonl import read_jsonl

pytestmark = [
    pytest.mark.slow,
    pytest.mark.slurm,
    pytest.mark.skipif(not is_installed(), reason="Slurm is not installed (slurm-wlm)"),
]

ONE = {"cpus_per_task": 1, "mem_gb": 2, "timeout_min": 30}
PARAMS = Path(__file__).resolve().parents[2] / "params"
DRAWS = "draws.jsonl"
LONG = {"anchors": {"sampling": {"max_tokens": 40, "batch_size": 1}, "draws": 20}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(autouse=True)
def runs(cluster, tmp_path, monkeypatch) -> Path:
    for name, value in environment(tmp_path / "runs").items():
        monkeypatch.setenv(name, value)
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_CONF", str(cluster.configuration))
    monkeypatch.setattr(jobs, "_SETTLE", 2)  # the file system is this machine's
    slurm.forget()
    yield tmp_path / "runs"
    cluster.ask("scancel", "--user", str(os.getuid()))
    cluster.wait(lambda: cluster.ask("squeue", "-h") == "")
    slurm.forget()


def params_of(folder: Path, **changes):
    execution = {"cluster": "slurm", "slurm": ONE} | changes.pop("execution", {})
    return tiny_params(folder, execution=execution, **changes)


def start(params, stage, **options) -> jobs.Job:
    return jobs.start("tiny", open_run("tiny", stage), params.settings.execution, 1, **options)


def test_a_study_goes_through_and_is_found_complete(tmp_path, capsys):
    params = params_of(tmp_path, methods=["calif"])
    stages = params.settings.score_stages()
    with pytest.raises(dispatch.NotSubmittedError, match="2 of 2 runs are not there"):
        dispatch.ensure(params, stages)
    runs = dispatch.ensure(params, stages, submit=True)
    assert all(run.is_complete for run in runs)
    assert "train calif-seed0: step 3 of 3" in capsys.readouterr().out
    assert {row["state"] for row in dispatch.job_list("tiny", stages)} == {"complete"}
    record = json.loads((runs[0].folder / jobs.JOB).read_text())
    assert (record["cluster"], record["cluster_name"]) == ("slurm", "test")
    assert abs(record["submitted"] - time.time()) < 600


def test_a_rehearsal_goes_through(tmp_path, monkeypatch):
    """Two ranks of a miniature that reasons, from the prompts to the scores of its answers."""
    (tmp_path / "params").mkdir()
    monkeypatch.setenv("CALIFKIT_ROOT", str(tmp_path))
    shutil.copy(PARAMS / "h100.yaml", tmp_path / "params")
    study = {"base": "h100", "profile": "small", "settings": {"thinking": True}}
    study["groups"] = {"main": {"arms": {"calif": {"methods": ["calif"]}}}}
    (tmp_path / "params" / "small.yaml").write_text(yaml.safe_dump(study))
    with rehearsal("small", "slurm") as written:
        (arm,) = load_arms(written.profile)
        execution = arm.params.settings.execution
        assert (execution.cluster, execution.processes) == ("slurm", 2)
        runs = dispatch.compute_all(written.profile, arm.stages, execution)
    rows = [(run.stage.kind, run.manifest()["rows"]) for run in runs]
    evaluated = [(kind, 6) for kind in ("scores", "identification") for _ in ("base", "calif")]
    assert rows == [("training", 2), *evaluated]
    assert runs[0].manifest()["processes"] == 2


def test_a_failed_job_is_named_with_state_exit_code_error_and_log(tmp_path, capsys):
    absent = {"source": str(tmp_path / "absent.jsonl"), "n_prompts": 4}
    absent |= {"min_constraints": 1, "max_constraints": 5, "constraint_ids": None}
    params = params_of(tmp_path, data=absent)
    job = start(params, params.settings.anchor_stage())  # unchecked
    wait_for(lambda: job.state == "failed", "the end of the job", 60)
    message = jobs.failure(job)
    assert f"job {job.job_id} (FAILED, exit code" in message
    assert "absent.jsonl: no such file" in message.splitlines()[1]
    assert f"{job.job_id}_0_log.out" in message
    assert "submitit INFO" not in message


def test_a_cancelled_job_does_not_look_like_a_crash(tmp_path, cluster):
    params = params_of(tmp_path, **LONG)
    stage = params.settings.anchor_stage()
    job = start(params, stage)
    wait_for(lambda: n_lines(job.run.folder / DRAWS) >= 3, "rows")
    assert dispatch.job_list("tiny", [stage])[0]["job"] == job.job_id
    assert [j.job_id for j in dispatch.cancel_jobs("tiny", [stage])] == [job.job_id]
    wait_for(lambda: job.state == "failed", "the end of the job", 60)
    assert "(CANCELLED" in jobs.failure(job)
    row = dispatch.job_list("tiny", [stage])[0]
    assert (row["state"], row["job"]) == ("to do", "")


def test_a_job_that_is_put_back_goes_on_exactly(tmp_path, cluster):
    changes = {"training": {"steps": 8}, "methods": ["if_rlvr"]}
    params = params_of(tmp_path, **changes, execution={"save_every": 1})
    whole = tiny_params(tmp_path, **changes, execution={"save_every": 1}, train_seeds=[0])
    (stage,) = params.settings.train_stages()
    dispatch.ensure(params, [params.settings.anchor_stage()], submit=True)
    job = start(params, stage)
    wait_for(lambda: n_lines(job.run.folder / LOG) >= 3, "steps")
    cluster.ask(
        "scancel", "--signal=USR2", job.job_id
    )  # as Slurm does when the time is nearly over
    cluster.start_now(job.job_id)
    wait_for(lambda: job.state == "complete", "the end of the job", 120)
    assert cluster.ask("scontrol", "show", "job", job.job_id).find("Restarts=1") > 0
    steps = read_jsonl(job.run.folder / LOG)
    assert [row["step"] for row in steps] == list(range(1, 9))
    # The same training, unbroken, on this machine.
    other = tmp_path / "unbroken"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALIFKIT_RUNS", str(other))
        (unbroken,) = dispatch.compute_all("tiny", [stage], whole.settings.execution)
        expected = read_jsonl(unbroken.folder / LOG)
    columns = ("step", "reward", "loglik", "loss", "kl")
    for ours, theirs in zip(steps, expected, strict=True):
        assert {c: ours.get(c) for c in columns} == {c: theirs.get(c) for c in columns}


def test_preemption_of_two_processes_costs_no_run(tmp_path, cluster):
    """Slurm sends SIGTERM first and leaves time; the ranks must not die of it."""
    options = ONE | {"slurm_partition": "low", "gpus_per_node": 2, "cpus_per_task": 64}
    params = params_of(
        tmp_path,
        methods=["if_rlvr"],
        training={"steps": 60},
        execution={"processes": 2, "slurm": options, "save_every": 1},
    )
    (stage,) = params.settings.train_stages()
    dispatch.ensure(params, [params.settings.anchor_stage()], submit=True)
    job = start(params, stage)
    wait_for(lambda: n_lines(job.run.folder / LOG) >= 2, "steps", 120)
    urgent = ["sbatch", "-p", "high", "-c", "64", "-o", "/dev/null", "--wrap", "sleep 1"]
    subprocess.run(urgent, check=True, capture_output=True)
    cluster.start_now(job.job_id)
    wait_for(lambda: job.state != "running", "the end of the job", 180)
    assert job.state == "complete", jobs.failure(job)
    assert [row["step"] for row in read_jsonl(job.run.folder / LOG)] == list(range(1, 61))


def test_one_world_of_two_nodes(tmp_path, cluster):
    params = params_of(
        tmp_path,
        methods=["calif"],
        execution={"processes": 2, "slurm": ONE | {"nodes": 2}},
    )
    (run,) = dispatch.ensure(params, params.settings.train_stages(), submit=True)
    facts = run.manifest()
    assert facts["processes"] == 2
    assert len(read_jsonl(run.folder / LOG)) == 3
    record = json.loads((run.folder / jobs.JOB).read_text())
    told = cluster.ask("scontrol", "show", "job", record["id"])
    assert "NumNodes=2" in told


def test_why_a_job_waits_is_shown_and_what_was_refused_ends_nothing_else(tmp_path, cluster, capsys):
    """One of two independent stages asks for a partition that is not there."""
    options = {"slurm_stages": {"generation": {"slurm_partition": "nowhere"}}}
    params = params_of(tmp_path, methods=["calif"], execution=options)
    stages = [*params.settings.generate_stages()[:1], params.settings.anchor_stage()]
    cluster.ask("scontrol", "update", "PartitionName=debug", "State=DOWN")
    threading.Timer(
        8, lambda: cluster.ask("scontrol", "update", "PartitionName=debug", "State=UP")
    ).start()
    with pytest.raises(JobError, match="invalid partition"):
        dispatch.compute_all("tiny", stages, params.settings.execution, interval=0.1)
    assert open_run("tiny", stages[1]).is_complete
    out = capsys.readouterr().out
    assert "is pending (PartitionDown)" in out


def test_inside_an_allocation_a_job_gets_what_the_profile_says(tmp_path, cluster, monkeypatch):
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "7")
    monkeypatch.setenv("SLURM_JOB_ID", "999")
    monkeypatch.setenv("SLURM_NNODES", "2")
    params = params_of(tmp_path)
    job = start(params, params.settings.anchor_stage())
    told = cluster.ask("scontrol", "show", "job", job.job_id)
    assert "Partition=debug" in told and "NumCPUs=1 " in told
    assert os.environ["SLURM_JOB_ID"] == "999", "the notebook's own allocation is as it was"
    wait_for(lambda: job.state == "complete", "the end of the job", 60)


def test_two_callers_submit_once_and_a_third_process_finds_the_job(tmp_path, cluster):
    params = params_of(tmp_path, **LONG)
    stage = params.settings.anchor_stage()
    found: list[jobs.Job] = []
    threads = [threading.Thread(target=lambda: found.append(start(params, stage))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0].job_id == found[1].job_id
    file = params_file(tmp_path, **LONG, execution={"cluster": "slurm", "slurm": ONE})
    command = [sys.executable, "-m", "califkit.cli.main", "jobs", "--profile", str(file)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in listed.splitlines() if line.lstrip().startswith("anchors")]
    assert found[0].job_id in line.split()
    ended = subprocess.run([*command, "--cancel"], capture_output=True, text=True, check=True)
    assert f"cancelled: job {found[0].job_id}" in ended.stdout
    wait_for(lambda: found[0].state == "failed", "the end of the job", 60)


def test_a_controller_that_restarts_ends_no_watch(tmp_path, cluster, capsys):
    params = params_of(tmp_path)
    stage = params.settings.anchor_stage()
    job = start(params, stage)
    cluster.stop_controller()
    slurm.forget()
    try:
        assert job.state == "running" or job.run.is_complete
    finally:
        cluster.start_controller()
    dispatch.compute_all("tiny", [stage], params.settings.execution)
    assert job.state == "complete"


def test_a_node_that_is_lost_costs_no_run(tmp_path, cluster):
    params = params_of(tmp_path, anchors=LONG["anchors"] | {"draws": 5})
    job = start(params, params.settings.anchor_stage())
    wait_for(lambda: n_lines(job.run.folder / DRAWS) >= 3, "rows")
    node = cluster.ask("squeue", "-h", "-j", job.job_id, "-o", "%N")
    cluster.lose_node(node)
    try:
        cluster.start_now(job.job_id)
        wait_for(lambda: job.state == "complete", "the end of the job", 120)
    finally:
        cluster.start_node(node)
    other = cluster.ask("scontrol", "show", "job", job.job_id)
    assert f"NodeList={'n2' if node == 'n1' else 'n1'}" in other


def test_a_job_of_another_cluster_is_not_taken_for_ours(tmp_path):
    params = params_of(tmp_path)
    stage = params.settings.anchor_stage()
    run = open_run("tiny", stage)
    run.folder.mkdir(parents=True)
    record = {"cluster": "slurm", "id": "1", "cluster_name": "elsewhere", "user": 7}
    (run.folder / jobs.JOB).write_text(json.dumps(record))
    with pytest.raises(JobError, match="job 1 of user 7 was submitted to the cluster elsewhere"):
        start(params, stage)
