"""The small process that forks the processes of commands for a pod: `python -I -S forker.py FD POD`.

It imports nothing of Gridmill: to fork it takes a third of the time that it takes to fork the pod. FD is a
SOCK_SEQPACKET socket. Each message names the cgroups to enter and brings the socket of a new process. That is
a child of the pod (CLONE_PARENT), whose number is POD. It enters the cgroups, says its number and waits for
its command.
"""

import ctypes
import gc
import json
import os
import signal
import socket
import sys
from typing import Any, NoReturn

MESSAGE_BYTES = 512 * 1024
"""Largest message about a command."""
REQUEST_BYTES = 16 * 1024
CLONE_NUMBERS = {"x86_64": 56, "aarch64": 220}
"""The system call `clone`, by machine."""
_CLONE_PARENT = 0x00008000
_PR_SET_PDEATHSIG = 1
_PIPES = 3
_FIRST_TO_GO = b"500"
_RESET = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)


def main(link: socket.socket, pod: int) -> None:
    """Until the pod closes the link, or ends."""
    libc = ctypes.PyDLL(None)  # keeps the interpreter's lock, so that the new process has it
    _settle(libc, pod)
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    clone = CLONE_NUMBERS[os.uname().machine]
    _try_to_write("/proc/self/oom_score_adj", _FIRST_TO_GO)  # new processes have the same
    gc.disable()  # it keeps nothing
    gc.freeze()
    while True:
        data, descriptors, _, _ = socket.recv_fds(link, REQUEST_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return
        (own,) = descriptors
        zero = ctypes.c_long(0)
        flags = ctypes.c_long(_CLONE_PARENT | signal.SIGCHLD)
        if libc.syscall(ctypes.c_long(clone), flags, zero, zero, zero, zero) == 0:
            _be_the_child(libc, own, json.loads(data), pod)
        os.close(own)


def _settle(libc: ctypes.CDLL, pod: int) -> None:
    """Be killed when the pod dies."""
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != pod:
        os._exit(1)


def _be_the_child(libc: ctypes.CDLL, own: int, joins: list[str], pod: int) -> NoReturn:
    try:
        os.setsid()
        for procs in joins:
            _write(procs, b"0")
        _settle(libc, pod)
        os.write(own, str(os.getpid()).encode())
        mine = socket.socket(fileno=own)
        data, descriptors, _, _ = socket.recv_fds(mine, MESSAGE_BYTES, _PIPES, socket.MSG_CMSG_CLOEXEC)
        if data:
            _become(json.loads(data), descriptors)
    finally:
        os._exit(1)


def _become(command: dict[str, Any], pipes: list[int]) -> None:
    """Execute it; what prevents that is written to a file of the attempt."""
    try:
        _wire(pipes)
        if command["affinity"]:
            os.sched_setaffinity(0, command["affinity"])
        os.chdir(command["folder"])
        os.execvpe(command["argv"][0], command["argv"], command["environment"])
    except OSError as error:
        with open(command["trouble"], "w") as file:
            file.write(str(error.errno or 0))


def _wire(pipes: list[int]) -> None:
    """Descriptors 0 to 3 as the command is to find them: executing closes all others."""
    sources = [_above(one) for one in (os.open(os.devnull, os.O_RDONLY), *pipes)]
    for target, source in enumerate(sources):
        os.dup2(source, target, inheritable=True)


def _above(descriptor: int) -> int:
    """The descriptor, moved out of the way of 0 to 3."""
    while descriptor <= _PIPES:
        descriptor = os.dup(descriptor)
    return descriptor


def _try_to_write(path: str, data: bytes) -> None:
    try:
        _write(path, data)
    except OSError:
        return


def _write(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
