"""`python -m gridmill.pod.standby FD`: a process that imports what a pod needs before it becomes a pod.

FD is a socket. It receives once the pod's folder, its lock and its log; if the socket ends before, the
process ends.
"""

import os
import socket
import sys
from pathlib import Path

from gridmill.plugins import find
from gridmill.pod.__main__ import main as be_pod

_PATH_BYTES = 4096 * 4


def main(descriptor: int) -> int:
    """Wait, then be the pod: its exit code; 0 when none was wanted."""
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
    os._exit(code)  # whoever waits for the pod's end need not wait for its interpreter to be taken apart
