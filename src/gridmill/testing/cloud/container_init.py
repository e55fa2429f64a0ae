"""The first process of a container of a simulated batch service: `container_init.py PARENT COMMAND…`.

All processes of the container are descendants of this process, also those whose parents have ended, so that
it can kill them all. It ends with the exit code of the command, after it has killed the others. It is
executed as a file, without the packages of the image.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

KILL = signal.SIGUSR1
"""The signal after which all processes of the container are killed."""
AWAITED = frozenset({signal.SIGTERM, signal.SIGCHLD, KILL})
"""The signals that this process waits for. The process that starts it blocks these signals before, so that
none of them is lost."""
_NOT_EXECUTED = 127
_DEATH_SIGNAL, _CHILD_SUBREAPER = 1, 36
"""The options PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of prctl(2)."""


def main(words: Sequence[str]) -> int:
    """Runs the command, and returns its exit code, or 128 plus the number of the signal that ended it."""
    parent, *command = words
    prctl = ctypes.CDLL(None).prctl
    prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(_DEATH_SIGNAL, int(KILL), 0, 0, 0)
    if os.getppid() != int(parent):
        return 128 + signal.SIGKILL
    first = _start(command)
    code = _wait(first)
    _kill_children()
    return code


def _start(command: Sequence[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
        os.execvpe(command[0], list(command), _given_environment())
    except (OSError, IndexError) as error:
        os.write(2, f"{' '.join(command[:1])}: {error}\n".encode())
    finally:
        os._exit(_NOT_EXECUTED)


def _given_environment() -> dict[bytes, bytes]:
    """Returns the environment of this process without the variable LC_CTYPE that Python adds."""
    with open("/proc/self/environ", "rb") as file:
        pairs = (one.partition(b"=") for one in file.read().split(b"\0") if one)
        return {name: value for name, _, value in pairs}


def _wait(first: int) -> int:
    """Reaps children and obeys signals until the first child has ended. Returns its exit code."""
    while True:
        match signal.sigwait(AWAITED):
            case signal.SIGTERM:
                os.kill(first, signal.SIGTERM)
            case signal.SIGCHLD:
                code = _reap(first)
                if code is not None:
                    return code
            case _:
                return 128 + signal.SIGKILL


def _reap(first: int) -> int | None:
    """Reaps all children that have ended. Returns the exit code of the first child if it has ended."""
    found = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            if pid == first:
                code = os.waitstatus_to_exitcode(status)
                found = code if code >= 0 else 128 - code
    return found


def _kill_children() -> None:
    """Kills all children. The children of a killed process become children of this process, until none is
    left."""
    with suppress(ChildProcessError):
        while True:
            for pid in _children():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def _children() -> Iterator[int]:
    own = str(os.getpid())
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
            # PID (NAME) STATE PARENT …, and the name may contain spaces and parentheses
            if file.read().rpartition(")")[2].split()[1] == own:
                yield int(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
