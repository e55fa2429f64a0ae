"""Determines how an attempt ended, from its exit status and from the pod's observations. The module also
counts processes that were killed because of memory.

The outcome of an attempt is computed by a pure function. Killed processes are counted for the cgroup in
which a batch system runs the pod, and for the whole machine.
"""

import signal
from dataclasses import replace
from enum import Enum
from functools import cache
from pathlib import Path

from gridmill.domain.amounts import show_bytes, show_seconds
from gridmill.domain.artifact import ArtifactKind, Output
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import AttemptOutcome
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.states import AttemptState, Cause
from gridmill.pod.cgroups import own_hierarchies, was_full
from gridmill.pod.limit_events import LimitEvents
from gridmill.pod.outputs import CollectedFiles

MEMORY_HINT = "Give the job or its resource more memory, for example `memory: 4GiB`."
KILL_HINT = "The job itself or another program sent SIGKILL. With `retries: 1`, the job is tried once more."
SHORT_HINT = "Run fewer jobs at the same time (give its resources a smaller `memory`), or add memory."
_KILLED = int(signal.SIGKILL)
TIMEOUT_HINT = "Raise the job's `timeout`, or give it a larger resource."


class MemoryShortage(Enum):
    """Shows which memory limit was exceeded when the kernel or the pod killed a process of an attempt."""

    ATTEMPT = "attempt"
    """The attempt needed more memory than its own limit."""
    POD = "pod"
    """The attempt was within its limit, but the pod of its resource was not."""
    MACHINE = "machine"
    """The attempt and its pod were within their limits, but the machine ran out of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnding:
    """The pod's observations about the end of an attempt.

    `status` is the status from wait(), or None if the process never started or the status is unknown.
    `shortage` is set if a process of the attempt was killed because of memory. `ignored_term` is true if
    the attempt was killed because it did not end within the grace period after SIGTERM. `ended_for` is the
    outcome if the attempt was ended because of the files that it wrote. `reported` is the content of
    outcome.json, which the process of the job wrote. A command writes this file only if its program could
    not be started. `container` is the image with its digest in which the attempt ran. `trouble` is an error
    that occurred in the pod itself, and not in the job.
    """

    status: int | None
    is_command: bool
    use: MeasuredUse
    reported: AttemptOutcome | None = None
    shortage: MemoryShortage | None = None
    memory_limit: int = 0
    timed_out: bool = False
    timeout_seconds: float = 0.0
    ignored_term: bool = False
    grace_seconds: float = 0.0
    stop_reason: str | None = None
    trouble: str = ""
    in_gang: bool = False
    output_uri: str = ""
    collected: CollectedFiles | None = None
    ended_for: AttemptOutcome | None = None
    container: str = ""


def judge(ending: AttemptEnding) -> AttemptOutcome:
    """The attempt's outcome."""
    code = _exit_code(ending.status)
    return replace(_judge(ending, code), use=ending.use, exit_code=code)


def _judge(ending: AttemptEnding, code: int | None) -> AttemptOutcome:
    own = ending.reported
    if ending.ended_for is not None:
        return ending.ended_for
    if ending.shortage is MemoryShortage.ATTEMPT:
        return _memory(ending)
    if ending.shortage is not None:
        return _others_short(ending, ending.shortage)
    if own is not None and own.state == AttemptState.SUCCEEDED and code == 0:
        return own
    if ending.timed_out:
        return _failed(Cause.TIMEOUT, f"ran longer than {_timeout(ending)}", TIMEOUT_HINT)
    if ending.stop_reason is not None:
        return AttemptOutcome(state=AttemptState.STOPPED, cause=Cause.STOPPED, message=ending.stop_reason)
    if own is not None and own.state != AttemptState.SUCCEEDED:
        return own
    if ending.trouble:
        return _failed(Cause.INTERNAL, ending.trouble)
    return _by_status(ending, code)


def _timeout(ending: AttemptEnding) -> str:
    limit, grace = show_seconds(ending.timeout_seconds), show_seconds(ending.grace_seconds)
    return f"{limit}, and did not end within {grace} of SIGTERM" if ending.ignored_term else limit


def _by_status(ending: AttemptEnding, code: int | None) -> AttemptOutcome:
    if ending.status is None:
        return _failed(Cause.INTERNAL, "its process could not be started")
    if code is None:
        return _failed(Cause.SIGNAL, describe(ending.status), _kill_hint(ending.status))
    if code == 0 and ending.is_command:
        return _with_files(ending, ending.collected or CollectedFiles())
    if code == 0:
        return _failed(Cause.INTERNAL, "the job ended without reporting a result")
    return _failed(Cause.EXIT, f"exit code {code}{_shell_note(code)}", _kill_hint(ending.status))


def _with_files(ending: AttemptEnding, left: CollectedFiles) -> AttemptOutcome:
    """Returns the outcome with the problems of the output files. For a rank of a gang, the function adds
    only problems with the files and no notes. Other ranks of the gang may still write files, and the control
    node judges the files after the last rank (`scheduler.gang_results`)."""
    if left.problem and not ending.in_gang:
        return _failed(Cause.OUTPUT, left.problem, left.hint)
    return AttemptOutcome(
        state=AttemptState.SUCCEEDED,
        outputs=_files_output(ending.output_uri, left, ending.container),
        cause=Cause.OUTPUT if left.problem else None,
        message=left.problem,
        hint=left.hint,
    )


