"""Fair shares and quotas of projects.

Of several projects the one that used least for its share goes first: the order of levels in Slurm's Fair Tree
(usage over share), without its tree. What was used counts half as much each week, as with the decay of
Slurm's multifactor priority (PriorityDecayHalfLife, 7 days).
"""

import math
from collections.abc import Mapping
from heapq import heappush

from gridmill.model.amounts import show_bytes
from gridmill.model.project import Project
from gridmill.planning.lane import Lane, Line
from gridmill.planning.limits import Problem
from gridmill.planning.places import Tally
from gridmill.planning.queue import Demand, Ticket
from gridmill.planning.snapshot import Snapshot

HALF_LIFE_SECONDS = 7 * 86_400.0
AHEAD_SECONDS = 600.0
"""A place that is held counts so much ahead: projects take turns also within one plan."""


def decayed(used_seconds: float, used_at: float, now: float) -> float:
    """What was used, as it counts now."""
    return used_seconds * math.pow(0.5, max(0.0, now - used_at) / HALF_LIFE_SECONDS)


def charged(project: Project, seconds: float, now: float) -> Project:
    """The project after it used so much more."""
    used = decayed(project.used_seconds, project.used_at, now) + seconds
    return Project(
        name=project.name,
        share=project.share,
        cpus=project.cpus,
        memory_bytes=project.memory_bytes,
        gpus=project.gpus,
        used_seconds=used,
        used_at=max(now, project.used_at),
    )


def used_now(project: Project, tally: Tally, now: float) -> float:
    """With what its live attempts used so far."""
    return decayed(project.used_seconds, project.used_at, now) + tally.held_seconds(now)


class Shares:
    """How projects stand while a plan is made: each start counts."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        self._projects: Mapping[str, Project] = snapshot.projects
        self._tallies = snapshot.places.tallies
        self._now = now
        self._scores: dict[str, float] = {}
        self._held: dict[str, Tally] = {}

    def score(self, name: str) -> float:
        """What it used over its share, places that it holds counted ahead: least goes first."""
        if name not in self._scores:
            tally = self._tallies.get(name, Tally())
            project = self._project(name)
            used = used_now(project, tally, self._now) + tally.places * AHEAD_SECONDS
            self._scores[name] = used / project.share
        return self._scores[name]

    def start(self, demand: Demand) -> None:
        """Count a job (a gang with all its ranks)."""
        name, places = demand.project, max(1, demand.gpus) * demand.workers
        project = self._project(name)
        self._scores[name] = self.score(name) + places * AHEAD_SECONDS / project.share
        if project.bounded:
            self._tally(name).add(*_claim(demand))

    def is_over(self, demand: Demand) -> bool:
        """Whether the quota leaves too little for such a job now."""
        project = self._project(demand.project)
        return project.bounded and bool(over(project, self._tally(demand.project), demand))

    def problem(self, demand: Demand) -> Problem | None:
        """Why the quota is too little for it ever, or None."""
        project = self._project(demand.project)
        what = over(project, Tally(), demand)
        if not what:
            return None
        return Problem(
            f"needs more than the whole quota of project {demand.project}: {what[0].wants}",
            f"Let it ask for less, or `gridmill configure project {demand.project}` with more.",
        )

    def goes_first(self, name: str, other: str, places: int) -> bool:
        """Whether a project goes before another once that gave up so many places."""
        given_up = places * AHEAD_SECONDS / self._project(other).share
        return name == other or self.score(name) < self.score(other) - given_up

    def _project(self, name: str) -> Project:
        return self._projects.get(name) or Project(name=name)

    def _tally(self, name: str) -> Tally:
        if name not in self._held:
            self._held[name] = self._tallies.get(name, Tally()).copy()
        return self._held[name]


class Bound:
    """A part of a quota that is in the way: `text` says how much of it is in use, `wants` what is asked."""

    __slots__ = ("text", "wants")

    def __init__(self, used: str, most: str, wants: str, what: str) -> None:
        self.text = f"{used} of {most}{what} in use"
        self.wants = f"{wants} of {most}{what}"


def over(project: Project, tally: Tally, demand: Demand) -> list[Bound]:
    """The parts of the quota that such a job would exceed."""
    cpus, memory_bytes, gpus = _claim(demand)
    found: list[Bound] = []
    if project.cpus is not None and tally.cpus + cpus > project.cpus + 1e-9:
        found.append(Bound(f"{tally.cpus:g}", f"{project.cpus:g}", f"{cpus:g}", " CPUs"))
    if project.memory_bytes is not None and tally.memory_bytes + memory_bytes > project.memory_bytes:
        most = show_bytes(project.memory_bytes)
        found.append(Bound(show_bytes(tally.memory_bytes), most, show_bytes(memory_bytes), ""))
    if project.gpus is not None and gpus and tally.gpus + gpus > project.gpus:
        found.append(Bound(str(tally.gpus), str(project.gpus), str(gpus), " GPUs"))
    return found


def _claim(demand: Demand) -> tuple[float, int, int]:
    """What counts against a quota: a job that says nothing of CPUs counts as one."""
    workers = demand.workers
    return (demand.cpus or 1.0) * workers, demand.memory_bytes * workers, demand.gpus * workers


class FairLine(Line):
    """A line of several projects, each in its own order. Priorities go before shares."""

    __slots__ = ("_first", "_heaps", "_keys", "_shares")

    def __init__(self, lanes: dict[str, Lane], shares: Shares) -> None:
        super().__init__(lanes)
        self._shares = shares
        self._heaps: dict[str, list[Ticket]] = {}
        self._keys: dict[str, tuple[int, float, Ticket]] = {}  # of those whose first one stands still
        self._first = ""

    def __bool__(self) -> bool:
        return any(self._heaps.values())

    def join(self, lane: Lane) -> None:
        """Let the lane's waiting jobs in."""
        lane.fair = True
        for project in lane.queue.projects:
            head = lane.next_class_of(project, None)
            if head is not None:
                self.add(head)

    def add(self, ticket: Ticket) -> None:
        """Put a job in line."""
        project = ticket[4].demand.project
        heappush(self._heaps.setdefault(project, []), ticket)
        self._keys.pop(project, None)

    def first(self) -> tuple[Ticket, Lane]:
        """The first, and its lane. Since it was asked last only the first one's project has changed."""
        keys = self._keys
        keys.pop(self._first, None)
        for name, heap in self._heaps.items():
            if heap and name not in keys:
                keys[name] = heap[0][0], self._shares.score(name), heap[0]
        self._first = min(keys, key=keys.__getitem__)
        self._heap = self._heaps[self._first]
        return super().first()
