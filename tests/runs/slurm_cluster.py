"""A real Slurm in one folder, without root, munge or cgroups: two nodes of this machine's name."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

CONTROLLER, DAEMON = "/usr/sbin/slurmctld", "/usr/sbin/slurmd"

# Nodes that pretend to be larger than this machine; `high` may take a node from `low`.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
ReturnToService=2
SlurmdTimeout=5
KillWait=5
JobRequeue=0
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} {size}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} {size}
PartitionName=debug Nodes=n1,n2 Default=YES MaxTime=INFINITE PreemptMode=off
PartitionName=low Nodes=n1 PriorityTier=1 GraceTime=5
PartitionName=high Nodes=n1 PriorityTier=10 PreemptMode=off
"""


def is_installed() -> bool:
    return all(map(shutil.which, (CONTROLLER, DAEMON, "sbatch", "srun", "squeue")))


class Cluster:
    """A running Slurm; its own programs find it through ``SLURM_CONF``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.configuration = folder / "slurm.conf"
        for name in ("state", "n1", "n2"):
            (folder / name).mkdir()
        ports = _free_ports(3)
        names = ("port", "port1", "port2")
        user = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
        # Stand-ins for GPUs: Slurm wants character devices, whatever they are.
        devices = [path for path in sorted(Path("/dev").iterdir()) if path.is_char_device()][:8]
        facts: dict[str, object] = {"size": f"CPUs=64 RealMemory=600000 Gres=gpu:{len(devices)}"}
        facts |= {"folder": folder, "user": user, "host": socket.gethostname().partition(".")[0]}
        text = CONFIGURATION.format(**facts, **dict(zip(names, ports, strict=True)))
        self.configuration.write_text(text)
        (folder / "gres.conf").write_text("".join(f"Name=gpu File={path}\n" for path in devices))

    def start(self) -> None:
        self.start_controller()
        for node in ("n1", "n2"):
            self.start_node(node)
        self.wait(lambda: self.ask("sinfo", "-h", "-p", "debug", "-t", "idle", "-o", "%D") == "2")

    def start_controller(self) -> None:
        subprocess.run([CONTROLLER], env=self.environment, check=True)

    def start_node(self, name: str) -> None:
        subprocess.run([DAEMON, "-N", name], env=self.environment, check=True)

    def lose_node(self, name: str) -> None:
        """As if its power were cut: the daemon and all jobs of this cluster are gone at once."""
        daemon = psutil.Process(int((self.folder / f"{name}.pid").read_text()))
        steps = [p for p in psutil.process_iter(["name"]) if p.info["name"] == "slurmstepd"]
        children = [child for step in steps for child in step.children(recursive=True)]
        for process in (daemon, *steps, *children):
            process.kill()

    def stop_controller(self) -> None:
        self._kill("slurmctld")

    def stop(self) -> None:
        subprocess.run(["scancel", "--user", str(os.getuid())], env=self.environment)
        time.sleep(1)
        for name in ("n1", "n2", "slurmctld"):
            self._kill(name)

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"SLURM_CONF": str(self.configuration)}

    def ask(self, *command: str) -> str:
        run = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        return run.stdout.strip()

    def start_now(self, job_id: str) -> None:
        """A job that was put back waits two minutes otherwise.

        Slurm does not take the new time while it is still clearing up, so it is told until it does.
        """

        def is_pending() -> bool:
            return "PENDING" in self.ask("squeue", "-h", "-j", job_id, "-o", "%T")

        def has_started() -> bool:
            self.ask("scontrol", "update", f"jobid={job_id}", "StartTime=now")
            return not is_pending()

        self.wait(is_pending)
        self.wait(has_started, 120)

    def wait(self, condition, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, (self.folder / "slurmctld.log").read_text()[-3000:]
            time.sleep(0.1)

    def _kill(self, name: str) -> None:
        path = self.folder / f"{name}.pid"
        if path.exists():
            pid = int(path.read_text())
            os.kill(pid, signal.SIGTERM)
            self.wait(lambda: not Path(f"/proc/{pid}").exists(), 30)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
