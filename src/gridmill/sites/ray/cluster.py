"""Starts Ray nodes: the head node of a grid of separate machines, and the nodes of machines that join the
grid."""

import ctypes
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import field
from importlib.util import find_spec
from pathlib import Path

from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import read_address
from gridmill.errors import InputError, StorageError, UnavailableError
from gridmill.sites.process_table import is_alive, kill_trees, pods_below, ray_processes
from gridmill.sites.ray.machine_lock import noting, runs, try_claim
from gridmill.sites.ray.site import RAY_ENVIRONMENT, answers, local_address_towards, speaks

HEALTH = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}
"""With this setting, Ray detects a machine without power or network after 8 s instead of 30 s to 65 s. (The
actors on a machine without network end the pods of this machine.)"""
PATIENCE = "20s"
"""The time for which a site with these nodes waits for a lost node (the setting `patience`)."""
_PR_SET_PDEATHSIG = 1
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
_BEHIND = ("nice", "-n", "19")
START = (sys.executable, "-m", "ray.scripts.scripts", "start", "--include-log-monitor=false")
"""Ray's log monitor is not started, because Gridmill reads the output of jobs itself."""
_IS_IT_UP = "Check that `gridmill up --ray HOST` runs on the head."
_UP = b"Ray runtime started"
_VERSION = re.compile(r"(Ray|Python): (\S+)")
_START_SECONDS = 90.0
_END_SECONDS = 2.0
_PODS_SECONDS = 4.0
"""A pod gives its jobs 2 s to end, and needs 1 s more to report the ends of these jobs."""
_POLL_SECONDS = 0.1


@dataclass(slots=True)
class RayNode:
    """A process `ray start` in the foreground. When this process ends, all processes of the Ray node end
    too. `pods` are the pods that ran here when the node was stopped, with their start times."""

    process: "subprocess.Popen[bytes]"
    log: Path
    pods: Mapping[int, int] = field(default_factory=dict)

    @property
    def up(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    def leave(self) -> None:
        """Ends the node and notifies the cluster. Processes of Ray that still run after 2 s are killed. Pods
        notify their jobs and end by themselves."""
        if not self.up:
            return
        self.pods = pods_below(self.process.pid)
        left = ray_processes(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_SECONDS)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def clear(self) -> None:
        """Waits until the pods on this node have ended. After 4 s, the pods that still run are killed with
        their jobs."""
        pods, self.pods = self.pods, {}
        until = time.monotonic() + _PODS_SECONDS
        while pods := {pid: start for pid, start in pods.items() if is_alive(pid, start)}:
            if time.monotonic() >= until:
                kill_trees(pods)
                return
            time.sleep(_POLL_SECONDS)

    def wait_until_up(self, beat: Callable[[], None], seconds: float = _START_SECONDS) -> None:
        """Waits until Ray runs on this node. `beat` is called repeatedly during the wait and may raise an
        error. Raises InputError, UnavailableError."""
        until = time.monotonic() + seconds
        while _UP not in self.log.read_bytes():
            beat()
            if not self.up or time.monotonic() > until:
                raise refusal(self.log.read_text(errors="replace"), self.log)
            time.sleep(_POLL_SECONDS)


def refusal(output: str, log: Path) -> InputError | UnavailableError:
    """Converts the output of a failed start of Ray into an error."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if "ersion mismatch" in output:
        return InputError(
            f"this machine has another version of Ray or Python than the grid{_versions(output)}",
            hint="Install the versions of the head on this machine, Python including the patch level.",
        )
    if "nauthenticated" in output or "uthentication" in output:
        return InputError(
            "the grid does not accept this token",
            hint="`gridmill up --ray HOST` on the head prints the path of the correct token.",
        )
    last = next(
        (line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "it printed nothing"
    )
    return UnavailableError(f"Ray did not start: {last[:300]}", hint=f"Its log is {log}.")


def want_own(host: str) -> None:
    """Raises InputError if `host` is not an address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, 0), family=family).close()
    except OSError as error:
        raise InputError(
            f"{host} is not an address of this machine",
            hint="Use an address at which the other machines reach this machine; `hostname -I` lists its "
            "addresses.",
            place="--ray",
        ) from error


