"""Linux namespaces by system calls: separate processes, mounts and shared memory for a pod.

`separate_processes` makes the next child the first process of a new namespace. The processes in this
namespace cannot see, signal or trace processes outside it, and the kernel ends all of them when the first
process ends. `separate_files` gives separate mounts to the process that calls it.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

_NEW_MOUNTS, _NEW_PROCESSES, _NEW_IPC = 0x00020000, 0x20000000, 0x08000000
_NOSUID, _NODEV, _NOEXEC, _REC, _PRIVATE, _BIND = 2, 4, 8, 16384, 1 << 18, 4096
_ATTR_RDONLY, _ATTR_NOSUID = 1, 2
_SYS_MOUNT_SETATTR = 442
"""The system call mount_setattr has the same number on every type of machine."""
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _SIGKILL = 1, 38, 9
_CGROUPS = "/sys/fs/cgroup"


class _MountAttributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user_namespace"))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def separate_processes() -> None:
    """Makes the next child the first process of a new namespace of processes. Raises OSError."""
    _check(_libc().unshare(_NEW_PROCESSES), "unshare")


def gain_nothing() -> None:
    """Makes set-user-ID bits ineffective: no program that this process executes gets more rights."""
    _check(_libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def end_with_parent() -> None:
    """Asks the kernel to kill this process when its parent ends. A change of the user cancels this request,
    so this function must be called after the change."""
    _check(_libc().prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "prctl")


def separate_files(
    *, private: Sequence[tuple[str, str]], writable: Sequence[str], visible: Sequence[str], shared_bytes: int
) -> bool:
    """Gives this process separate mounts, shared memory and message queues.

    In each pair of `private`, the first folder replaces the second folder. All files of the machine become
    read-only, except files in the folders `writable`. The folder /proc shows only the processes of the new
    namespace. Returns False if the files are still writable, because an old kernel cannot make them
    read-only. Raises OSError.
    """
    _check(_libc().unshare(_NEW_MOUNTS | _NEW_IPC), "unshare")
    _mount("none", "/", "", _REC | _PRIVATE)
    read_only = _make_read_only()
    hidden = [place for _, place in private]
    kept = [(folder, folder in writable) for folder in _outermost({*writable, *visible}, writable)]
    opened = [(os.open(folder, os.O_PATH | os.O_DIRECTORY), folder, free) for folder, free in kept]
    sources = [
        (os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW), place) for source, place in private
    ]
    os.umask(0o066)  # so that folders on the way to other folders can be passed but not listed
    for descriptor, place in sources:
        _bind(descriptor, place, writable=True)
    for descriptor, folder, free in opened:
        if free or any(Path(folder).is_relative_to(place) for place in hidden):
            os.makedirs(folder, exist_ok=True)
            _bind(descriptor, folder, writable=free)
    for descriptor in (*(one[0] for one in opened), *(one[0] for one in sources)):
        os.close(descriptor)
    _own_kernel_files(shared_bytes)
    return read_only


def _outermost(folders: set[str], writable: Sequence[str]) -> Iterator[str]:
    """Yields the folders that are not inside another folder of the set, and all writable folders. Outer
    folders come first."""
    for folder in sorted(folders):
        if folder in writable or not any(Path(folder).is_relative_to(one) for one in folders - {folder}):
            yield folder


def _make_read_only() -> bool:
    try:
        _set_attributes("/", _ATTR_RDONLY | _ATTR_NOSUID, recursive=True)
    except OSError:
        return False
    for tree in (_CGROUPS, *_folders_in(_CGROUPS)):
        if os.path.ismount(tree):
            with suppress(OSError):
                _set_attributes(tree, 0, clear=_ATTR_RDONLY)
    return True


def _folders_in(folder: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _own_kernel_files(shared_bytes: int) -> None:
    if os.path.isdir("/dev/shm"):
        _mount("tmpfs", "/dev/shm", "tmpfs", _NOSUID | _NODEV, f"mode=1777,size={max(shared_bytes, 2**26)}")
    if os.path.isdir("/dev/mqueue"):
        with suppress(OSError):
            _mount("mqueue", "/dev/mqueue", "mqueue", _NOSUID | _NODEV | _NOEXEC)
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)


def _bind(descriptor: int, place: str, *, writable: bool) -> None:
    """Mounts the folder that is open at `descriptor` at the path `place`."""
    _mount(f"/proc/self/fd/{descriptor}", place, "", _BIND | _REC)
    with suppress(OSError):
        if writable:
            _set_attributes(place, _ATTR_NOSUID, clear=_ATTR_RDONLY)


def _mount(source: str, place: str, kind: str, flags: int, data: str = "") -> None:
    words = [word.encode() if word else None for word in (source, place, kind, data)]
    result = _libc().mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3])
    _check(result, f"mount {place}")


def _set_attributes(place: str, attributes: int, *, clear: int = 0, recursive: bool = False) -> None:
    wanted = _MountAttributes(attributes, clear, 0, 0)
    result = _libc().syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        _AT_FDCWD,
        place.encode(),
        _AT_RECURSIVE if recursive else 0,
        ctypes.byref(wanted),
        ctypes.c_size_t(ctypes.sizeof(wanted)),
    )
    _check(result, f"mount_setattr {place}")


def is_supported() -> bool:
    """Returns whether this machine runs Linux and the user is root. `python -m gridmill.pod.confined` tests
    what the machine really permits."""
    return sys.platform == "linux" and os.geteuid() == 0
