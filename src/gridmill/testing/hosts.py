"""Virtual hosts for tests: simulated machines with separate addresses, processes and disks on one Linux
machine.

A host is a set of Linux namespaces (network, processes, mounts, host name). The root folder of a host is an
overlay over the root folder of this machine. Only the host sees its own writes, except writes in the shared
folders. All hosts can read the folders of Python. The hosts can read even Python folders below /tmp,
although each host has a separate /tmp. To power off a host, its first process is killed. The kernel then
ends all processes of the host and removes its network and disk. If the process of the test ends, all hosts
are powered off. Virtual hosts need root, `unshare`, `nsenter`, `ip` and overlayfs.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import IO

from gridmill.domain.frozen import dataclass

_BOOT = r"""
set -e
R=$1; NAME=$2
mount --make-rprivate /
mkdir -p "$R"
mount -t tmpfs -o size=4g,mode=755 "host-$NAME" "$R"
mkdir -p "$R/upper" "$R/work" "$R/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$R/upper,workdir=$R/work" "$R/root"
cd "$R/root"
for d in dev sys; do mount --rbind /$d $d; done
mount -t tmpfs -o mode=1777,size=4g shm dev/shm
mount -t proc proc proc
mount -t tmpfs -o mode=1777 tmp tmp
mount -t tmpfs -o mode=755 run run
while IFS= read -r p; do  # below a folder that is the host's own, or on a disk of its own
  [ -e ".$p" ] && [ "$(stat -c %d "$p")" = "$(stat -c %d /)" ] && continue
  over=$R/over/$((at = ${at:-0} + 1))
  mkdir -p ".$p" "$over/upper" "$over/work"
  (cd "$p" && mount -t overlay overlay -o "lowerdir=.,upperdir=$over/upper,workdir=$over/work" "$R/root$p")