def _versions(output: str) -> str:
    """Describes the versions of Ray and Python in the grid and on this machine, which Ray prints one after
    the other."""
    versions = [
        dict(_VERSION.findall(part))
        for part in output.partition("was started with:")[2].split("This process")
    ]
    if len(versions) != 2 or any(len(one) != 2 for one in versions):
        return ""
    head_text, node_text = (f"Ray {one['Ray']} and Python {one['Python']}" for one in versions)
    return f": it has {head_text}, this machine {node_text}"


def start_head(folder: Path, host: str, port: int) -> RayNode | None:
    """Starts a head node of Ray with its own token in `folder`. The head node continues to run when the
    control node ends. Returns None if the head node runs already.

    Raises UnavailableError.
    """
    want_ray()
    token_file(folder)
    if answers(host, port):
        if runs(folder):
            return None
        raise UnavailableError(
            f"another program listens at {host}:{port}", hint="Use another port: --ray HOST:PORT."
        )
    words = ["--head", f"--node-ip-address={host}", f"--port={port}", "--include-dashboard=false"]
    with try_claim() or nullcontext() as claim:
        node = _start(folder, words, token_path=token_file(folder), claim=claim)
    node.wait_until_up(lambda: None)
    return node


def join(
    folder: Path,
    address: str,
    token: str,
    *,
    cpus: int | None = None,
    memory_bytes: int | None = None,
    behind: bool = False,
    claim: socket.socket | None = None,
) -> RayNode:
    """Starts this machine as a Ray node of the grid at HOST:PORT. With `behind`, the node runs at the lowest
    priority (nice 19). The node inherits the `claim` on this machine (see `claim_machine`).

    Raises InputError, UnavailableError.
    """
    want_ray()
    host, port = read_address(address)
    if not answers(host, port):
        raise UnavailableError(
            f"nothing answers at {address}", hint="Check that `gridmill up --ray HOST` runs on the head."
        )
    _want_head(host, port)
    path = folder / "token"
    _write_secret(path, token)
    words = [f"--address={address}", f"--node-ip-address={local_address_towards(host, port)}"]
    words += [f"--num-cpus={cpus}"] if cpus else []
    words += [f"--memory={memory_bytes}"] if memory_bytes else []
    return _start(folder, words, token_path=path, behind=behind, claim=claim)


def _want_head(host: str, port: int) -> None:
    """Raises InputError if a program other than Ray listens at this address, and UnavailableError if nothing
    answers in time."""
    try:
        is_head = speaks(host, port)
    except OSError as error:
        raise UnavailableError(
            f"the program that listens at {host}:{port} does not answer", hint=_IS_IT_UP
        ) from error
    if not is_head:
        raise InputError(
            f"the program that listens at {host}:{port} is not the head of a grid",
            hint="`gridmill up --ray HOST` on the head prints HOST:PORT.",
        )


def token_file(folder: Path) -> Path:
    """Returns the path of the file with the grid's token. The file is created once, and only this user can
    read it."""
    path = folder / "token"
    if not path.exists():
        _write_secret(path, secrets.token_hex(32))
    return path


def _start(
    folder: Path,
    words: list[str],
    *,
    token_path: Path,
    behind: bool = False,
    claim: socket.socket | None = None,
) -> RayNode:
    _make_folder(folder)
    log = folder / "ray.log"
    start = noting(folder, [*START, *words, "--disable-usage-stats", "--block"])
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*(_BEHIND if behind else ()), *start],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=ray_environment(token_path),
            start_new_session=True,
            preexec_fn=_end_with_parent if behind else None,
            pass_fds=() if claim is None else (claim.fileno(),),
        )
    return RayNode(process=process, log=log)


def _end_with_parent() -> None:
    """Makes this process end when its parent ends: a lent node must end with the process that watches for
    the machine's owner."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def ray_environment(token_path: Path) -> Mapping[str, str]:
    """Returns the environment variables of `ray start` for a node of the grid."""
    return {
        **os.environ,
        **RAY_ENVIRONMENT,
        **HEALTH,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_path),
    }


def _write_secret(path: Path, text: str) -> None:
    _make_folder(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    draft.rename(path)


def _make_folder(folder: Path) -> None:
    """Makes the folder. Raises StorageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be created: {error.strerror}",
            hint="Set GRIDMILL_HOME to a folder you can write to.",
        ) from error


def want_ray() -> None:
    """Raises UnavailableError if Ray is not installed."""
    if find_spec("ray") is None:
        raise UnavailableError("the package `ray` is not installed", hint="pip install 'gridmill[ray,tls]'")
