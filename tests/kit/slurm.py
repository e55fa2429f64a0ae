"""A Slurm cluster of the tests' own: real daemons on loopback and free ports, thrown away at the end."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from tests.kit.ports import free_port

HOW_TO_GET_IT = "needs Slurm and root: apt-get install --no-install-recommends slurm-wlm slurm-client munge"
HOW_TO_GET_ACCOUNTING = (
    "needs Slurm's accounting: apt-get install --no-install-recommends slurmdbd slurm-wlm-mysql-plugin "
    "mariadb-server-core mariadb-client-core"
)
_PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue")
_ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacctmgr")
_DEADLINE_SECONDS = 300.0
_CGROUPS = Path("/sys/fs/cgroup")


def is_installed() -> bool:
    """Whether there is a Slurm to start. It wants root: slurmd starts jobs as their users."""
    return os.geteuid() == 0 and all(shutil.which(name) for name in _PROGRAMS)


def has_accounting() -> bool:
    """Whether there is a database and Slurm's daemon for it."""
    return all(shutil.which(name) for name in _ACCOUNTING)


def has_memory_cgroups() -> bool:
    """Whether Slurm can hold jobs to their memory here (cgroup v1, as root)."""
    return os.access(_CGROUPS / "memory/cgroup.procs", os.W_OK) and (_CGROUPS / "freezer").is_dir()


