"""Real machines for a simulated cloud: each is a set of Linux namespaces with its own network, processes,
disk and sshd, and boots with its user data.

A machine has the root folder of this computer as its disk; only the machine sees its own writes. Its folders
/root, /home, /opt, /srv, /mnt and /tmp are empty at its start. All machines are in a network of a process of
its own (`fabric`), of which this computer has one address. The process of the test can end in any way: the
machines, the network and the files end with it. Machines need root, `unshare`, `nsenter`, `ip`, overlayfs and
sshd.
"""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field
from hashlib import sha256
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import IO

from gridmill.domain.frozen import dataclass
from gridmill.errors import UnavailableError
from gridmill.testing.cloud import fabric
from gridmill.testing.cloud.cloud_init import BootFile
from gridmill.testing.cloud.guest import (
    BOOT,
    DISK_DESCRIPTOR,
    FILES,
    LOGIN,
    NAME_OF_METADATA_SERVER,
    REAL_CLOUD_INIT,
    REAL_CLOUD_INIT_AFTER_SSHD,
    SSHD,
    SSHD_CONFIG,
    USER,
    boots_with,
    seed,
)
from gridmill.testing.cloud.machine_host import Ingress, MachineSpec, MetadataKind
from gridmill.testing.hosts import (
    existing_folders,
    only_child,
    python_folders,
    wait_until,
    why_no_hosts,
)

_UNSHARE = ("unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child")
_SHUT_DOWN = 77
"""The exit code of the first process of a machine that shuts itself down; see BOOT."""
_FIRST_OWN_PORT = 32_768
"""The first port that Linux gives to a connection of the machine itself."""
_LAST_PORT = 65_534
"""The last port that `ip rule` accepts. The next port belongs to the own connections of the machine."""
_FIRST_NETWORK, _NETWORKS = 180, 60


def why_no_machines() -> str:
    """Returns what this computer lacks for real machines. The text is empty if it lacks nothing."""
    if reason := why_no_hosts():
        return reason
    if not Path(SSHD).exists():
        return "real machines need sshd: apt-get install openssh-server"
    return ""


@dataclass(slots=True, kw_only=True)
class _Machine:
    """A machine that was started. `init` is the pid of its first process, 0 before its start."""

    spec: MachineSpec
    number: int
    ending: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    process: "subprocess.Popen[bytes] | None" = None
    init: int = 0
    sent_bytes: int = 0
    ingress: tuple[Ingress, ...] = ()
    thread: threading.Thread | None = None


