"""Measures the memory of processes as a cgroup would measure it, for machines without cgroups.

The sum includes anonymous memory (memory pages that forked processes share count once), swap, and shared
memory. Shared memory consists of the files in tmpfs (`/dev/shm`) and memfds, including files that no process
has open or mapped. Each file in memory counts once, and only with the bytes by which the file has grown
since the attempt started. Cached pages of files on disks do not count, because the kernel frees them when
memory is short.
"""

import os
import resource
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path

from gridmill.domain.amounts import MIB
from gridmill.domain.frozen import dataclass

SHARED_MEMORY = "/dev/shm"
_CLOCK_SECONDS = 0.05
"""The modification time of a file may be this many seconds behind the clock."""
_MOST_FILES = 1000
"""The largest number of shared files of one attempt that are measured."""
_BLOCK = 512
_REPEATS = 3
"""How often the memory is measured again while processes that share pages end."""
_INEXACT_BYTES = MIB
"""The kernel may count the resident pages of a process with an error of a few pages for each thread."""

_File = tuple[int, int]
"""The device number and the inode number of a file in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The memory of one process in bytes, as the kernel reports it.

    `resident` is the memory of all its pages, and `divided` says whether the other parts leave out a share
    of pages that other processes have too.
    """

    private: int = 0
    shared: int = 0
    resident: int = 0
    divided: bool = False


@dataclass(slots=True, kw_only=True)
class _SharedFile:
    """A file in memory: its path, and the size that it had when the attempt started."""

    path: str
    before: int
    size: int


class MemoryUse:
    """Measures the memory of one attempt. `began` is the wall clock time when the attempt started. Files
    that changed later belong to the attempt."""

    def __init__(self, began: float | None = None) -> None:
        self._began = (time.time() if began is None else began) - _CLOCK_SECONDS
        self._files: dict[_File, _SharedFile] = {}
        self._present = _files_there()

    def look(self, pids: Iterable[int]) -> None:
        """Records which files in memory these processes use."""
        for pid in pids:
            self._see(_open_files(pid))
            for key, path in _mapped_files(pid):
                self._note_path(key, path)

    def knows(self, key: _File) -> bool:
        """Returns whether an earlier measurement found that processes of the attempt use this file."""
        return key in self._files

    def bytes_of(self, pids: Iterable[int]) -> int:
        """Returns the number of bytes that the processes use now. Processes that have ended are ignored.

        A page that several processes share counts in parts, one part in each process. If one of the processes
        ends while the others are read, its part counts twice: in its own value, and in the values of the
        others, which have larger parts now. Then the memory is measured again.
        """
        pids = tuple(pids)
        least, certain = self._measure(pids)
        for _ in range(_REPEATS):
            if certain:
                break
            bytes_, certain = self._measure(pids)
            least = min(least, bytes_)
        return least

    def _measure(self, pids: tuple[int, ...]) -> tuple[int, bool]:
        """Returns the number of bytes that the processes use, and whether no page was counted twice."""
        parts = {pid: _parts(pid) for pid in pids}
        seen: set[_File] = set()
        for pid in pids:
            seen |= self._see(_open_files(pid))
        mapped = 0
        for pid, part in parts.items():
            if part.shared:
                mapped += self._mapped(pid, seen)
        self._update_unseen(seen)
        kept = sum(max(0, file.size - file.before) for file in self._files.values())
        certain = not any(part.divided and _shrank(pid, part.resident) for pid, part in parts.items())
        return sum(part.private for part in parts.values()) + mapped + kept, certain

    def left_behind(self) -> dict[_File, str]:
        """Returns the device and inode of files in /dev/shm that the attempt made and that still exist. The
        processes of the attempt used these files, and the files did not exist before the attempt started.
        The values of the result are the paths of the files."""
        return {
            key: file.path
            for key, file in self._files.items()
            if key not in self._present
            and file.path.startswith(f"{SHARED_MEMORY}/")
            and _is_ours(key, file.path)
        }

    def _see(self, found: Iterable[tuple[_File, os.stat_result, str]]) -> set[_File]:
        """Records files in memory that are open."""
        seen = set()
        for key, status, path in found:
            seen.add(key)
            self._note(key, status, path)
        return seen

    def _note(self, key: _File, status: os.stat_result, path: str) -> None:
        size = status.st_blocks * _BLOCK
        known = self._files.get(key)
        if known is not None:
            known.size = size
        elif len(self._files) < _MOST_FILES:
            before = 0 if status.st_ctime >= self._began else size
            self._files[key] = _SharedFile(path=path, before=before, size=size)

    def _note_path(self, key: _File, path: str) -> bool:
        """Records a mapped file. Returns False if the name of the file does not identify the file."""
        status = _status(path) if path.startswith("/") and not path.endswith(" (deleted)") else None
        if status is None or (status.st_dev, status.st_ino) != key:
            return False
        self._note(key, status, path)
        return True

    def _mapped(self, pid: int, seen: set[_File]) -> int:
        """Returns the shared memory in bytes that the process maps and that belongs to no file with a known
        name."""
        total = 0
        for key, path, bytes_ in _shared_maps(pid):
            if key not in seen and self._note_path(key, path):
                seen.add(key)
            if key not in seen or key not in self._files:
                total += bytes_
        return total

    def _update_unseen(self, seen: set[_File]) -> None:
        """Updates the size of files that no process has open or maps. The memory of such a file stays in use
        until the name of the file is removed."""
        for key in [key for key in self._files if key not in seen]:
            status = _status(self._files[key].path)
            if status is None or (status.st_dev, status.st_ino) != key:
                del self._files[key]
            else:
                self._files[key].size = status.st_blocks * _BLOCK


