"""Parses the output of squeue, sacct and sinfo into values. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gridmill.domain.amounts import MIB, Amounts
from gridmill.domain.frozen import dataclass
from gridmill.domain.site import Node
from gridmill.sites.slurm.states import SlurmPhase, SlurmState, state_of

SQUEUE_FIELDS = (
    "JobID",
    "Name",
    "State",
    "Reason",
    "exit_code",
    "NodeList",
    "StartTime",
    "EndTime",
    "TimeUsed",
    "RestartCnt",
)
SQUEUE_FORMAT = ",".join(f"{name}:|" for name in SQUEUE_FIELDS)
"""The argument of squeue --Format. With SLURM_TIME_FORMAT=%s, the times in the output are Unix times."""

SACCT_FIELDS = ("JobID", "JobName", "State", "ExitCode", "ElapsedRaw", "MaxRSS", "TotalCPU", "Submit")
SACCT_FORMAT = ",".join(SACCT_FIELDS)
"""The argument of --format for sacct --noheader --parsable2 --noconvert."""

SINFO_FORMAT = "%N|%c|%m|%T|%G|%R"
"""The argument of --format for sinfo --Node --noheader, which prints one line for each node of each
partition."""
PARTITION = "partition/"
"""The prefix of an output line that contains a partition. In this output, the name of the default partition
is followed by a star."""

MEMORY_SHARE = 0.9
"""The share of a node's memory that jobs may use. The pods themselves need the other part of the memory."""

