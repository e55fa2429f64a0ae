"""Runs commands on other machines with the program `ssh`, and copies files to them. Kinds of sites that reach
machines over SSH use this module.
"""

import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol

from gridmill.domain.frozen import dataclass
from gridmill.errors import UnavailableError

TIMEOUT_SECONDS = 30.0
_CONNECT_SECONDS = 10
_SSH_FAILED = 255
"""The status with which `ssh` reports its own errors, for example a broken connection."""


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

    def run(
        self, script: str, data: bytes | None = None, *, seconds: float = TIMEOUT_SECONDS
    ) -> CompletedCommand:
        """Runs a shell script with `data` as its standard input. Raises UnavailableError if the script
        cannot run or takes longer than `seconds`."""

    def close(self) -> None:
        """Closes the connection to the other machine, if there is one."""


class SshShell:
    """Runs commands on another machine. All commands share one connection of the program `ssh`, which uses
    the configuration, keys and agent of the user unless `options` say otherwise. The connection is opened at
    its first use, and opened again after it broke."""

    def __init__(self, target: str, options: Sequence[str] = (), *, hint: str = "") -> None:
        """`hint` is the hint of errors about a machine that cannot be reached. Raises UnavailableError if
        the folder for the connection cannot be created."""
        self._target = target
        self._options = tuple(options)
        self._hint = hint or f"Run `ssh {target} true` here: it must work without a question."
        with _unavailable(target):
            self._folder = tempfile.TemporaryDirectory(prefix="gridmill-ssh-")
        self._socket = Path(self._folder.name) / "socket"
        self._master: subprocess.Popen[bytes] | None = None
        self._opening = threading.Lock()
        self._closed = False

    def run(
        self, script: str, data: bytes | None = None, *, seconds: float = TIMEOUT_SECONDS
    ) -> CompletedCommand:
        """See Shell."""
        with _unavailable(self._target):
            self._open()
        remote = "sh -s" if data is None else f"sh -c {shlex.quote(script)}"
        words = self._ssh("-S", str(self._socket), "-T", self._target, "--", remote)
        done = run_command(words, script, data, seconds=seconds, what=self._target)
        if done.status == _SSH_FAILED:
            with _unavailable(self._target):
                self._give_up()
            raise UnavailableError(f"{self._target} does not answer: {last_line(done.err)}")
        return done

    def stream(self, script: str, write: Callable[[IO[bytes]], None], *, seconds: float) -> CompletedCommand:
        """Runs a shell script, and calls `write` with its standard input, so that the data need not fit into
        memory. The output of the script is discarded. Raises UnavailableError if the script cannot run or
        takes longer than `seconds`."""
        with _unavailable(self._target):
            self._open()
            words = self._ssh(
                "-S", str(self._socket), "-T", self._target, "--", f"sh -c {shlex.quote(script)}"
            )
            done = _stream(words, write, seconds, self._target)
        if done.status == _SSH_FAILED:
            raise UnavailableError(f"{self._target} does not answer: {last_line(done.err)}")
        return done

    def _ssh(self, *words: str) -> list[str]:
        return ["ssh", "-o", "BatchMode=yes", *self._options, *words]

    def _open(self) -> None:
        """Opens the SSH connection that all commands share. The connection is a child process of this
        process and ends with `close`."""
        with self._opening:
            if self._closed:
                raise UnavailableError(f"the connection to {self._target} was closed")
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
            if master.poll() is not None or time.monotonic() > until or self._closed:
                self._give_up()
                why = last_line(log.read_text(errors="replace"))
                raise UnavailableError(f"{self._target} cannot be reached over SSH: {why}", hint=self._hint)
            time.sleep(0.02)

    def _give_up(self) -> None:
        if self._master is not None:
            self._master.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._master.wait(2)
        self._master = None
        self._socket.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends the connection. Commands that run now fail. May be repeated."""
        self._closed = True
        # files that cannot be deleted now stay in the folder for temporary files
        with suppress(OSError), self._opening:
            self._give_up()
            self._folder.cleanup()


@contextmanager
def _unavailable(target: str) -> Iterator[None]:
    """Raises UnavailableError instead of OSError, for example if this machine has no free file descriptor or
    its folder for temporary files is full. The caller can then repeat the command later."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"the SSH connection to {target} cannot be managed here: {error.strerror or error}",
            hint="Check the free space of the folder for temporary files, and the limit of open files.",
        ) from error


def run_command(
    words: Sequence[str],
    script: str,
    data: bytes | None,
    *,
    env: Mapping[str, str] | None = None,
    seconds: float = TIMEOUT_SECONDS,
    what: str,
) -> CompletedCommand:
    """Runs a program with `data`, or else the script, as its standard input. `what` names the program in
    errors. Raises UnavailableError if the program cannot run or takes longer than `seconds`."""
    try:
        done = subprocess.run(
            words,
            input=script.encode() if data is None else data,
            capture_output=True,
            env=env,
            cwd="/",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        error_lines = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
        raise UnavailableError(
            ": ".join((f"{what} did not answer within {seconds:g} s", *error_lines))
        ) from error
    except OSError as error:
        raise UnavailableError(f"{words[0]} cannot be run: {error.strerror}") from error
    return CompletedCommand(status=done.returncode, out=done.stdout, err=done.stderr.decode(errors="replace"))


def _stream(
    words: Sequence[str], write: Callable[[IO[bytes]], None], seconds: float, what: str
) -> CompletedCommand:
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, cwd="/"
        )
        late = threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, give_up)
        timer.start()
        try:
            with process, suppress(BrokenPipeError):
                if process.stdin is not None:
                    write(process.stdin)
        finally:
            timer.cancel()
            timer.join()
        if late.is_set():
            raise UnavailableError(f"{what} did not take all data within {seconds:g} s")
        errors.seek(0)
        text = errors.read().decode(errors="replace")
    return CompletedCommand(status=process.returncode, out=b"", err=text)


def last_line(text: str) -> str:
    """Returns the last line of the text that is not empty."""
    return next((line for line in reversed(text.strip().splitlines()) if line.strip()), "it printed no error")