class NamespaceMachines:
    """Runs machines as namespaces of this computer. `needed` are folders that the machines can read even if
    they are below a folder that is empty on a machine. With `real_cloud_init`, the cloud-init of this
    computer carries out the user data, which takes about two seconds more. See MachineHost.

    Raises UnavailableError if this computer cannot run machines.
    """

    def __init__(self, needed: Sequence[str | Path] = (), *, real_cloud_init: bool = False) -> None:
        if real_cloud_init and shutil.which("cloud-init") is None:
            raise UnavailableError("no cloud-init here", hint="apt-get install cloud-init")
        self._real_cloud_init = real_cloud_init
        if reason := why_no_machines():
            raise UnavailableError(f"no real machines: {reason}")
        self.folder = Path(tempfile.mkdtemp(prefix="gmcloud"))
        self._needed = existing_folders(*needed, *python_folders())
        self._lifeline = os.pipe()
        self._machines: dict[str, _Machine] = {}
        self._saved: dict[str, str] = {}
        """For each image, the archive with its content."""
        self._commands = threading.Lock()
        self._closed = False
        network = _free_network()
        self.private_network, self.public_network = network.subnets(new_prefix=17)
        self.address = str(network.broadcast_address - 1)
        """The address of this computer in the network of the machines."""
        self._tag = f"gm{os.getpid():x}{os.urandom(2).hex()}"
        self._fabric = self._start_fabric(network)
        self._fabric_pid = only_child(self._fabric.pid)
        self._connect_this_computer(network)

    def _start_fabric(self, network: IPv4Network) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [
                *("unshare", "--net", "--pid", "--fork", "--kill-child"),
                *(sys.executable, "-P", "-m", fabric.MODULE, str(self.folder), str(network)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if process.stdout is None or process.stdout.readline() != "ready\n":
            raise UnavailableError("the network of the simulated machines did not start")
        return process

    def _connect_this_computer(self, network: IPv4Network) -> None:
        outer = f"{self._tag}r"
        _ip(0, f"link add {outer} type veth peer name up0 netns {self._fabric_pid}")
        _ip(self._fabric_pid, f"link set up0 master {fabric.SWITCH} up")
        _ip(0, f"addr add {self.address}/{network.prefixlen} dev {outer}", f"link set {outer} up")

    # MachineHost

    def start(self, spec: MachineSpec, ended: Callable[[str], None]) -> None:
        """See MachineHost. The machine boots in a thread of its own."""
        machine = _Machine(spec=spec, number=len(self._machines) + 1, ingress=spec.ingress)
        self._machines[spec.id] = machine
        items = dict(spec.metadata) | {
            f"public-keys/{number}/openssh-key": key for number, (_, key) in enumerate(spec.public_keys)
        }
        if spec.metadata_kind != MetadataKind.NONE:
            self._tell(
                address=spec.address,
                items=items,
                user_data=base64.b64encode(spec.user_data).decode(),
                tokens_required=spec.tokens_required,
                kind=spec.metadata_kind.value,
            )
        machine.thread = threading.Thread(target=self._live, args=(machine, ended), name=spec.id, daemon=True)
        machine.thread.start()

    def end(self, machine_id: str) -> None:
        """See MachineHost."""
        machine = self._machines.get(machine_id)
        if machine is None or machine.ending.is_set():
            return
        machine.ending.set()
        with machine.lock:
            machine.sent_bytes = _sent(machine)
            if machine.process is not None and machine.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.kill(machine.init, signal.SIGKILL)
                machine.process.wait()
            machine.init = 0
        self._tell(address=machine.spec.address)

    def set_metadata(self, machine_id: str, path: str, text: str) -> None:
        """See MachineHost."""
        machine = self._machines.get(machine_id)
        if machine is not None:
            self._tell(address=machine.spec.address, path=path, text=text)

    def set_ingress(self, machine_id: str, ingress: tuple[Ingress, ...]) -> None:
        """See MachineHost."""
        machine = self._machines.get(machine_id)
        if machine is None:
            return
        with machine.lock:
            machine.ingress = ingress
            if machine.init and not machine.ending.is_set():
                _ip(machine.init, *_ingress_lines(ingress))

    def ingress_of(self, machine_id: str) -> tuple[Ingress, ...]:
        """Returns the ports of a machine that answer."""
        return self._machines[machine_id].ingress

    def console(self, machine_id: str) -> bytes:
        """See MachineHost."""
        log = self.folder / f"{machine_id}.console"
        return log.read_bytes() if log.exists() else b""

    def egress_bytes(self, machine_id: str) -> int:
        """See MachineHost."""
        machine = self._machines.get(machine_id)
        return max(machine.sent_bytes, _sent(machine)) if machine is not None else 0

    def save(self, machine_id: str, image_id: str) -> None:
        """See MachineHost. Only the files that differ from this computer are stored, with the attributes by
        which overlayfs marks deleted files."""
        machine = self._machines.get(machine_id)
        if machine is None or machine.init == 0:
            return
        file = self.folder / f"{image_id}.tar"
        words = ("tar", "-c", "--xattrs", "--xattrs-include=*", "--exclude=./over/*/work", "-f", str(file))
        disk = f"/proc/{machine.init}/fd/{DISK_DESCRIPTOR}"
        done = subprocess.run(
            [*words, "-C", disk, "./upper", "./own", *(["./over"] if os.path.exists(f"{disk}/over") else [])],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode > 1:  # 1: a file has changed, as on the disk of each running machine
            raise UnavailableError(f"the disk of {machine_id} was not stored: {done.stderr.strip()}")
        self._saved[image_id] = str(file)

    def close(self) -> None:
        """See MachineHost."""
        if self._closed:
            return
        for machine_id in list(self._machines):
            self.end(machine_id)
        for machine in self._machines.values():
            if machine.thread is not None:
                machine.thread.join()
        self._closed = True
        if self._fabric.stdin is not None:
            self._fabric.stdin.close()
        self._fabric.wait()
        if self._fabric.stdout is not None:
            self._fabric.stdout.close()
        # The kernel removes the cables of a namespace some time after its end.
        with suppress(RuntimeError):
            _ip(0, f"link del {self._tag}r")
        for end in self._lifeline:
            os.close(end)
        shutil.rmtree(self.folder, ignore_errors=True)

    # inside the machines

    def command(self, machine_id: str, *words: str) -> list[str]:
        """Returns the command line that runs a command on a machine as root, for tests that look inside.
        Raises UnavailableError if the machine does not run."""
        machine = self._machines[machine_id]
        if machine.init == 0:
            raise UnavailableError(f"the machine {machine_id} does not run")
        inside = ("nsenter", "-t", str(machine.init), "-m", "-u", "-i", "-n", "-p", "--wdns=/")
        return [*inside, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", *words]

    def _live(self, machine: _Machine, ended: Callable[[str], None]) -> None:
        with (self.folder / f"{machine.spec.id}.console").open("ab") as console:
            if not self._power_on(machine, console):
                return
            process = machine.process
            try:
                if machine.spec.boots and not machine.ending.wait(machine.spec.boot_seconds):
                    self._boot(machine, console)
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                console.write(f"the boot failed: {error}\n".encode())
                console.flush()
        if process is not None and process.wait() == _SHUT_DOWN and not machine.ending.is_set():
            ended(machine.spec.id)

    def _power_on(self, machine: _Machine, console: IO[bytes]) -> bool:
        with machine.lock:
            if machine.ending.is_set():
                return False
            machine.process = subprocess.Popen(
                [
                    *_UNSHARE,
                    "bash",
                    "-c",
                    BOOT,
                    "machine",
                    str(self.folder / machine.spec.id),
                    machine.spec.host_name,
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env={
                    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                    "NEEDED": "\n".join(self._needed),
                    "IMAGE": self._saved.get(machine.spec.image_id, ""),
                    "LIFELINE": str(self._lifeline[0]),
                },
                pass_fds=(self._lifeline[0],),
                start_new_session=True,
            )
            machine.init = only_child(machine.process.pid)
            self._plug_in(machine)
        process = machine.process
        ready = Path(f"/proc/{machine.init}/root/run/machine.ready")
        wait_until(lambda: ready.exists() or process.poll() is not None, f"{machine.spec.id} starts")
        return not machine.ending.is_set()

    def _plug_in(self, machine: _Machine) -> None:
        spec, cable = machine.spec, f"c{machine.number}"
        digest = sha256(spec.id.encode()).digest()
        mac = "02:" + ":".join(f"{byte:02x}" for byte in digest[:5])
        _ip(
            self._fabric_pid,
            f"link add {cable} type veth peer name eth0 netns {machine.init}",
            f"link set {cable} master {fabric.SWITCH} up",
        )
        public = [f"addr add {spec.public_address}/16 dev eth0"] if spec.public_address else []
        _ip(
            machine.init,
            "link set lo up",
            f"link set eth0 address {mac}",
            f"addr add {spec.address}/16 dev eth0",
            *public,
            "link set eth0 up",
            f"route add {fabric.METADATA_ADDRESS} dev eth0 src {spec.address}",
            *_ingress_lines(machine.ingress),
        )

    def _boot(self, machine: _Machine, console: IO[bytes]) -> None:
        kind = "real" if self._real_cloud_init else "own"
        self._inside(machine, console, "bash", "-c", FILES, "files", USER, kind)
        if machine.spec.metadata_kind == MetadataKind.GCE:
            self._inside(machine, console, "sh", "-c", NAME_OF_METADATA_SERVER)
        if self._real_cloud_init:
            self._boot_with_cloud_init(machine, console)
        else:
            self._boot_without_cloud_init(machine, console)
        if machine.spec.startup_script:
            script = "/run/startup-script"
            self._write(
                machine, console, [BootFile(path=script, content=machine.spec.startup_script, mode="0700")]
            )
            self._inside(machine, console, script)

    def _boot_without_cloud_init(self, machine: _Machine, console: IO[bytes]) -> None:
        plan = boots_with(machine.spec)
        for problem in plan.problems:
            console.write(f"cloud-init: the simulation does not implement {problem}\n".encode())
        console.flush()
        for command in plan.early_commands:
            self._inside(machine, console, "sh", "-c", command)
        self._write(machine, console, plan.files)
        self._start_sshd(machine, console, plan.logins)
        for command in plan.commands:
            self._inside(machine, console, "sh", "-c", command)
        finished = "/var/lib/cloud/instance/boot-finished"
        self._inside(machine, console, "sh", "-c", f"mkdir -p $(dirname {finished}) && date > {finished}")

    def _boot_with_cloud_init(self, machine: _Machine, console: IO[bytes]) -> None:
        self._inside(machine, console, "rm", "-rf", "/var/lib/cloud", "/run/cloud-init")
        self._write(machine, console, seed(machine.spec))
        self._inside(machine, console, "sh", "-c", REAL_CLOUD_INIT)
        self._start_sshd(machine, console)
        self._inside(machine, console, "sh", "-c", REAL_CLOUD_INIT_AFTER_SSHD)

    def _start_sshd(
        self, machine: _Machine, console: IO[bytes], logins: Sequence[tuple[str, str]] = ()
    ) -> None:
        for user, key in (*machine.spec.logins, *logins):
            self._inside(machine, console, "bash", "-c", LOGIN, "login", user, key)
        self._inside(machine, console, "bash", "-c", SSHD_CONFIG)
        self._inside(machine, console, SSHD, "-f", "/etc/ssh/simulated_sshd_config")

    def _write(self, machine: _Machine, console: IO[bytes], files: Sequence[BootFile]) -> None:
        for file in files:
            path = Path(f"/proc/{machine.init}/root{file.path}")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab" if file.is_appended else "wb") as out:
                out.write(file.content)
            path.chmod(int(file.mode, 8))
            self._inside(machine, console, "chown", file.owner, file.path)

    def _inside(self, machine: _Machine, console: IO[bytes], *words: str) -> None:
        if not machine.ending.is_set():
            subprocess.run(
                self.command(machine.spec.id, *words),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                check=False,
            )

    def _tell(self, **command: object) -> None:
        with self._commands:
            if self._fabric.stdin is None or self._fabric.stdout is None or self._fabric.poll() is not None:
                return
            self._fabric.stdin.write(f"{json.dumps(command)}\n")
            self._fabric.stdin.flush()
            self._fabric.stdout.readline()


def _ingress_lines(ingress: Sequence[Ingress]) -> list[str]:
    """Returns lines of `ip` that let a machine answer only on the given ports: what it sends from another
    port below the ports of its own connections goes nowhere. A client waits in vain, as with a security
    group."""
    return [
        "rule flush",
        "rule add prio 32766 lookup main",
        "rule add prio 32767 lookup default",
        # the kernel refuses a rule that exists: two firewall rules may open the same port
        *dict.fromkeys(
            f"rule add prio 50 ipproto tcp sport {max(1, one.first_port)}-{min(_LAST_PORT, one.last_port)} "
            f"to {one.network} lookup main"
            for one in ingress
            if one.first_port <= _LAST_PORT
        ),
        f"rule add prio 100 ipproto tcp sport 1-{_FIRST_OWN_PORT - 1} blackhole",
    ]


def _sent(machine: _Machine) -> int:
    """Returns the bytes that the network interface of a machine has sent."""
    if machine.init == 0:
        return machine.sent_bytes
    with suppress(OSError):
        for line in Path(f"/proc/{machine.init}/net/dev").read_text().splitlines():
            name, _, counts = line.partition(":")
            if name.strip() == "eth0":
                return int(counts.split()[8])
    return machine.sent_bytes


def _ip(pid: int, *lines: str) -> None:
    """Runs lines of `ip` in the network of a process, or in that of this process if `pid` is 0. Raises
    RuntimeError."""
    inside = ("nsenter", "-t", str(pid), "-n", "--") if pid else ()
    done = subprocess.run(
        [*inside, "ip", "-batch", "-"], input="\n".join(lines), text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"ip: {done.stderr.strip()}: {'; '.join(lines)}")


def _free_network() -> IPv4Network:
    """Returns a private network of 65,536 addresses that this computer has no route to."""
    routes = subprocess.run(["ip", "-json", "-4", "route"], capture_output=True, text=True, check=True)
    texts = [each["dst"] for each in json.loads(routes.stdout) if each["dst"] != "default"]
    taken = [IPv4Interface(text).network for text in texts]
    for offset in range(_NETWORKS):
        second = _FIRST_NETWORK + (os.getpid() + offset) % _NETWORKS
        network = IPv4Network(f"10.{second}.0.0/16")
        if not any(network.overlaps(one) for one in taken):
            return network
    raise UnavailableError("all networks of the simulation are in use")
