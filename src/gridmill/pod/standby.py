"""`python -m gridmill.pod.standby FD`: a process that imports all modules of a pod before it becomes a pod.

FD is the descriptor of a socket. Over the socket, the process receives the pod's folder, lock and log once.
If the socket is closed before the process receives a pod, the process ends.
"""

import os
import socket
import sys
from pathlib import Path

from gridmill.plugins import find
from gridmill.pod.__main__ import main as be_pod

_PATH_BYTES = 4096 * 4


def main(descriptor: int) -> int:
    """Waits for the data of a pod, and then runs the pod. Returns the exit code of the pod, or 0 if no pod
    was needed."""
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
