"""Starts a pod of a farm's tenant in confinement. Root runs this module as `python -m gridmill.pod.confined
CONFINEMENT`.

This process makes the pod's control groups and its private folders, starts the pod as the tenant's user in
separate namespaces, waits for it, and removes everything that the pod left. This process stays outside the
namespaces, so that no job can end it. If this process is killed, the kernel ends the pod and all processes
of the pod. With `--clear RECORD`, the module removes everything that a killed process of this module left.
With `--probe USER`, the module tests which kinds of isolation this machine permits, and prints an
`Isolation`.
"""

import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from gridmill.codec import decode, encode
from gridmill.domain.amounts import MIB, Amounts
from gridmill.domain.confinement import ConfinedPod, Confinement, Isolation, open_files, tenants_processes
from gridmill.errors import GridmillError
from gridmill.pod import processes
from gridmill.pod.cgroups import own_hierarchies
from gridmill.pod.namespaces import (
    end_with_parent,
    gain_nothing,
    is_supported,
    separate_files,
    separate_processes,
)
from gridmill.pod.tenant_groups import Machine, TenantGroups, plan_groups, read_machine, remove_groups
from gridmill.private_files import remove_tree

_PRIVATE = ("/tmp", "/var/tmp")
_LAST_TO_GO, _AS_OTHERS = "-900", "0"
_UMASK = 0o077
_NOT_STARTED = 70
"""The exit code if the pod could not be started. It is EX_SOFTWARE of sysexits.h."""
_PROBE, _WRITES = "probe", 2


def main(words: list[str]) -> int:
    """Runs the command line and returns the exit code of the pod, or 70 if the pod could not be started."""
    try:
        if words[0] == "--probe":
            sys.stdout.buffer.write(encode(probe(int(words[1]))))
            return 0
        if words[0] == "--clear":
            return 0 if clear(Path(words[1])) else 1
        return run(decode(words[0].encode(), Confinement))
    except (GridmillError, OSError) as error:
        sys.stderr.write(f"the pod could not be confined: {error}\n")
        return _NOT_STARTED


def run(confinement: Confinement, become: Callable[[], int] | None = None) -> int:
    """Starts the pod, waits for it, and removes everything that it leaves. If `become` is given, it is
    called instead of the command of the pod."""
    hierarchies = own_hierarchies()
    machine = read_machine(hierarchies)
    planned = plan_groups(hierarchies, confinement, machine) if confinement.groups else ()
    groups = TenantGroups(planned) if planned else None
    record = Path(confinement.record)
    _note(record, confinement, groups)
    try:
        _oom_score(_LAST_TO_GO)
        if groups is not None:
            groups.make(confinement.user)
        status = _wait_for(_fork(confinement, groups, machine, become))
    finally:
        clear(record)
    return os.waitstatus_to_exitcode(status)


def _note(record: Path, confinement: Confinement, groups: TenantGroups | None) -> None:
    """Writes the record of the pod before anything is made, so that a cleanup finds everything."""
    noted = ConfinedPod(
        pid=os.getpid(),
        started=processes.started(os.getpid()),
        groups=groups.folders if groups is not None else (),
        scratch=confinement.scratch,
    )
    written = record.with_name(f".{record.name}")
    written.write_bytes(encode(noted))
    written.rename(record)


def clear(record: Path) -> bool:
    """Ends and removes everything that a record names, and then removes the record. Returns whether
    everything was removed. May be repeated."""
    try:
        noted = decode(record.read_bytes(), ConfinedPod)
    except FileNotFoundError:
        return True
    gone = remove_groups(noted.groups)
    if noted.scratch:
        remove_tree(Path(noted.scratch))
    if gone:
        record.unlink(missing_ok=True)
    return gone


def _fork(
    confinement: Confinement,
    groups: TenantGroups | None,
    machine: Machine,
    become: Callable[[], int] | None,
) -> int:
    """Forks the process of the pod and returns its id."""
    if confinement.scratch:
        _make_scratch(Path(confinement.scratch), confinement.user)
    parent = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if confinement.namespaces:
        separate_processes()
    pid = os.fork()
    if pid == 0:
        _be_the_pod(confinement, groups, machine, parent, become)
    signal.signal(signal.SIGTERM, lambda number, _: _pass_on(pid, number))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return pid


def _make_scratch(scratch: Path, user: int) -> None:
    """Removes empty folders that a pod may have left if it was killed before it started."""
    scratch.mkdir(mode=0o700, exist_ok=True)
    for place in _PRIVATE:
        folder = scratch / place.strip("/").replace("/", "-")
        folder.mkdir(exist_ok=True)
        os.chown(folder, user, user, follow_symlinks=False)
        folder.chmod(0o1777)


