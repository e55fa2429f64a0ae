"""`python -m gridmill.pod.standby FD`: a process that imports what a pod needs before it becomes a pod.

FD is a socket. It receives the pod's folder, lock and log once. If the socket ends before, the process ends.
"""

import os
import socket
import sys
from pathlib import Path

from gridmill.plugins import find
from gridmill.pod.__main__ import main as be_pod

_PATH_BYTES = 4096 * 4


def main(descriptor: int) -> int:
    """Waits, then runs the pod. Returns the pod's exit code; 0 if no pod was needed."""
    find("links", "unix")
    with socket.socket(fileno=descriptor) as link:
        data, descriptors, _, _ = socket.recv_fds(link, _PATH_BYTES, 2)
    if not data:
        return 0
    lock, log = descriptors
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    os.close(log)
    folder = Path(os.fsdecode(data))
    os.chdir(folder)
    return be_pod(folder, lock)


if __name__ == "__main__":
    code = main(int(sys.argv[1]))
    sys.stderr.flush()
    os._exit(code)  # exit at once: taking the interpreter apart would delay the pod's end