def _is_ours(key: _File, path: str) -> bool:
    status = _status(path)
    return status is not None and (status.st_dev, status.st_ino) == key and status.st_uid == os.getuid()


def _files_there() -> frozenset[_File]:
    """Returns the files that are now in /dev/shm."""
    try:
        status = os.stat(SHARED_MEMORY)
    except OSError:
        return frozenset()
    return _files_in(status.st_dev, status.st_mtime_ns)


@lru_cache(maxsize=1)
def _files_in(device: int, _changed_ns: int) -> frozenset[_File]:
    """Returns the files in the folder. The result is cached while the folder has not changed."""
    try:
        with os.scandir(SHARED_MEMORY) as entries:
            return frozenset((device, entry.inode()) for entry in entries)
    except OSError:
        return frozenset()


def remove_left(left: Mapping[_File, str]) -> int:
    """Removes these files, except files that a living process uses. Returns the number of bytes that became
    free."""
    if not left:
        return 0
    freed, used = 0, _used_by_anyone(frozenset(left))
    for key, path in left.items():
        status = _status(path)
        if key not in used and status is not None:
            with suppress(OSError):
                os.unlink(path)
                freed += status.st_blocks * _BLOCK
    return freed


def _used_by_anyone(keys: frozenset[_File]) -> set[_File]:
    """Returns which of these files any process has open or maps. The function reads all processes of the
    machine, so it is used only for the few jobs that leave files."""
    used: set[_File] = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            used |= {key for key, _, _ in _open_files(int(name))} & keys
            used |= {key for key, _ in _mapped_files(int(name))} & keys
    return used


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=False)
    except OSError:
        return None


