"""Starting a control node as a process of its own: it lives as long as it has clients."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

from gridmill.calls.frames import receive_frame
from gridmill.codec import decode
from gridmill.errors import StorageError, UnavailableError, from_body
from gridmill.settings import Settings, as_variables, whole_environment

LOG = "control.log"
"""In the home: what control nodes that commands started had to say."""
_LOG_BYTES = 2**20
_START_SECONDS = 90.0
"""It imports itself, opens the store, and waits up to 15 s for another one that ends."""


def start_node(settings: Settings) -> socket.socket:
    """Start one and wait until it answers. Close what this gives once you are its client.

    It has this process's environment and no terminal; signals of this terminal do not reach it. Raises what
    keeps it from starting: HomeInUseError, StoreInUseError, StorageError, InputError; UnavailableError.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = _spawn(settings, theirs)
        process.wait()  # it forks, and that process goes on
        ours.settimeout(_START_SECONDS)
        _want_up(ours, settings.home)
    except BaseException:
        ours.close()
        raise
    return ours


def _spawn(settings: Settings, starter: socket.socket) -> "subprocess.Popen[bytes]":
    with _log(settings.home) as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "gridmill.node", str(starter.fileno())],
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
    """The log, for the user alone; what is long is put aside, in place of what was there before."""
    path = home / LOG
    try:
        if path.exists() and path.stat().st_size > _LOG_BYTES:
            path.replace(path.with_name(f"{LOG}.1"))
        return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror}",
            hint="Set GRIDMILL_HOME to a folder you can write to.",
        ) from error


def _want_up(starter: socket.socket, home: Path) -> None:
    try:
        parts = receive_frame(starter)
    except OSError:
        parts = None
    if parts is None:
        raise UnavailableError(f"the control node for {home} did not start", hint=f"{home / LOG} says why.")
    if parts[0]:
        raise from_body(decode(parts[0], dict[str, object]))
