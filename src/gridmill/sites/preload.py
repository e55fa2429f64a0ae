"""Starts a process that imports what a pod needs before there is a pod to bring up."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gridmill.domain.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyProcess:
    """The process (`gridmill.pod.standby`) and what it listens to."""

    process: subprocess.Popen[bytes]
    link: socket.socket

    def become(self, folder: Path, *, lock: int, log: int) -> bool:
        """Let it be the pod of that folder; False when it is no longer there."""
        with self.link:
            try:
                socket.send_fds(self.link, [os.fsencode(folder)], [lock, log])
            except OSError:
                self.process.wait()
                return False
        return True

    def end(self) -> None:
        """It is not needed."""
        self.link.close()
        self.process.kill()
        self.process.wait()


def start_ahead(environment: Mapping[str, str]) -> StandbyProcess:
    """Start it. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gridmill.pod.standby", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    return StandbyProcess(process=process, link=ours)
