"""Opens an SSH tunnel to a farm with the user's own `ssh`, for farms whose only open port is the SSH
port."""

import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from gridmill.domain.frozen import dataclass
from gridmill.errors import AwayError

_START_SECONDS = 20.0
_POLL_SECONDS = 0.05
_END_SECONDS = 5.0
_OPTIONS = (
    *("-o", "BatchMode=yes"),  # ssh must fail instead of asking, because no user can answer a question
    *("-o", "ControlPath=none"),  # a shared connection would not end together with this process
    *("-o", "ExitOnForwardFailure=yes"),
    *("-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=3"),
    *("-o", "StreamLocalBindMask=0177"),
)
_KEEPER = """
folder=$1; shift; exec 3<&0
"$@" 3<&- & ssh=$!
{ read -r _; kill "$ssh"; } <&3 >/dev/null 2>&1 & lifeline=$!
wait "$ssh"; code=$?
kill "$lifeline" 2>/dev/null; rm -rf "$folder"; exit "$code"
"""
"""A shell wrapper around `ssh`. The wrapper ends `ssh` when its standard input closes, which happens when
the process that started the wrapper ends for any reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SshProcess:
    """One running `ssh`: its wrapper process, the socket that it makes, and its log."""

    process: "subprocess.Popen[bytes]"
    socket: Path
    log: IO[bytes]

    def is_open(self) -> bool:
        return self.process.poll() is None and self.socket.exists()

    def last_line(self) -> str:
        """Returns the last of the log lines that were not read before."""
        self.log.seek(0)
        text = self.log.read().decode(errors="replace")
        self.log.truncate(0)  # emptied, because the log grows with each failed connection
        return text.strip().rpartition("\n")[2].strip()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


class Tunnel:
    """An SSH tunnel from a Unix socket of this user to HOST:PORT. The machine `destination` resolves the
    name HOST."""

    def __init__(self, destination: str, host: str, port: int, options: Sequence[str] = ()) -> None:
        """`destination` is USER@HOST, or ssh://USER@HOST:PORT. `options` are further options of the program
        `ssh`."""
        self._destination, self._target = destination, f"{host}:{port}"
        self._options = tuple(options)
        self._ssh: _SshProcess | None = None
        self._failed: tuple[float, AwayError] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def path(self) -> Path:
        """Opens the tunnel if necessary and returns the path of its socket. Raises AwayError with the
        message that `ssh` printed."""
        began = time.monotonic()
        with self._lock:
            if self._failed is not None and self._failed[0] > began:
                raise self._failed[1]  # this call shares the result of a try that started after it
            if self._ssh is None or not self._ssh.is_open():
                self._end()
                self._open()
            assert self._ssh is not None
            return self._ssh.socket

    def last_message(self) -> str:
        """Returns the last message of `ssh` about a connection that failed."""
        with self._lock:
            return self._ssh.last_line() if self._ssh is not None else ""

    def _open(self) -> None:
        try:
            self._ssh = self._start()
            self._wait(self._ssh)
        except AwayError as error:
            self._end()
            self._failed = time.monotonic(), error
            raise

    def _start(self) -> _SshProcess:
        folder = Path(tempfile.mkdtemp(prefix="gmt"))
        socket, log = folder / "farm", (folder / "log").open("a+b")
        forward = ("-N", "-L", f"{socket}:{self._target}")
        ssh = ("ssh", *forward, *_OPTIONS, *self._options, "--", self._destination)
        keeper = subprocess.Popen(
            ["sh", "-c", _KEEPER, "gridmill-ssh", str(folder), *ssh],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
        return _SshProcess(process=keeper, socket=socket, log=log)

    def _wait(self, ssh: _SshProcess) -> None:
        until = time.monotonic() + _START_SECONDS
        while not ssh.is_open():
            if ssh.process.poll() is not None or time.monotonic() > until or self._closed:
                words = ("ssh", *self._options, self._destination)
                raise AwayError(
                    f"no SSH connection to {self._destination}: {ssh.last_line() or 'it does not answer'}",
                    hint=f"Run `{shlex.join(words)} true`: it must work without a password.",
                )
            time.sleep(_POLL_SECONDS)

    def _end(self) -> None:
        ssh, self._ssh = self._ssh, None
        if ssh is not None:
            ssh.end()

    def close(self) -> None:
        """Closes the tunnel. Callers that still wait for the tunnel get an error. May be repeated."""
        self._closed = True
        with self._lock:
            self._end()