_USABLE = frozenset(
    {"idle", "mixed", "allocated", "completing", "planned", "reserved", "blocked", "cloud", "dynamic_norm"}
    | {"powered_down", "powering_down", "powering_up", "power_down", "power_up", "reboot_requested"}
)
"""The states of nodes on which jobs can run now or later."""
_SAME_SECONDS = 5.0
_WORKING = "~#%!@^-"
"""The characters after the state of a node that still accepts jobs: powered off, powered up, powered down,
to be powered down (Slurm wakes such nodes for a job), to be rebooted, being rebooted, planned for another
job.

Two other characters are not in this list: `*` means that the node does not answer, and `$` means that it is
in a maintenance reservation. (sinfo(1), NODE STATE CODES)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqueueJob:
    """A job in the output of squeue. For a running job, `began` is the Unix time of its start, and `ends` is
    the Unix time of its time limit."""

    id: str
    name: str
    word: str
    reason: str = ""
    exit_status: int = 0
    nodes: str = ""
    began: float | None = None
    ends: float | None = None
    elapsed_seconds: float = 0.0
    restarts: int = 0

    @property
    def state(self) -> SlurmState:
        """Returns the meaning of the job's state. If a job is pending again after it ran, it never starts
        its pods again."""
        result = state_of(self.word)
        if result.phase == SlurmPhase.PENDING and self.restarts:
            return state_of("REQUEUED")
        return result


CLOCK = "clock/"
"""The prefix of the output line of `look` that contains the Unix time of the cluster."""


def parse_squeue(text: str, ahead: float = 0.0) -> tuple[SqueueJob, ...]:
    """Returns the jobs in the output of `squeue --noheader --Format=SQUEUE_FORMAT`. Invalid lines are
    skipped.

    `ahead` is the number of seconds by which the clock of the cluster is ahead of this machine's clock. The
    returned times are on this machine's clock.
    """
    return tuple(_moved(job, -ahead) for line in text.splitlines() if (job := _listed(line)) is not None)


def clock_ahead(text: str, now: float, previous: float = 0.0) -> float:
    """Returns by how many seconds the cluster's clock is ahead of this machine's clock (`now`).

    A small difference from `previous` is ignored, because times that change a little with each observation
    would count as changes of the jobs.
    """
    clock_lines = (line.removeprefix(CLOCK) for line in text.splitlines() if line.startswith(CLOCK))
    ahead = next((float(time) - now for time in clock_lines if time.isdigit()), previous)
    return previous if abs(ahead - previous) < _SAME_SECONDS else ahead


def _moved(job: SqueueJob, seconds: float) -> SqueueJob:
    began, ends = (None if time is None else time + seconds for time in (job.began, job.ends))
    return replace(job, began=began, ends=ends)


def _listed(line: str) -> SqueueJob | None:
    parts = line.split("|")
    if len(parts) < len(SQUEUE_FIELDS) or not parts[0].strip()[:1].isdigit():
        return None
    number, name, word, reason, status, nodes, start, end, used, restarts = map(str.strip, parts[:10])
    return SqueueJob(
        id=number,
        name=name,
        word=word,
        reason=reason.removeprefix("(").removesuffix(")"),
        exit_status=int(status) if status.isdigit() else 0,
        nodes=nodes,
        began=float(start) if start.isdigit() else None,
        ends=float(end) if end.isdigit() else None,
        elapsed_seconds=parse_clock(used),
        restarts=int(restarts) if restarts.isdigit() else 0,
    )


def most_alive(jobs: Iterable[SqueueJob], name: str) -> SqueueJob | None:
    """Of the jobs with this name, returns the most active job, or the last job if all of them have ended."""
    mine = [job for job in jobs if job.name == name]
    return max(mine, key=lambda job: (job.state.phase, int(re.split(r"\D", job.id)[0])), default=None)


def parse_clock(text: str) -> float:
    """Converts Slurm's `[DAYS-]HOURS:MINUTES:SECONDS` or `MINUTES:SECONDS` into seconds. For a text in any
    other form, the function returns 0."""
    days, _, clock = text.rpartition("-")
    try:
        parts = [float(part) for part in clock.split(":")]
        seconds = 86400.0 * int(days or 0)
    except ValueError:
        return 0.0
    for part, unit in zip(reversed(parts), (1.0, 60.0, 3600.0), strict=False):
        seconds += part * unit
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SacctJob:
    """The accounting data of a job: the largest memory of any of its tasks, and the CPU time of all its
    tasks."""

    name: str
    word: str
    exit_code: str
    elapsed_seconds: float
    cpu_seconds: float
    peak_memory_bytes: int

    @property
    def is_final(self) -> bool:
        """Returns whether the accounting has recorded the end of the job."""
        return state_of(self.word).phase == SlurmPhase.OVER


def parse_sacct(text: str) -> tuple[SacctJob, ...]:
    """Returns the jobs in the output of `sacct --noheader --parsable2 --noconvert --format=SACCT_FORMAT`, in
    the order of their submission.

    The line of a step (`12.0`) follows the line of its job, and contains the memory peak of the step.
    """
    jobs: dict[str, SacctJob] = {}
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) < len(SACCT_FIELDS):
            continue
        job_id, _, step = parts[0].partition(".")
        if not step:
            jobs[job_id] = _account(parts)
        elif job_id in jobs:
            jobs[job_id] = _with_step(jobs[job_id], parts)
    return tuple(jobs.values())


def _account(parts: Sequence[str]) -> SacctJob:
    _, name, word, code, elapsed, memory, cpu, _ = parts[:8]
    return SacctJob(
        name=name,
        word=word,
        exit_code=code,
        elapsed_seconds=float(elapsed) if elapsed.isdigit() else 0.0,
        cpu_seconds=parse_clock(cpu),
        peak_memory_bytes=_bytes(memory),
    )


def _with_step(job: SacctJob, parts: Sequence[str]) -> SacctJob:
    step = _account(parts)
    word = step.word if step.word.startswith("OUT_OF_ME") and job.word == "FAILED" else job.word
    return SacctJob(
        name=job.name,
        word=word,
        exit_code=job.exit_code,
        elapsed_seconds=job.elapsed_seconds,
        cpu_seconds=job.cpu_seconds,
        peak_memory_bytes=max(job.peak_memory_bytes, step.peak_memory_bytes),
    )


def _bytes(text: str) -> int:
    number, unit = (text[:-1], text[-1:]) if text[-1:] in "KMGT" else (text, "")
    try:
        return int(float(number or 0) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}[unit])
    except ValueError:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNodes:
    """The usable and the unusable nodes of the cluster, each node once and sorted by name. The names of all
    partitions are included too, with the default partition first."""

    usable: tuple[Node, ...]
    away: tuple[Node, ...]
    partitions: tuple[str, ...]


def parse_sinfo(text: str, gres: str, partition: str = "") -> SlurmNodes:
    """Returns the nodes in the output of `sinfo --Node --noheader --format=SINFO_FORMAT`, and the partitions
    in lines that start with PARTITION.

    `gres` is the name of a GPU in Slurm: `gpu`, or `gpu:TYPE`. `partition` contains the names of the used
    partitions, separated by commas. If `partition` is empty, all partitions are used, because a resource may
    name any of them.
    """
    named = [line.removeprefix(PARTITION) for line in text.splitlines() if line.startswith(PARTITION)]
    named.sort(key=lambda name: not name.endswith("*"))
    wanted = {name for name in partition.split(",") if name}
    lines = [parts for line in text.splitlines() if len(parts := line.strip().split("|")) >= 6]
    usable, away, queues = dict[str, Node](), dict[str, Node](), dict[str, list[str]]()
    for parts in lines:
        queues.setdefault(parts[0], []).append(parts[5])
    for parts in lines:
        if not wanted or parts[5] in wanted:
            node = _node(parts, gres, tuple(queues[parts[0]]))
            (usable if is_usable(parts[3]) else away).setdefault(parts[0], node)
    return SlurmNodes(
        usable=tuple(usable[name] for name in sorted(usable, key=_natural)),
        away=tuple(away[name] for name in sorted(away.keys() - usable.keys(), key=_natural)),
        partitions=tuple(dict.fromkeys(name.rstrip("*") for name in named)),
    )


def is_usable(word: str) -> bool:
    """Returns whether jobs can run on a node with this state. The result is True for `idle`, `mixed-`,
    `allocated+`, `mixed+planned` and `idle~`, and False for `down*`, `draining@` and `idle*`."""
    while word[-1:] and word[-1:] in _WORKING:
        word = word[:-1]
    parts = word.lower().rstrip("+").split("+")
    return all(part in _USABLE for part in parts)


def _node(parts: Sequence[str], gres: str, partitions: tuple[str, ...]) -> Node:
    name, cpus, memory, _, devices = parts[:5]
    given = int(int(memory.rstrip("+")) * MIB * MEMORY_SHARE)
    capacity = Amounts(cpus=float(cpus.rstrip("+")), memory_bytes=given, gpus=count_gres(devices, gres))
    return Node(name=name, capacity=capacity, partitions=partitions)


def count_gres(text: str, wanted: str) -> int:
    """Returns the number of `gpu` or `gpu:TYPE` in a text such as `gpu:a100:4(S:0-1),gpu:v100:2,shard:8`."""
    name, _, kind = wanted.partition(":")
    count = 0
    for part in re.split(r",(?![^(]*\))", text):
        words = part.partition("(")[0].split(":")
        if words[0] != name or (kind and (len(words) < 2 or words[1] != kind)):
            continue
        count += int(words[-1]) if words[-1].isdigit() else 1
    return count


def _natural(name: str) -> list[tuple[int, str]]:
    """Returns the sort key that sorts n2 before n10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