@dataclass
class SlurmCluster:
    """Nodes n1, n2 ... with fake GPUs. Partitions: `main`, and `low`, whose jobs `main` preempts.

    `called` is the name of the only node instead. `cgroups` holds jobs to their memory. `apart` gives each
    node a PID namespace of its own: it can be powered off. `accounting` starts slurmdbd, so that `sacct` has
    something to say.
    """

    folder: Path
    nodes: int = 2
    called: str = ""
    cpus: int = 4
    memory_mib: int = 4000
    gpus: int = 0
    cgroups: bool = False
    apart: bool = False
    accounting: bool = False
    slurmd_timeout: int = 60
    kill_wait: int = 5
    min_job_age: int = 600
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _ports: dict[str, int] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What the cluster's commands need."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    @property
    def names(self) -> list[str]:
        """Its nodes."""
        return [self.called] if self.called else [f"n{number}" for number in range(1, self.nodes + 1)]

    # --- starting and stopping

    def start(self) -> None:
        """All daemons, until every node is idle."""
        self.folder.chmod(0o755)
        for name in ("state", "log", "spool", "munge", "dev"):
            (self.folder / name).mkdir(mode=0o755)
        self._ports = {name: free_port() for name in ("slurmctld", "slurmdbd", "sql", *self.names)}
        self._configure()
        self._start_munge()
        if self.accounting:
            self._start_accounting()
        self.start_control()
        for name in self.names:
            self.start_node(name)
        self.wait(lambda: self.run("sinfo", "-hN", "-p", "main", "-o", "%T").split() == ["idle"] * self.nodes)

    def start_control(self) -> None:
        """slurmctld."""
        self._start("slurmctld", "slurmctld", "-D", *(() if self._has_state() else ("-i",)))
        self.wait(lambda: "is UP" in self.run("scontrol", "ping"))

    def _has_state(self) -> bool:
        return (self.folder / "state/node_state").exists()

    def start_node(self, name: str) -> None:
        """One node's slurmd."""
        apart = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc") if self.apart else ()
        self._start(name, *apart, "slurmd", "-D", "-N", name)

    def power_off(self, name: str) -> None:
        """Everything that runs on a node ends at once, as when its plug is pulled (`apart` only)."""
        assert self.apart
        self.kill(name)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a daemon without a word."""
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(_DEADLINE_SECONDS)

    def stop(self) -> None:
        """End all daemons; jobs first."""
        if "slurmctld" in self.processes:
            self._end_jobs()
        for name in sorted(self.processes, key=_end_order):
            process = self.processes[name]
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self.cgroups:  # others' have the same names
            for kind, name in product(("memory", "freezer"), self.names):
                _remove_groups(_CGROUPS / kind / f"slurm_{name}")

    def _end_jobs(self) -> None:
        self.run("scancel", "--state=PENDING", "--user=root")
        self.run("scancel", "--signal=KILL", "--full", "--user=root")
        until = time.monotonic() + 10
        while self.run("squeue", "-h", "-t", "RUNNING,COMPLETING") and time.monotonic() < until:
            time.sleep(0.05)

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                words,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o400)
        files = {
            "socket": "socket",
            "key-file": "key",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        options = [f"--{option}={folder / name}" for option, name in files.items()]
        self._start("munged", "munged", "--foreground", "--force", *options)
        self.wait((folder / "socket").exists)

    def _start_accounting(self) -> None:
        folder = self.folder / "sql"
        folder.mkdir()
        install = ("mariadb-install-db", "--user=root", "--auth-root-authentication-method=normal")
        options = (f"--datadir={folder}/data", "--skip-test-db", "--skip-log-bin", "--skip-name-resolve")
        subprocess.run((*install, *options), check=True, capture_output=True)
        self._start(
            "mariadbd",
            *(
                "mariadbd",
                "--no-defaults",
                "--user=root",
                f"--datadir={folder}/data",
                f"--socket={folder}/socket",
            ),
            *(f"--port={self._ports['sql']}", "--bind-address=127.0.0.1", f"--pid-file={folder}/pid"),
            *(
                "--innodb-buffer-pool-size=64M",
                "--innodb-log-file-size=16M",
                "--innodb-lock-wait-timeout=900",
            ),
        )
        sql = ("mariadb", "--no-defaults", f"--socket={folder}/socket", "-uroot", "-e")
        self.wait(
            lambda: subprocess.run((*sql, "select 1"), capture_output=True, check=False).returncode == 0
        )
        grant = (
            "create user 'slurm'@'127.0.0.1' identified by 'x'; grant all on slurm.* to 'slurm'@'127.0.0.1'"
        )
        subprocess.run((*sql, f"create database slurm; {grant}"), check=True)
        conf = self.folder / "slurmdbd.conf"
        conf.write_text(
            f"AuthType=auth/munge\nAuthInfo=socket={self.folder}/munge/socket\nDbdHost=localhost\n"
            f"DbdAddr=127.0.0.1\nDbdPort={self._ports['slurmdbd']}\nSlurmUser=root\n"
            f"LogFile={self.folder}/log/slurmdbd.log\nPidFile={self.folder}/slurmdbd.pid\n"
            "CommunicationParameters=NoInAddrAny\nStorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\n"
            f"StoragePort={self._ports['sql']}\nStorageUser=slurm\nStoragePass=x\nStorageLoc=slurm\n"
        )
        conf.chmod(0o600)
        self._start("slurmdbd", "slurmdbd", "-D")
        self.wait(lambda: "lab" in self.run("sacctmgr", "-n", "-i", "add", "cluster", "lab"))

    # --- its configuration

    def _configure(self) -> None:
        for number in range(self.gpus):  # slurmd takes devices only: clones of /dev/null
            os.mknod(self.folder / "dev" / f"gpu{number}", 0o20666, os.makedev(1, 3))
        gres = f"Name=gpu File={self.folder}/dev/gpu[0-{self.gpus - 1}]" if self.gpus else ""
        all_nodes = f"NodeName=n[1-{self.nodes}] "
        (self.folder / "gres.conf").write_text(f"AutoDetect=off\n{all_nodes + gres if gres else ''}\n")
        constrain = "ConstrainRAMSpace=yes\nConstrainSwapSpace=no\nAllowedRAMSpace=100\nMinRAMSpace=30\n"
        version = f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={_CGROUPS}\n"
        (self.folder / "cgroup.conf").write_text(
            f"{version if self.cgroups else ''}CgroupAutomount=no\n{constrain if self.cgroups else ''}"
        )
        (self.folder / "slurm.conf").write_text("\n".join([*self._settings(), *self._node_lines(), ""]))

    def _settings(self) -> list[str]:
        kind = "cgroup" if self.cgroups else "linuxproc"
        socket_path = f"{self.folder}/munge/socket"
        accounting = [
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={self._ports['slurmdbd']}",
            f"AccountingStoragePass={socket_path}",
            "AccountingStoreFlags=job_comment",
        ]
        return [
            "ClusterName=lab",
            "SlurmctldHost=localhost(127.0.0.1)",
            f"SlurmctldPort={self._ports['slurmctld']}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            "CredType=cred/munge",
            f"AuthInfo=socket={socket_path}",
            f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/spool/%n",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd-%n.pid",
            f"SlurmctldLogFile={self.folder}/log/slurmctld.log",
            f"SlurmdLogFile={self.folder}/log/slurmd-%n.log",
            "SwitchType=switch/none",
            "MpiDefault=none",
            f"ProctrackType=proctrack/{kind}",
            f"TaskPlugin=task/{'cgroup' if self.cgroups else 'none'}",
            "JobAcctGatherType=jobacct_gather/linux",
            "JobAcctGatherFrequency=1",
            "SchedulerType=sched/backfill",
            "SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=50000,batch_sched_delay=0",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core_Memory",
            *(accounting if self.accounting else ["AccountingStorageType=accounting_storage/none"]),
            *(["GresTypes=gpu"] if self.gpus else []),
            "ReturnToService=2",
            "SlurmctldTimeout=10",
            f"SlurmdTimeout={self.slurmd_timeout}",
            "MessageTimeout=20",
            f"MinJobAge={self.min_job_age}",
            f"KillWait={self.kill_wait}",
            "SlurmdParameters=config_overrides",
            "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
        ]

    def _node_lines(self) -> list[str]:
        shape = f"CPUs={self.cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={self.cpus} ThreadsPerCore=1"
        gres = f" Gres=gpu:{self.gpus}" if self.gpus else ""
        address = "NodeHostname=localhost NodeAddr=127.0.0.1"
        nodes = [
            f"NodeName={name} {address} Port={self._ports[name]} {shape} RealMemory={self.memory_mib}{gres}"
            for name in self.names
        ]
        low = "PartitionName=low Nodes=ALL Default=NO PriorityTier=0 PreemptMode=REQUEUE"
        main = "PartitionName=main Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF"
        return [*nodes, *(f"{line} MaxTime=INFINITE State=UP DefMemPerCPU=100" for line in (main, low))]

    # --- asking it

    def run(self, *words: str) -> str:
        """What one of its commands says; empty when it fails."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else ""

    def jobs(self) -> list[str]:
        """Ids of the jobs that are not over."""
        return self.told("squeue", "-h", "-o", "%A").split()

    def told(self, *words: str) -> str:
        """What one of its commands says, asked again while slurmctld is too busy to answer."""
        environment, done = {**os.environ, **self.environment}, list[str]()

        def answers() -> bool:
            asked = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
            done[:] = [asked.stdout]
            return asked.returncode == 0

        self.wait(answers)
        return done[0]

    def wait(self, condition: Callable[[], object]) -> None:
        """Raises RuntimeError with the daemons' last words when the condition does not hold in time."""
        until = time.monotonic() + _DEADLINE_SECONDS
        while not condition():
            if time.monotonic() > until:
                logs = sorted((self.folder / "log").iterdir())
                raise RuntimeError("\n".join(f"== {log.name}\n{log.read_text()[-1500:]}" for log in logs))
            time.sleep(0.02)


def _end_order(name: str) -> int:
    last = ("slurmctld", "slurmdbd", "mariadbd", "munged")
    return last.index(name) + 1 if name in last else 0


def _remove_groups(top: Path) -> None:
    """What runs in them is ending: each is removed as soon as it can be."""
    until = time.monotonic() + _DEADLINE_SECONDS
    groups = [Path(at) for at, _, _ in os.walk(top, topdown=False)]
    while groups:
        try:
            groups[0].rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
            continue
        groups.pop(0)


@contextmanager
def slurm_cluster(**options: object) -> Iterator[SlurmCluster]:
    """A running cluster; its files are gone at the end."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        cluster = SlurmCluster(Path(folder), **options)  # type: ignore[arg-type]
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