def _files_output(uri: str, left: CollectedFiles, container: str) -> tuple[Output, ...]:
    if not left.files:
        return ()
    kind, size = ArtifactKind.FILES, left.size_bytes
    details = {"files": left.files, **({"container": container} if container else {})}
    return (Output(kind=kind, uri=uri, size_bytes=size, details=details),)


def _kill_hint(status: int) -> str:
    return KILL_HINT if was_killed(status) else ""


def _memory(ending: AttemptEnding) -> AttemptOutcome:
    peak, limit = ending.use.peak_memory_bytes, ending.memory_limit
    shown = f" (peak {show_bytes(peak)})" if peak > limit else ""
    return _failed(Cause.MEMORY, f"used more than {show_bytes(limit)}{shown}", MEMORY_HINT)


def _others_short(ending: AttemptEnding, shortage: MemoryShortage) -> AttemptOutcome:
    """Returns the outcome of an attempt whose memory was exhausted by other jobs. An attempt that failed for
    this reason is retried with the same memory limit, and estimates ignore its memory use."""
    whose = "the pod of its resource" if shortage is MemoryShortage.POD else "the machine"
    used = show_bytes(ending.use.peak_memory_bytes)
    limit = f" of its {show_bytes(ending.memory_limit)}" if ending.memory_limit else ""
    message = f"{whose} ran out of memory; the job used {used}{limit}"
    return AttemptOutcome(state=AttemptState.LOST, cause=Cause.SHORTAGE, message=message, hint=SHORT_HINT)


def _failed(cause: Cause, message: str, hint: str = "") -> AttemptOutcome:
    return AttemptOutcome(state=AttemptState.FAILED, cause=cause, message=message, hint=hint)


def port_in_use(port: int) -> AttemptOutcome:
    """Returns the outcome of a rank that could not start because its port is in use. The gang is then
    started again with different ports."""
    return AttemptOutcome(
        state=AttemptState.LOST, cause=Cause.LOST, message=f"another program uses port {port} of its host"
    )


def was_terminated(status: int | None) -> bool:
    """Returns whether the process ended by SIGTERM, or is a shell that reports this for its command."""
    return status is not None and (status & 0x7F == signal.SIGTERM or status >> 8 == 128 + signal.SIGTERM)


def was_killed(status: int | None) -> bool:
    """Returns whether the process ended by SIGKILL, or is a shell that reports this for its command."""
    return status is not None and (status & 0x7F == _KILLED or status >> 8 == 128 + _KILLED)


def describe(status: int) -> str:
    """Describes a status of wait() in words, for example `killed by SIGSEGV` or `ended with exit code 3`."""
    code = _exit_code(status)
    return f"killed by {_signal_name(status & 0x7F)}" if code is None else f"ended with exit code {code}"


def _exit_code(status: int | None) -> int | None:
    return None if status is None or status & 0x7F else status >> 8


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _shell_note(code: int) -> str:
    """Returns the meaning of a shell's exit code: 128 + N means that signal N killed its command, and 127
    means that the command does not exist."""
    if 128 < code < 128 + 65:
        return f" (a program in it was killed by {_signal_name(code - 128)})"
    return {126: " (a command could not be executed)", 127: " (a command was not found)"}.get(code, "")


_VMSTAT = Path("/proc/vmstat")
_NO_LIMIT = 2**62
"""If there is no limit, cgroup version 1 shows a number near 2**63 as the limit."""


def outer_oom_kills() -> int:
    """Returns how many processes in the cgroup of this process were killed because of memory, or 0 if the
    number is unknown."""
    file = _counter()
    return _oom_kills(file) if file is not None else 0


def machine_oom_kills() -> int:
    """Returns how many processes of the machine were killed because of memory since the machine started, or
    0 if the number is unknown."""
    return _oom_kills(_VMSTAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterGroup:
    """The memory limit of the cgroup that contains the pod, and whether this cgroup ever ran out of memory
    at its limit (None if the kernel does not report it)."""

    limit_bytes: int
    was_full: bool | None


def outer_group() -> OuterGroup | None:
    """Returns the nearest cgroup that contains the pod and has a memory limit, or None if there is none."""
    counter = _counter()
    if counter is None:
        return None
    for folder in (counter.parent, *counter.parent.parents):
        limits = (_number(folder / name) for name in ("memory.limit_in_bytes", "memory.max"))
        limit = next((one for one in limits if one is not None and one < _NO_LIMIT), None)
        if limit is not None:
            return OuterGroup(limit_bytes=limit, was_full=_was_full(folder))
    return None


def _was_full(folder: Path) -> bool | None:
    if (folder / "memory.limit_in_bytes").exists():
        return was_full(folder)
    return LimitEvents(folder).total() > 0 if (folder / "memory.events.local").exists() else None


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # None also for the text `max`, which means that there is no limit
        return None


@cache
def _counter() -> Path | None:
    own = own_hierarchies()
    folder = own.v1.get("memory")
    if folder is not None:
        return folder / "memory.oom_control"
    return own.unified / "memory.events" if own.unified is not None else None


def _oom_kills(file: Path) -> int:
    try:
        words = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(word[1]) for word in words if len(word) == 2 and word[0] == "oom_kill")
