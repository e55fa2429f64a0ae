"""A way to a farm through SSH, by the user's own `ssh`: no port but SSH's is open there."""

import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from gridmill.errors import UnavailableError

_START_SECONDS = 20.0
_POLL_SECONDS = 0.05
_OPTIONS = (
    *("-o", "BatchMode=yes"),  # nobody is there to be asked
    *("-o", "ExitOnForwardFailure=yes"),
    *("-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=3"),
    *("-o", "StreamLocalBindMask=0177"),
)


class Tunnel:
    """A Unix socket of this user alone whose other end is HOST:PORT as `destination` sees it."""

    def __init__(self, destination: str, host: str, port: int) -> None:
        """`destination` is USER@HOST, or ssh://USER@HOST:PORT."""
        self._destination, self._target = destination, f"{host}:{port}"
        self._folder = Path(tempfile.mkdtemp(prefix="gmt"))
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def path(self) -> Path:
        """The socket, open. Raises UnavailableError with what ssh says."""
        with self._lock:
            socket = self._folder / "farm"
            if self._process is not None and self._process.poll() is None and socket.exists():
                return socket
            self._end()
            socket.unlink(missing_ok=True)
            self._process = self._start(socket)
            self._wait(self._process, socket)
            return socket

    def _start(self, socket: Path) -> "subprocess.Popen[bytes]":
        forward = f"{socket}:{self._target}"
        try:
            with (self._folder / "log").open("wb") as log:
                return subprocess.Popen(
                    ["ssh", "-N", "-L", forward, *_OPTIONS, "--", self._destination],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise UnavailableError(
                f"ssh cannot be run: {error.strerror}", hint="apt-get install openssh-client"
            ) from error

    def _wait(self, process: "subprocess.Popen[bytes]", socket: Path) -> None:
        until = time.monotonic() + _START_SECONDS
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > until:
                said = (self._folder / "log").read_text(errors="replace").strip().rpartition("\n")[2]
                self._end()
                raise UnavailableError(
                    f"no way to {self._destination} by ssh: {said or 'it does not answer'}",
                    hint=f"Try `ssh {self._destination} true`: it must work without a password.",
                )
            time.sleep(_POLL_SECONDS)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self) -> None:
        """May be repeated."""
        with self._lock:
            self._end()
            for left in (self._folder / "farm", self._folder / "log"):
                left.unlink(missing_ok=True)
            if self._folder.exists():
                os.rmdir(self._folder)
