"""Starts a process that imports all modules of a pod before any pod is requested, so that the first pod
starts faster."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gridmill.domain.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyProcess:
    """A process (`gridmill.pod.standby`) that waits to become a pod, and the socket on which it waits."""

    process: subprocess.Popen[bytes]
    link: socket.socket

    def become(self, folder: Path, *, lock: int, log: int) -> bool:
        """Makes the waiting process the pod of this folder. Returns False if the waiting process does not
        exist any more."""
        with self.link:
            try:
                socket.send_fds(self.link, [os.fsencode(folder)], [lock, log])
            except OSError:
                self.process.wait()
                return False
        return True

    def end(self) -> None:
        """Ends the waiting process, because it is not needed."""
        self.link.close()
        self.process.kill()
        self.process.wait()


def start_ahead(environment: Mapping[str, str]) -> StandbyProcess:
    """Starts the process. Raises OSError."""
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
