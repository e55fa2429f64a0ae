"""Watches the disks on which a pod's attempts write. The guard enforces the disk limits of attempts,
protects the reserve of free space, and recognises failures for lack of space.

The guard reads the free space a few times a second. The files of an attempt are counted only if the attempt
has a limit, or while a disk has too little space. The guard examines only a few directory entries at a time.
An attempt that exceeds its limit is ended. If less than half of the reserve is free, the guard ends the
attempt that has written most, before other attempts fail for lack of space.
"""

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gridmill.disk_space import FolderMeter, FolderUse, space_of
from gridmill.domain.amounts import show_bytes
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobKind
from gridmill.domain.pod_protocol import AttemptOrder, AttemptOutcome
from gridmill.domain.states import AttemptState, Cause
from gridmill.domain.storage_uri import below
from gridmill.domain.usage import DiskSpace

CHECK_SECONDS = 0.25
"""The number of seconds between two measurements of the free space."""
_JUST_SECONDS = 1.0
_STEP_ENTRIES = 1000
_LAST_ENTRIES = 20_000
RAISE_HINT = (
    "Raise `{field}` of the job (for example `{field}: {example}`), or {setting} where its pod runs "
    "(`gridmill up --light {option}` at a farm)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimits:
    """The limits for the files of one attempt. The value 0 means that there is no limit."""

    size_bytes: int = 0
    files: int = 0

    def within(self, other: "DiskLimits") -> "DiskLimits":
        """Returns the smaller of the two limits for each field."""
        return DiskLimits(
            size_bytes=_smaller(self.size_bytes, other.size_bytes), files=_smaller(self.files, other.files)
        )


def _smaller(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other


@dataclass(slots=True, kw_only=True)
class AttemptDisk:
    """The files that an attempt writes in its folder and below the storage root. `spaces` contains, for each
    disk of the attempt, the free space when the attempt started. `ended_for` is the reason if the guard
    ended the attempt. `shortage` describes a disk that had too little space at the monotonic time
    `short_at`. In the table of a sink, the guard counts all files that changed after `began` (Unix time),
    because no other attempt writes to the table during this time."""

    order: AttemptOrder
    folder: Path
    limits: DiskLimits
    began: float
    spaces: tuple[DiskSpace, ...]
    ended_for: AttemptOutcome | None = None
    short_at: float = float("-inf")
    shortage: str = ""
    was_told: bool = False
    _meter: FolderMeter | None = None

    @property
    def meter(self) -> FolderMeter:
        """Returns the meter of the attempt's files. The meter is made only when it is needed, because most
        attempts are never measured."""
        if self._meter is None:
            order = self.order
            written = [below(order.root, uri) for uri in (order.output_uri, order.checkpoint_uri) if uri]
            table = [below(order.root, order.table_uri)] if order.table_uri else []
            rejects = [path.parent / "rejects" for path in table]
            self._meter = FolderMeter(
                (self.folder / "work", *written), shared=(*table, *rejects), since=self.began
            )
        return self._meter


class PodDiskGuard:
    """Watches the disks for the attempts of one pod. `due` is the monotonic time in seconds of the guard's
    next measurement."""

    def __init__(self, home: Path, limits: DiskLimits, reserve_bytes: int | None) -> None:
        self._home, self._limits, self._reserve_bytes = home, limits, reserve_bytes
        self._known: dict[str, tuple[float, tuple[DiskSpace, ...]]] = {}
        self.due = 0.0

    def begin(self, order: AttemptOrder, folder: Path, now: float) -> AttemptDisk:
        """Registers an attempt that is about to start in this folder."""
        mine = DiskLimits(size_bytes=order.job.disk_bytes or 0, files=order.job.disk_files or 0)
        return AttemptDisk(
            order=order,
            folder=folder,
            limits=mine.within(self._limits),
            began=time.time(),
            spaces=self._spaces(order.root, now),
        )

    def _spaces(self, root: str, now: float) -> tuple[DiskSpace, ...]:
        """Returns the free space of the home and of the storage root, measured at most a moment ago."""
        then, spaces = self._known.get(root, (float("-inf"), ()))
        if now - then >= CHECK_SECONDS:
            places = {"home": self._home, "storage root": Path(root)}
            found = (self._space(place, path) for place, path in places.items())
            spaces = tuple(space for space in found if space is not None)
            self._known[root] = now, spaces
        return spaces

    def _space(self, place: str, path: Path) -> DiskSpace | None:
        """Returns the free space at this path, or None if the storage root cannot be reached."""
        try:
            return space_of(place, path, self._reserve_bytes)
        except OSError:
            return None

    def look(self, disks: Iterable[AttemptDisk], now: float) -> list[AttemptDisk]:
        """Returns the attempts that must be ended, with their outcomes. The function also notes for each
        attempt whether its disk has too little space."""
        if now < self.due:
            return []
        self.due = now + CHECK_SECONDS
        living = [disk for disk in disks if disk.ended_for is None]
        critical: list[tuple[int, DiskSpace, AttemptDisk]] = []
        over = []
        for disk in living:
            space = self._shortest(disk, now)
            if space is None and disk.limits == DiskLimits():
                continue
            disk.meter.step(now, _STEP_ENTRIES)
            use = disk.meter.least()
            if _exceeds(use, disk.limits):
                disk.ended_for = _above_limit(use, disk.limits)
                over.append(disk)
            elif space is not None and _is_critical(space) and _is_large(use, space):
                critical.append((use.size_bytes, space, disk))
        if critical and not over:
            _, space, disk = max(critical, key=lambda one: one[0])
            disk.ended_for = _fills_disk(disk.meter.least(), space)
            over.append(disk)
        return over

    def _shortest(self, disk: AttemptDisk, now: float) -> DiskSpace | None:
        """Returns the disk whose free space is furthest below its reserve, or None if all disks have enough
        free space."""
        short = [space for space in self._spaces(disk.order.root, now) if space.is_short]
        if not short:
            return None
        worst = max(short, key=lambda space: (space.lacking_bytes, space.lacks_files))
        disk.short_at, disk.shortage = now, worst.shortage
        return worst

    def explained(self, disk: AttemptDisk, outcome: AttemptOutcome, now: float) -> AttemptOutcome:
        """Returns the outcome of a failed attempt. If a full disk may be the reason for the failure, the
        message of the outcome contains this reason.

        The attempt is then retried like an attempt that was lost, unless it filled the disk itself.
        """
        unclear = outcome.cause in (Cause.EXIT, Cause.STORAGE, Cause.OUTPUT, Cause.INTERNAL)
        if outcome.state != AttemptState.FAILED or not unclear:
            return outcome
        self._known.clear()
        space = self._shortest(disk, now)
        if space is None and (disk.order.job.kind != JobKind.COMMAND or now - disk.short_at > _JUST_SECONDS):
            return outcome
        disk.meter.step(now, _LAST_ENTRIES)
        use = disk.meter.least()
        likely = "" if outcome.cause == Cause.STORAGE else "likely because "
        message = f"{outcome.message}; {likely}{disk.shortage}".removeprefix("; ")
        if _has_filled(use, disk, space):
            size = show_bytes(use.size_bytes)
            return replace(
                outcome,
                cause=Cause.DISK,
                message=f"{message}; the job itself wrote {size} ({use.files:,} files)",
                hint="Move GRIDMILL_ROOT or GRIDMILL_HOME to a larger disk, or let the job write less.",
            )
        return replace(
            outcome,
            state=AttemptState.LOST,
            cause=Cause.STORAGE,
            message=message,
            hint="Free space on that disk: `gridmill du` shows what uses it, `gridmill clean` deletes.",
        )


def _exceeds(use: FolderUse, limits: DiskLimits) -> bool:
    return bool(
        (limits.size_bytes and use.size_bytes > limits.size_bytes)
        or (limits.files and use.files > limits.files)
    )


def _is_critical(space: DiskSpace) -> bool:
    few_files = bool(space.files) and space.free_files < space.reserve_files // 2
    return space.free_bytes < space.reserve_bytes // 2 or few_files


def _is_large(use: FolderUse, space: DiskSpace) -> bool:
    """Returns whether the disk would have much more free space without this attempt."""
    by_files = space.lacks_files and use.files >= max(1, space.reserve_files // 2)
    return by_files or (bool(space.lacking_bytes) and use.size_bytes >= max(1, space.reserve_bytes // 2))


def _has_filled(use: FolderUse, disk: AttemptDisk, space: DiskSpace | None) -> bool:
    """Returns whether the attempt used more than half of the space that was free when it started."""
    found = [one for one in disk.spaces if space is None or one.path == space.path]
    return any(
        2 * use.size_bytes > one.free_bytes or (one.files > 0 and 2 * use.files > one.free_files)
        for one in found
    )


def _above_limit(use: FolderUse, limits: DiskLimits) -> AttemptOutcome:
    if limits.size_bytes and use.size_bytes > limits.size_bytes:
        message = f"wrote {show_bytes(use.size_bytes)}; its limit is {show_bytes(limits.size_bytes)}"
        example = show_bytes(2 * limits.size_bytes).replace(" ", "")
        hint = RAISE_HINT.format(
            field="disk", example=example, setting="GRIDMILL_JOB_DISK", option="--tenant-disk"
        )
    else:
        message = f"made {use.files:,} files and folders; its limit is {limits.files:,}"
        hint = RAISE_HINT.format(
            field="disk_files",
            example=str(2 * limits.files),
            setting="GRIDMILL_JOB_FILES",
            option="--tenant-files",
        )
    return AttemptOutcome(state=AttemptState.FAILED, cause=Cause.DISK, message=message, hint=hint)


def _fills_disk(use: FolderUse, space: DiskSpace) -> AttemptOutcome:
    message = (
        f"{space.shortage}, and this job wrote most: {show_bytes(use.size_bytes)} "
        f"({use.files:,} files). It was stopped before other jobs fail"
    )
    hint = (
        f"Free space on that disk (`gridmill clean`), use a larger disk, or lower the reserve "
        f"(GRIDMILL_DISK_RESERVE, now {show_bytes(space.reserve_bytes)})."
    )
    return AttemptOutcome(state=AttemptState.FAILED, cause=Cause.DISK, message=message, hint=hint)
