"""The small process that forks the processes of commands for a pod. The pod starts the small process as
`python -I -S forker.py FD POD`.

This process imports nothing of Gridmill, because forking it takes a third of the time that forking the pod
takes. FD is the descriptor of a SOCK_SEQPACKET socket, and POD is the process id of the pod. Each message of
the pod contains the files of the cgroups to enter (with NUL between them) and passes the socket of a new
process. The new process is a child of the pod (CLONE_PARENT). The new process enters the cgroups, sends its
process id and an address, and waits for its command. The command is a block of bytes that the process reads
into its memory at that address. The pointers in the block (`HEADER`) are valid at that address. A new
process makes no Python objects, because each memory page to which it writes costs 5 microseconds.
"""

import ctypes
import errno
import fcntl
import gc
import mmap
import os
import signal
import struct
import sys
from _socket import MSG_CMSG_CLOEXEC, SCM_RIGHTS, SOL_SOCKET, SocketType
from contextlib import suppress

HEADER = struct.Struct("<16q")
"""The header of a command. The header has pointers to the path of the file for the error number, to the
folder, to the arguments and to the environment (the last two end with a null pointer). The header also
contains the offset of the list of CPUs and the length of this list, the number of programs to try, and
pointers to these programs."""
PROGRAMS = 9
"""The largest number of programs that are tried for a command."""
HELLO = struct.Struct("<2q")
"""The first message of a new process: its process id, and the memory address to which it reads its
command."""
REGION_BYTES = 128 * 1024
"""The largest size of the text of a command, in bytes."""
CLONE_NUMBERS = {"x86_64": 56, "aarch64": 220}
"""The number of the system call `clone` for each type of machine."""
_CLONE_PARENT = 0x00008000
_PR_SET_PDEATHSIG = 1
_PIPES = struct.Struct("=3i")
_REQUEST_BYTES = 16 * 1024
_ANCILLARY_BYTES = 64
_HIGH = 10  # higher than the descriptors of a command, so that none of them overwrites the link
_FIRST_TO_GO = b"500"
_RESET = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)


class Forker:
    """Forks processes on request until the pod closes the link or ends."""

    def __init__(self, link: SocketType, pod: int) -> None:
        self._link, self._pod = link, pod
        self._region = mmap.mmap(-1, REGION_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._region))
        self._libc = _libc()
        self._flags = _CLONE_PARENT | int(signal.SIGCHLD)
        self._clone = CLONE_NUMBERS[os.uname().machine]

    def serve(self) -> None:
        """Forks the requested process."""
        self.die_with_pod()
        while True:
            data, found, _, _ = self._link.recvmsg(_REQUEST_BYTES, _ANCILLARY_BYTES, MSG_CMSG_CLOEXEC)
            if not data:
                return
            [(level, kind, descriptor)] = found
            if (level, kind) != (SOL_SOCKET, SCM_RIGHTS):
                return
            own = SocketType(fileno=int.from_bytes(descriptor[:4], sys.byteorder))
            joins = [one for one in data.split(b"\0") if one]
            if self._libc.syscall(self._clone, self._flags, 0, 0, 0, 0) == 0:
                try:
                    self._wait(own, joins)
                finally:
                    os._exit(1)
            own.close()

    def die_with_pod(self) -> None:
        """Asks the kernel to kill this process when the pod dies."""
        self._libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != self._pod:
            os._exit(1)

    def _wait(self, own: SocketType, joins: list[bytes]) -> None:
        """The new process."""
        os.setsid()
        for procs in joins:
            _write(procs, b"0")
        self.die_with_pod()
        own.send(HELLO.pack(os.getpid(), self._address))
        size, found, _, _ = own.recvmsg_into([self._region], _ANCILLARY_BYTES, MSG_CMSG_CLOEXEC)
        if size:
            self._become(found[0][2])

    def _become(self, pipes: bytes) -> None:
        """Executes the command in the new process. If the command cannot be executed, the error number is
        written to a file of the attempt."""
        trouble, folder, argv, environment, cpus, count, programs, *tried = HEADER.unpack_from(self._region)
        for target, source in enumerate(_PIPES.unpack(pipes), 1):
            os.dup2(source, target, inheritable=True)
        if count:
            os.sched_setaffinity(0, struct.unpack_from(f"<{count}q", self._region, cpus))
        number = 0
        if self._libc.chdir(folder):
            number = ctypes.get_errno()
        else:
            for program in tried[:programs]:
                self._libc.execve(program, argv, environment)
                # execvp() also reports another error rather than that a file is missing in one of the folders
                if number in (0, errno.ENOENT, errno.ENOTDIR):
                    number = ctypes.get_errno()
        _write(ctypes.string_at(trouble), str(number).encode(), os.O_CREAT)


def _libc() -> ctypes.PyDLL:
    """Returns the C library. Calls of this C library do not release the interpreter's lock, so that a new
    process has the lock."""
    libc = ctypes.PyDLL(None, use_errno=True)
    libc.syscall.argtypes, libc.syscall.restype = [ctypes.c_long] * 6, ctypes.c_long
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    libc.chdir.argtypes, libc.execve.argtypes = [ctypes.c_void_p], [ctypes.c_void_p] * 3
    return libc


def _write(path: str | bytes, data: bytes, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_WRONLY | flags, 0o600)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def main(descriptor: int, pod: int) -> None:
    """Prepares this process in the same way as the new processes, and then serves the pod."""
    link = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    os.close(descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(0, 3)  # occupies the descriptor 3, so that no pipe gets this number
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with suppress(OSError):
        _write("/proc/self/oom_score_adj", _FIRST_TO_GO)
    forker = Forker(SocketType(fileno=link), pod)
    gc.disable()
    gc.freeze()
    forker.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
