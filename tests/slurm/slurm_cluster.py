# SPDX-License-Identifier: Apache-2.0
"""A Slurm of one node, for tests: munged, slurmctld and slurmd of its own, with ports and folders that no other Slurm uses.

    with slurm_cluster.running() as slurm:
        slurm.run("srun", "-n", "4", "--overcommit", "--mpi=pmix", "build/orthant", "train", "config.toml")
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

DAEMONS = ("munged", "slurmctld", "slurmd")
PACKAGES = "slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
SYSTEM_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
START, STOP = 60, 20  # seconds a daemon may take, on a busy machine
TIME_LIMIT_CHECK = 30  # seconds between slurmctld's, from its start on; it cannot be changed

# A requeued job waits until the credentials of its former run have expired: cred_expire, by default 120 s, at least 5.
CONFIG = """
ClusterName=orthant
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=pmix
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
JobRequeue=1
KillWait=15
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory_mib}
PartitionName=low Nodes={host} Default=YES State=UP OverSubscribe=FORCE:16 PriorityTier=1 GraceTime=60
PartitionName=high Nodes={host} State=UP OverSubscribe=NO PriorityTier=2 PreemptMode=OFF
"""


def missing():
    """Why there cannot be a cluster here; empty if there can."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    absent = [name for name in (*DAEMONS, "srun", "sbatch", "scontrol") if shutil.which(name, path=SYSTEM_PATH) is None]
    return f"no {', '.join(absent)}: apt-get install --no-install-recommends {PACKAGES}" if absent else ""


def free_ports(count):
    with contextlib.ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def end_process(pid):
    def living():
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + STOP
    while living():  # or an OSError, once it is gone
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


class SlurmCluster:
    def __init__(self, folder):
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not re.match("S(LURM|BATCH|ALLOC|RUN)_", name)}
        self.environment |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": SYSTEM_PATH}

    def start(self):
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        (self.folder / "munge.key").chmod(0o400)
        controller_port, node_port = free_ports(2)
        memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
        (self.folder / "slurm.conf").write_text(CONFIG.format(
            folder=self.folder, host=socket.gethostname().partition(".")[0], controller_port=controller_port, node_port=node_port,
            cpus=len(os.sched_getaffinity(0)), memory_mib=memory_mib // 2))
        self._daemon("munged", "--force", *(f"--{what}={self.folder}/munge.{end}" for what, end in (
            ("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))))
        self._daemon("slurmctld")
        self.controller_started = time.time()
        self._daemon("slurmd")
        self.wait_until(lambda: self.run("sinfo", "--noheader", "--format=%t", check=False).stdout.split()[:1] == ["idle"], START, "idle node")

    def _daemon(self, *command):
        self.run(*command, timeout=START)

    def stop(self):
        """Ends the jobs, then the daemons in the opposite order of their start; whatever of them is left then is killed."""
        with contextlib.suppress(subprocess.SubprocessError):
            self.run("scancel", "--user=root", "--signal=KILL", "--full", timeout=STOP)
        for name in ("slurmd", "slurmctld", "munge"):
            with contextlib.suppress(OSError, ValueError):
                end_process(int((self.folder / f"{name}.pid").read_text()))

    def run(self, *command, timeout=60, **options):
        """Output and exit code of a command of Slurm's."""
        return subprocess.run([str(part) for part in command], env=self.environment, timeout=timeout,
                              **{"capture_output": True, "text": True, "check": True, **options})

    def job(self, number):
        """What scontrol knows of a job."""
        shown = self.run("scontrol", "--oneliner", "show", "job", number).stdout
        return dict(word.partition("=")[::2] for word in shown.split())

    def wait_for_time_limit_check(self, in_seconds):
        """Sleeps until slurmctld's next look at time limits is so far away."""
        time.sleep((self.controller_started - in_seconds - time.time()) % TIME_LIMIT_CHECK)

    def logs(self):
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(self.folder.glob("*.log")))

    def wait_until(self, condition, timeout, what):
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"no {what} after {timeout} s:\n{self.logs()}")
            time.sleep(0.1)


@contextlib.contextmanager
def running():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="orthant-slurm-"))
    folder.chmod(0o711)
    cluster = SlurmCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder)