def _parts(pid: int) -> _Parts:
    """Reads the memory of a process from the summary of its mappings. If the summary cannot be read, the
    memory is read from the status of the process, which counts shared pages once for each process."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return read_rollup(file.read())
    except OSError:
        pass
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return read_status(file.read())
    except OSError:
        return _Parts()


def read_rollup(text: bytes) -> _Parts:
    """Parses the text of /proc/PID/smaps_rollup.

    Linux before version 5.4 does not list anonymous pages separately. For these versions, the function uses
    the smaller of two values as the private memory: the size of the anonymous pages, and the proportional
    size of all pages.
    """
    figures = _figures(text)
    swap, resident, anonymous = (figures.get(name, 0) for name in ("SwapPss", "Rss", "Anonymous"))
    private = figures.get("Pss_Anon", min(figures.get("Pss", 0), anonymous))
    shared = figures.get("Pss_Shmem", 0) if "Pss_Anon" in figures else figures.get("Pss", 0) - private
    divided = shared > 0 or anonymous - private > _INEXACT_BYTES
    return _Parts(private=private + swap, shared=shared, resident=resident, divided=divided)


def read_status(text: bytes) -> _Parts:
    """Parses the text of /proc/PID/status."""
    figures = _figures(text)
    return _Parts(
        private=figures.get("RssAnon", 0) + figures.get("VmSwap", 0), shared=figures.get("RssShmem", 0)
    )


def _shrank(pid: int, resident: int) -> bool:
    """Returns whether the process has ended, or has fewer resident pages than these bytes."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            pages = int(file.read().split()[1])
    except OSError:
        return True
    return pages * resource.getpagesize() < resident - _INEXACT_BYTES


def _figures(text: bytes) -> dict[str, int]:
    """Lines `Name: N kB`, in bytes."""
    words = (line.split() for line in text.splitlines())
    return {word[0].rstrip(b":").decode(): int(word[1]) * 1024 for word in words if word[2:3] == [b"kB"]}


def _open_files(pid: int) -> Iterator[tuple[_File, os.stat_result, str]]:
    """Yields the files in memory that the process has open."""
    devices = memory_devices()
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        link = f"/proc/{pid}/fd/{name}"
        try:
            status = os.stat(link)
            if status.st_dev in devices and stat.S_ISREG(status.st_mode):
                yield (status.st_dev, status.st_ino), status, os.readlink(link)
        except OSError:
            continue


def _mapped_files(pid: int) -> list[tuple[_File, str]]:
    """Returns the files in memory that the process maps."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    found = (_mapping(line, memory_devices()) for line in lines)
    return [one for one in found if one is not None]


def _shared_maps(pid: int) -> list[tuple[_File, str, int]]:
    """Returns the file, the path and the proportional size of each mapping of shared memory."""
    try:
        with open(f"/proc/{pid}/smaps", "rb") as file:
            text = file.read()
    except OSError:
        return []
    return read_maps(text, memory_devices())


def read_maps(text: bytes, devices: frozenset[int]) -> list[tuple[_File, str, int]]:
    """Returns the mappings of files on these devices, from the text of /proc/PID/smaps."""
    mappings: list[tuple[_File, str, int]] = []
    current: tuple[_File, str] | None = None
    for line in text.splitlines():
        if line.endswith(b"kB"):
            if current is not None and line.startswith(b"Pss:"):
                mappings.append((*current, int(line.split()[1]) * 1024))
        elif not line.startswith(b"VmFlags"):
            current = _mapping(line, devices)
    return mappings


def _mapping(line: bytes, devices: frozenset[int]) -> tuple[_File, str] | None:
    """Parses a line of the form `ADDRESSES PERMISSIONS OFFSET MAJOR:MINOR INODE PATH`."""
    words = line.split(maxsplit=5)
    if len(words) < 5 or words[4] == b"0":
        return None
    major, _, minor = words[3].partition(b":")
    device = os.makedev(int(major, 16), int(minor, 16))
    if device not in devices:
        return None
    return (device, int(words[4])), os.fsdecode(words[5]) if len(words) > 5 else ""


@cache
def memory_devices() -> frozenset[int]:
    """Returns the devices whose files are in memory: each tmpfs, and the device of memfds and anonymous
    shared memory."""
    devices = set()
    try:
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            if right.startswith("tmpfs "):
                major, minor = left.split()[2].split(":")
                devices.add(os.makedev(int(major), int(minor)))
        descriptor = os.memfd_create("gridmill")
        devices.add(os.fstat(descriptor).st_dev)
        os.close(descriptor)
    except (OSError, ValueError, AttributeError):
        pass
    return frozenset(devices)
