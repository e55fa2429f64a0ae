"""Runs Slurm's commands on this machine, or on a login node over SSH, and packs the files of a deployment.

The files of a deployment are sent to the cluster as an archive.
"""

import io
import os
import shlex
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from gridmill.codec import encode
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import PodOrder
from gridmill.domain.site import Site
from gridmill.errors import InputError, UnavailableError
from gridmill.sites.slurm import script
from gridmill.sites.slurm.script import BatchJob
from gridmill.sites.slurm.settings import SlurmSettings, settings_of

TIMEOUT_SECONDS = 30.0
_CONNECT_SECONDS = 10
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "SLURM_CONF")
"""The environment variables that local commands get. Other variables are left out, because sbatch passes its
environment on to the job and Slurm records it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedCommand:
    """The result of a command that has ended."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """Returns the output of the command as text."""
        return self.out.decode(errors="replace")


class Shell(Protocol):
    """Runs commands. This class is safe to use from several threads."""

    def run(self, script: str, data: bytes | None = None) -> CompletedCommand:
        """Runs a shell script with `data` as its standard input. Raises UnavailableError if the script
        cannot run or takes longer than 30 s."""

    def close(self) -> None:
        """Closes the connection to the login node, if there is one."""


class LocalShell:
    """Runs commands on this machine."""

    def run(self, script: str, data: bytes | None = None) -> CompletedCommand:
        """See Shell."""
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return _run(
            ["/bin/sh", "-s"] if data is None else ["/bin/sh", "-c", script], script, data, environment
        )

    def close(self) -> None:
        """Does nothing."""


class SshShell:
    """Runs commands on a login node. All commands share one connection of the program `ssh`, which uses the
    configuration, keys and agent of the user. The connection is opened at its first use, and opened again
    after it broke."""

    def __init__(self, target: str, options: Sequence[str] = ()) -> None:
        self._target = target
        self._options = tuple(options)
        self._folder = tempfile.TemporaryDirectory(prefix="gridmill-ssh-")
        self._socket = Path(self._folder.name) / "socket"
        self._master: subprocess.Popen[bytes] | None = None
        self._opening = threading.Lock()

    def run(self, script: str, data: bytes | None = None) -> CompletedCommand:
        """See Shell."""
        self._open()
        remote = "sh -s" if data is None else f"sh -c {shlex.quote(script)}"
        done = _run(self._ssh("-S", str(self._socket), "-T", self._target, "--", remote), script, data, None)
        if done.status == 255:  # ssh uses this status for its own errors, for example a broken connection
            self._give_up()
            raise UnavailableError(f"{self._target} does not answer: {_last_line(done.err)}")
        return done

    def _ssh(self, *words: str) -> list[str]:
        return ["ssh", "-o", "BatchMode=yes", *self._options, *words]

    def _open(self) -> None:
        """Opens the SSH connection that all commands share. The connection is a child process of this
        process and ends with `close`."""
        with self._opening:
            if self._master is not None and self._master.poll() is None:
                return
            keep = ("ServerAliveInterval=5", "ServerAliveCountMax=3", f"ConnectTimeout={_CONNECT_SECONDS}")
            options = [word for option in keep for word in ("-o", option)]
            log = Path(self._folder.name) / "log"
            # a killed process may have left the socket, and ssh does not replace an existing socket
            self._socket.unlink(missing_ok=True)
            with log.open("wb") as file:
                self._master = subprocess.Popen(
                    self._ssh(*options, "-M", "-N", "-S", str(self._socket), self._target),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=file,
                    start_new_session=True,
                )
            self._wait(self._master, log)

    def _wait(self, master: subprocess.Popen[bytes], log: Path) -> None:
        until = time.monotonic() + _CONNECT_SECONDS + 5
        while not self._socket.exists():
            if master.poll() is not None or time.monotonic() > until:
                self._give_up()
                raise UnavailableError(
                    f"{self._target} cannot be reached over SSH: {_last_line(log.read_text())}",
                    hint=f"Run `ssh {self._target} true` here: it must work without a question.",
                )
            time.sleep(0.02)

    def _give_up(self) -> None:
        if self._master is not None:
            self._master.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._master.wait(2)
        self._master = None
        self._socket.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends the connection."""
        self._give_up()
        self._folder.cleanup()


def shell_of(site: Site) -> Shell:
    """Returns the shell for commands on this machine, or on the login node at `ssh://[USER@]HOST[:PORT]`.
    Raises InputError."""
    if not site.address:
        return LocalShell()
    target = site.address.removeprefix("ssh://").rstrip("/")
    if target == site.address or not target or target.startswith("-") or "/" in target:
        raise InputError(
            f"{site.address!r} is not the address of a login node",
            hint="Write ssh://USER@HOST. If sbatch can run on this machine, remove the address.",
            place=f"site {site.name}: address",
        )
    return SshShell(f"ssh://{target}", settings_of(site).ssh)


def check_site(site: Site) -> None:
    """Raises InputError if the address or a setting is invalid."""
    settings_of(site)
    shell_of(site)


def _run(
    words: Sequence[str], script: str, data: bytes | None, env: dict[str, str] | None
) -> CompletedCommand:
    try:
        done = subprocess.run(
            words,
            input=script.encode() if data is None else data,
            capture_output=True,
            env=env,
            cwd="/",
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        error_lines = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
        raise UnavailableError(
            ": ".join((f"Slurm's commands did not answer within {TIMEOUT_SECONDS:g} s", *error_lines))
        ) from error
    except OSError as error:
        raise UnavailableError(f"{words[0]} cannot be run: {error.strerror}") from error
    return CompletedCommand(status=done.returncode, out=done.stdout, err=done.stderr.decode(errors="replace"))


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.strip().splitlines()) if line.strip()), "it printed no error")


def packed(batch: BatchJob, wishes: SlurmSettings, orders: Sequence[PodOrder]) -> bytes:
    """Returns an archive with the files of a deployment. Only the user can read the files, because orders
    contain secrets."""
    here = f"deployments/{batch.deployment_id}"
    files = {
        f"{here}/script": script.batch_script(batch, wishes).encode(),
        f"{here}/pod.sh": script.pod_script(batch, wishes).encode(),
        f"{here}/pods": "\n".join([*batch.pods, ""]).encode(),
        **{f"pods/{order.pod_id}/order.json": encode(replace(order, home=batch.folder)) for order in orders},
    }
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()