def _pass_on(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait_for(pid: int) -> int:
    return os.waitpid(pid, 0)[1]


def _be_the_pod(
    confinement: Confinement,
    groups: TenantGroups | None,
    machine: Machine,
    parent: int,
    become: Callable[[], int] | None,
) -> NoReturn:
    try:
        _confine(confinement, groups, machine)
        end_with_parent()
        if not confinement.namespaces and os.getppid() != parent:
            os._exit(_NOT_STARTED)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if become is not None:
            os._exit(become())
        os.chdir(confinement.folder)
        os.execv(confinement.command[0], confinement.command)
    except BaseException as error:  # noqa: BLE001  nothing may return into the parent's code
        os.write(2, f"the pod could not be confined: {error}\n".encode())
    os._exit(_NOT_STARTED)


def _confine(confinement: Confinement, groups: TenantGroups | None, machine: Machine) -> None:
    """Sets all limits before the first instruction of the tenant is executed."""
    os.setsid()
    if groups is not None:
        groups.enter()
    if confinement.namespaces:
        separate_files(
            private=_private_folders(Path(confinement.scratch)),
            writable=confinement.writable,
            visible=confinement.visible,
            shared_bytes=confinement.capacity.memory_bytes,
        )
    _oom_score(_AS_OTHERS)
    _limit(machine)
    gain_nothing()
    user = confinement.user
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.umask(_UMASK)


def _private_folders(scratch: Path) -> list[tuple[str, str]]:
    """Returns the private folders and the paths that they replace. Paths that are links to other paths are
    left out."""
    places = {os.path.realpath(place): place for place in reversed(_PRIVATE) if os.path.isdir(place)}
    return [(str(scratch / place.strip("/").replace("/", "-")), real) for real, place in places.items()]


def _limit(machine: Machine) -> None:
    """Sets limits for the tenant's user that also work without control groups, and disables core files."""
    most = tenants_processes(machine.processes)
    files = _file_limit(machine)
    for kind, limit in (
        (resource.RLIMIT_NPROC, most),
        (resource.RLIMIT_NOFILE, files),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        lower = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (lower, lower))


def _file_limit(machine: Machine) -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        machine_files = int(Path("/proc/sys/fs/file-max").read_text())
    except (OSError, ValueError):
        machine_files = 2**20
    return open_files(hard if hard > 0 else 2**20, machine_files, machine.processes)


def _oom_score(text: str) -> None:
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(text)


def probe(user: int) -> Isolation:
    """Tests which kinds of isolation this machine permits for a pod of this user."""
    if not is_supported():
        return Isolation(problem="Gridmill does not run as root on Linux")
    with tempfile.TemporaryDirectory(prefix="gridmill-probe-") as made:
        place = Path(made)
        hierarchies = own_hierarchies()
        alone = _probe_of(place, user)
        planned = plan_groups(hierarchies, alone, read_machine(hierarchies))
        grouped, groups_problem = -1, "no control groups for memory, processes and CPUs"
        if planned:
            grouped, groups_problem = _tried(replace(alone, namespaces=False), _joins_own)
        # tried only once, because separating files cannot be undone
        separated, files_problem = _tried(replace(alone, groups=False), _looks_around)
    version = "v2" if planned and planned[-1].folder.name == "agent" else "v1"
    return Isolation(
        groups=version if grouped == 0 else "",
        namespaces=separated in (0, _WRITES),
        read_only=separated == 0,
        problem="; ".join(filter(None, (groups_problem, files_problem))),
    )


def _probe_of(place: Path, user: int) -> Confinement:
    one = Amounts(cpus=1.0, memory_bytes=64 * MIB)
    return Confinement(
        user=user,
        farm=f"gridmill-farm-{place.name}",
        pod=_PROBE,
        capacity=one,
        node=one,
        command=(),
        folder="/",
        record=str(place / "record"),
        scratch=str(place / "scratch"),
    )


def _tried(confinement: Confinement, check: Callable[[], int]) -> tuple[int, str]:
    """Runs a check in a confined process. Returns the exit status of the check, and the reason if the
    confined process could not be started."""
    try:
        status = run(confinement, check)
    except (GridmillError, OSError) as error:
        return -1, str(error)
    return status, "a confined process cannot be started" if status == _NOT_STARTED else ""


def _joins_own() -> int:
    """Returns whether the user may make groups below the group of its pod and may join them."""
    own = own_hierarchies()
    for folder in dict.fromkeys((*own.v1.values(), own.unified)):
        if folder is not None and folder.name in (_PROBE, "agent"):
            below = (folder.parent if folder.name == "agent" else folder) / "jobs"
            below.mkdir()
            (below / "cgroup.procs").write_text("0")
    return 0


def _looks_around() -> int:
    """Returns whether processes and /tmp are private, and whether the files of the machine are protected
    from writing."""
    if os.getpid() != 1 or os.listdir("/tmp"):
        return 1
    return 0 if os.statvfs("/").f_flag & os.ST_RDONLY else _WRITES


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