done <<< "$NEEDED"
while IFS= read -r p; do [ -z "$p" ] || { mkdir -p ".$p"; mount --rbind "$p" ".$p"; }; done <<< "$SHARED"
mkdir -p .old; pivot_root . .old; cd /
umount -l /.old
rmdir /.old 2>/dev/null || true
hostname $NAME
rm -f /etc/resolv.conf; : > /etc/resolv.conf
sed -i 's/^hosts:.*/hosts: files/' /etc/nsswitch.conf
ip link set lo up
trap : TERM INT HUP
echo ready > /run/host.ready
while :; do read -r _ <&$LIFELINE; r=$?; [ $r -gt 128 ] || exit 0; done
"""
_UNSHARE = ("unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child")
_DEADLINE_SECONDS = 300.0
_POLL_SECONDS = 0.005


def why_no_hosts() -> str:
    """Returns the requirements of virtual hosts that this machine does not fulfil. The text is empty if this
    machine fulfils all requirements."""
    if os.geteuid() != 0:
        return "virtual hosts need root"
    missing = [name for name in ("unshare", "nsenter", "ip", "bash") if shutil.which(name) is None]
    if missing:
        return f"virtual hosts need {', '.join(missing)}: apt-get install util-linux iproute2"
    tried = subprocess.run(
        ["unshare", "--net", "--pid", "--mount", "--fork", "true"], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else f"no namespaces here: {tried.stderr.decode().strip()}"


@dataclass(slots=True)
class Host:
    """A virtual host with the given `address`. `shared` are the folders that the host shares with this
    machine."""

    network: "Network"
    name: str
    address: str
    init: int = 0
    _process: "subprocess.Popen[bytes] | None" = None
    _cable: str = ""

    def start(self) -> None:
        """Powers on the host. Raises RuntimeError if the host does not boot."""
        network = self.network
        log = network.folder / f"{self.name}.log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [*_UNSHARE, "bash", "-c", _BOOT, "host", str(network.folder / self.name), self.name],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={
                    **os.environ,
                    "NEEDED": "\n".join(network.needed),
                    "SHARED": "\n".join(network.shared),
                    "LIFELINE": str(network.lifeline[0]),
                },
                pass_fds=(network.lifeline[0],),
                start_new_session=True,
            )
        self.init = only_child(self._process.pid)
        self._plug_in()
        wait_until(
            lambda: Path(f"/proc/{self.init}/root/run/host.ready").exists(), f"{self.name} boots: see {log}"
        )
        names = "".join(f"{host.address} {host.name}\n" for host in network.hosts.values())
        Path(f"/proc/{self.init}/root/etc/hosts").write_text(f"127.0.0.1 localhost\n{names}")

    def _plug_in(self) -> None:
        network = self.network
        network.cables += 1
        self._cable = f"gm{network.tag}c{network.cables}"
        digest = hashlib.sha256(f"{network.tag}{self.name}".encode()).digest()
        # computed from the names, so that the address is the same after a reboot
        mac = "02:" + ":".join(f"{byte:02x}" for byte in digest[:5])
        _run(
            "ip", "link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", str(self.init)
        )
        _run("ip", "link", "set", self._cable, "master", network.bridge, "up")
        inside = ("nsenter", "-t", str(self.init), "-n", "--", "ip")
        _run(*inside, "link", "set", "eth0", "address", mac)
        _run(*inside, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _run(*inside, "link", "set", "eth0", "up")

    def power_off(self) -> None:
        """Powers off the host. When the host is powered off, all its processes and all its writes are lost.
        The call can be repeated."""
        if self._process is None:
            return
        os.kill(self.init, signal.SIGKILL)
        self._process.wait(_DEADLINE_SECONDS)
        self._process = None

    def connect(self, connected: bool) -> None:
        """Connects or disconnects the network of the host."""
        _run("ip", "link", "set", self._cable, "up" if connected else "down")

    def command(self, *words: str) -> list[str]:
        """Returns the command line that runs a command on the host. The temporary files of the command are
        below /tmp."""
        inside = ["nsenter", "-t", str(self.init), "-m", "-u", "-i", "-n", "-p", "--wdns=/"]
        return [*inside, "env", "-u", "TMPDIR", *words]

    def run(self, *words: str, seconds: float = 300.0, check: bool = True) -> str:
        """Runs a command on the host and returns its output. With `check`, it raises CalledProcessError if
        the command fails. The method raises TimeoutExpired after `seconds`."""
        done = subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode:
            error = subprocess.CalledProcessError(done.returncode, words, done.stdout, done.stderr)
            error.add_note(f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
            raise error
        return done.stdout + done.stderr

    def popen(self, *words: str, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        """Starts a command on the host. The command ends at the latest when the host is powered off."""
        return subprocess.Popen(
            self.command(*words), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


@dataclass(slots=True)
class Network:
    """A subnet of virtual hosts. In this subnet, this machine has the address `PREFIX.1`. `needed` are
    folders of this machine that a host can read. Only the host sees its own writes to these folders."""

    folder: Path
    prefix: str
    shared: tuple[str, ...]
    needed: tuple[str, ...]
    tag: str
    lifeline: tuple[int, int]
    cables: int = 0
    hosts: dict[str, Host] = field(default_factory=dict)

    @property
    def bridge(self) -> str:
        """Returns the name of the network bridge."""
        return f"gm{self.tag}b"

    @property
    def gateway(self) -> str:
        """Returns the address of this machine in the subnet."""
        return f"{self.prefix}.1"

    def host(self, name: str, number: int) -> Host:
        """Returns a new host with the address PREFIX.number, which is powered on."""
        self.hosts[name] = Host(network=self, name=name, address=f"{self.prefix}.{number}")
        self.hosts[name].start()
        return self.hosts[name]


@contextmanager
def network(
    folder: Path, prefix: str, shared: Sequence[str | Path] = (), needed: Sequence[str | Path] = ()
) -> Iterator[Network]:
    """Makes a subnet `prefix`.0/24 on this machine for the duration of the `with` block. `folder` is for
    logs and disks. The path of `folder` must not contain commas or colons. `needed` are folders that hosts
    can read in addition to Python's folders."""
    folder.mkdir(parents=True, exist_ok=True)
    tag = f"{os.getpid():x}"[-4:] + os.urandom(1).hex()
    made = Network(
        folder=folder,
        prefix=prefix,
        shared=tuple(map(str, shared)),
        needed=existing_folders(*needed, *python_folders()),
        tag=tag,
        lifeline=os.pipe(),
    )
    _run("ip", "link", "add", made.bridge, "type", "bridge", "forward_delay", "0")
    try:
        _run("ip", "addr", "add", f"{made.gateway}/24", "dev", made.bridge)
        _run("ip", "link", "set", made.bridge, "up")
        yield made
    finally:
        for host in made.hosts.values():
            host.power_off()
        _run("ip", "link", "del", made.bridge)
        for end in made.lifeline:
            os.close(end)


def existing_folders(*paths: str | Path) -> tuple[str, ...]:
    """Returns the given folders that exist, each of them once. Parent folders come before their
    subfolders."""
    found = {Path(path).absolute() for path in paths if path and Path(path).is_dir()}
    return tuple(map(str, sorted(found)))


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


def python_folders() -> tuple[str, ...]:
    """Returns the folders that this Python needs to run."""
    return (sys.prefix, sys.base_prefix, *sys.path)


def only_child(pid: int) -> int:
    """Returns the pid of the only child of a process, and waits until there is one. Raises RuntimeError."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found: list[str] = []

    def born() -> bool:
        found[:] = children.read_text().split()
        return bool(found)

    wait_until(born, "the host's first process starts")
    return int(found[0])


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits until a condition is true. Raises RuntimeError after some minutes."""
    until = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"waited in vain until {what}")
        time.sleep(_POLL_SECONDS)
