"""Confines the pods of a tenant on this machine, and makes the folders of the tenant in a way that is safe
against links.

The files and folders that control pods belong to the farm. The jobs of a tenant have a separate home folder.
"""

import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from gridmill.codec import decode, encode
from gridmill.domain.amounts import Amounts
from gridmill.domain.confinement import ConfinedPod, Confinement, Isolation
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import PodOrder
from gridmill.errors import InputError, StorageError
from gridmill.farm.unix_users import FIRST_USER, PASS, acting_as
from gridmill.settings import Settings

PROGRAM = (sys.executable, "-P", "-m", "gridmill.pod.confined")
_PRIVATE, _TRIES = 0o700, 3
_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFolders:
    """The folders of one tenant on the farm. `home` contains the socket and the folders of pods, and belongs
    to the farm. `user` is the home folder of the tenant's jobs, and `root` is their storage root."""

    folder: Path
    root: Path
    user: int | None

    @property
    def home(self) -> Path:
        """Returns the folder with the socket and the folders of pods. The folder with the socket and the
        pods belongs to the farm."""
        return self.folder / "home"

    @property
    def person(self) -> Path:
        """Returns the home folder of the tenant's jobs."""
        return self.folder / "user"

    @property
    def records(self) -> Path:
        """Returns the folder with a record for each pod that was started in confinement."""
        return self.folder / "confined"

    @property
    def scratch(self) -> Path:
        """Returns the folder that contains the private folders of pods."""
        return self.folder / "scratch"

    @property
    def written(self) -> tuple[Path, ...]:
        """Returns the folders whose files count against the disk limit of the tenant."""
        return (self.home, self.root, *((self.person, self.scratch) if self.user is not None else ()))

    def make(self) -> None:
        """Makes the folders that are missing. If there is a link or a file at the path of a folder, it is
        deleted. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(PASS)
        owner = self.user
        if owner is None:
            for one in (self.home, self.home / "pods", self.root):
                own_folder(one, None, _PRIVATE)
            return
        for one in (self.home, self.home / "pods"):
            own_folder(one, 0, PASS)
        for one in (self.records, self.scratch):
            own_folder(one, 0, _PRIVATE)
        for one in (self.home / "attempts", self.home / "cache", self.person, self.root):
            own_folder(one, owner, _PRIVATE)

    def make_pods(self, pods: Iterable[str]) -> None:
        """Makes the folders of pods, which belong to the user of the tenant. Raises OSError."""
        if self.user is not None:
            with acting_as(0):
                for pod in pods:
                    own_folder(self.home / "pods" / pod, self.user, _PRIVATE)


def own_folder(path: Path, user: int | None, mode: int) -> None:
    """Makes a folder with this user and mode, or corrects the user and mode of an existing folder. The
    parent of the folder belongs to the farm. If there is a link or a file at the path, it is deleted,
    because a job can put a link there. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(_TRIES):
        with suppress(FileExistsError):
            path.mkdir(mode=mode)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            break
        except NotADirectoryError:
            path.unlink()
    else:
        raise StorageError(
            "cannot create this folder: another file with this name is created repeatedly", place=str(path)
        )
    try:
        if user is not None and os.fstat(descriptor).st_uid != user:
            os.fchown(descriptor, user, user)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


@cache
def look_at_isolation(cgroups: bool) -> Isolation:
    """Returns which kinds of isolation this machine supports. The machine is tested once."""
    try:
        tried = subprocess.run(
            [*PROGRAM, "--probe", str(FIRST_USER - 1)],
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            cwd="/",
        )
        isolation = decode(tried.stdout, Isolation)
    except (OSError, subprocess.TimeoutExpired, InputError) as error:
        return Isolation(problem=f"the test of it failed: {error}")
    if cgroups:
        return isolation
    return Isolation(
        namespaces=isolation.namespaces,
        read_only=isolation.read_only,
        problem="control groups are not used (GRIDMILL_CGROUPS=0)",
    )


def why_not_isolated(isolation: Isolation) -> str:
    """Returns the reason why jobs of one tenant could exhaust the machine for other tenants or end their
    processes. The text is empty if the jobs of one tenant cannot harm other tenants in this way."""
    if isolation.is_complete:
        return ""
    missing = "limits of memory, processes and CPUs" if not isolation.groups else "namespaces"
    return f"this machine permits no {missing} for the jobs of each tenant ({isolation.problem})"


class PodConfiner:
    """Starts the pods of one tenant in confinement. Implements `sites.processes.Confiner`."""

    def __init__(
        self,
        folders: TenantFolders,
        user: int,
        settings: Settings,
        isolation: Isolation,
        node: Callable[[], Amounts],
    ) -> None:
        self._folders, self._user, self._settings = folders, user, settings
        self._isolation, self._node = isolation, node

    def command(self, order: PodOrder, folder: Path, words: Sequence[str]) -> list[str]:
        """Returns the command line that runs `words` in confinement."""
        folders, shared = self._folders, self._settings.farm_folders
        confinement = Confinement(
            user=self._user,
            farm=f"gridmill-farm-{zlib.crc32(str(self._settings.home).encode()):08x}",
            pod=order.pod_id,
            capacity=order.capacity,
            node=self._node(),
            command=tuple(words),
            folder=str(folder),
            record=str(self._record(order.pod_id)),
            scratch=str(folders.scratch / order.pod_id) if self._isolation.namespaces else "",
            writable=(*map(str, (folders.home, folders.person, folders.root)), *shared),
            visible=_python_folders(),
            groups=bool(self._isolation.groups),
            namespaces=self._isolation.namespaces,
        )
        return [*PROGRAM, encode(confinement).decode()]

    def environment(self) -> dict[str, str | None]:
        """Returns the environment variables of a pod that differ from the variables of the farm. The value
        None means that the variable is not set."""
        name = f"gridmill-{self._user}"
        person = {"HOME": str(self._folders.person), "USER": name, "LOGNAME": name}
        return {**person, "TMPDIR": None, "TEMP": None, "TMP": None}

    def _record(self, pod: str) -> Path:
        return self._folders.records / pod

    def pid(self, pod: str) -> int | None:
        """Returns the id of the process that supervises a pod, or None if there is no such process."""
        with acting_as(0):
            try:
                noted = decode(self._record(pod).read_bytes(), ConfinedPod)
            except (OSError, InputError):
                return None
        return noted.pid if _start_time(noted.pid) == noted.started else None

    def clear(self, pods: Iterable[str]) -> None:
        """Ends these pods, whatever the files in their folders contain, and deletes everything that they
        left outside these folders."""
        with acting_as(0):
            for pod in pods:
                if self._record(pod).exists():
                    self._clear(pod)

    def clear_all(self) -> None:
        """Ends all pods of the tenant."""
        with acting_as(0):
            records = [path.name for path in self._folders.records.iterdir() if not path.name.startswith(".")]
        self.clear(records)

    def _clear(self, pod: str) -> None:
        pid = self.pid(pod)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        words = [*PROGRAM, "--clear", str(self._record(pod))]
        subprocess.run(words, cwd="/", capture_output=True, timeout=_SECONDS, check=False)


def _start_time(pid: int) -> int:
    """Returns the start time of a process in ticks since boot, or 0 if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


@cache
def _python_folders() -> tuple[str, ...]:
    """Returns the folders of the present Python installation and of Gridmill."""
    wanted = (sys.prefix, sys.base_prefix, *sys.path)
    return tuple(dict.fromkeys(str(Path(one)) for one in wanted if one and Path(one).is_dir()))
