"""Starts a control node as a separate process, which runs as long as it has clients."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

from gridmill.codec import decode
from gridmill.errors import StorageError, from_body
from gridmill.rpc.protocol import receive_frame
from gridmill.settings import Settings, as_variables, whole_environment

LOG = "control.log"
"""The name of the log file in the home for control nodes that were started by commands."""
_LOG_BYTES = 2**20
_START_SECONDS = 90.0
"""The time limit in seconds for the start of a control node: it covers imports, opening the store, and up to
15 s for another control node to end."""


def start_node(settings: Settings) -> socket.socket | None:
    """Start a control node and wait until it answers. The caller closes the returned socket after it has
    connected as a client. Returns None if the process was killed before it answered, or failed without a
    message.

    The new process has the environment of this process and no terminal, so signals of this terminal do not
    reach it. If the start fails, raises HomeInUseError, StoreInUseError, StorageError or InputError.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = _spawn(settings, theirs)
        process.wait()  # returns soon, because this process only forks the control node and ends
        ours.settimeout(_START_SECONDS)
        is_up = _is_up(ours)
    except BaseException:
        ours.close()
        raise
    if not is_up:
        ours.close()
        return None
    return ours


def _spawn(settings: Settings, starter: socket.socket) -> "subprocess.Popen[bytes]":
    with _log(settings.home) as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "gridmill.embedded", str(starter.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={
                **whole_environment(),
                **as_variables(settings),
                "GRIDMILL_HOME": str(settings.home),
                "GRIDMILL_FAULT": settings.fault,
            },
            pass_fds=(starter.fileno(),),
            start_new_session=True,
        )


def _log(home: Path) -> IO[bytes]:
    """Open the log, which only the user can read. If the log is long, the log is first renamed, and a log
    that was renamed earlier is overwritten."""
    path = home / LOG
    try:
        if path.exists() and path.stat().st_size > _LOG_BYTES:
            path.replace(path.with_name(f"{LOG}.1"))
        return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror}",
            hint="Use a folder that you can write to: export GRIDMILL_HOME=FOLDER",
        ) from error


def _is_up(starter: socket.socket) -> bool:
    try:
        parts = receive_frame(starter)
    except OSError:
        parts = None
    if parts is not None and parts[0]:
        raise from_body(decode(parts[0], dict[str, object]))
    return parts is not None
