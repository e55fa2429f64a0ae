"""The disk of the farm: its reserve of free space, the space that each tenant uses, and the limits of
tenants."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gridmill.disk_space import FolderMeter, FolderUse
from gridmill.domain.amounts import show_bytes
from gridmill.domain.frozen import dataclass
from gridmill.domain.usage import DiskSpace
from gridmill.transfer.disk_room import DiskRoom, who_uses

_LOG = logging.getLogger(__name__)
_STEP_ENTRIES = 2000
_IDLE_SECONDS = 0.5
_REST = 10
"""The measuring thread sleeps this many times as long as its last step took, so that it uses at most a tenth
of a CPU."""
OVER_SECONDS = 5.0
"""The number of seconds for which the files of a tenant can exceed the tenant's disk limit before its pods
are ended. During this time, the pods end the job that uses too much space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """The largest space that the home and the storage root of one tenant can use. The value None means half
    of the file system."""

    size_bytes: int | None = None
    files: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUse:
    """The space that the files of a tenant use on the disk of the farm, measured at the Unix time `time`."""

    tenant: str
    size_bytes: int
    files: int
    time: float


class FarmDisk:
    """Measures the disk use of tenants. After the call of `start`, a separate thread makes the measurements.
    The class is thread-safe."""

    def __init__(
        self,
        folder: Path,
        reserve_bytes: int | None = None,
        limits: TenantLimits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.room = DiskRoom(folder, reserve_bytes, why=self._who_uses)
        self._limits, self._monotonic = limits or TenantLimits(), monotonic
        self._meters: dict[str, FolderMeter] = {}
        self._over_since: dict[str, float] = {}
        self._measuring = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gridmill-farm-disk", daemon=True)

    def start(self) -> None:
        """Start to measure."""
        self._thread.start()

    def close(self) -> None:
        """Stop to measure. Can be repeated."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def add(self, tenant: str, folders: Iterable[Path]) -> None:
        """Adds a tenant with the folders that contain its files."""
        self._meters[tenant] = FolderMeter(tuple(folders))

    def remove(self, tenant: str) -> None:
        """Remove a tenant. Can be repeated."""
        self._meters.pop(tenant, None)
        self._over_since.pop(tenant, None)
        self.room.remove(tenant)

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = self._monotonic()
            try:
                self.measure(_STEP_ENTRIES)
            except Exception:  # noqa: BLE001  the outermost loop: the next step can succeed
                _LOG.exception("disk_not_measured")
            self._stopped.wait(max(_IDLE_SECONDS / 5, _REST * (self._monotonic() - began)))

    def measure(self, entries: int) -> None:
        """Examines the next directory entries of each tenant, up to this number of entries."""
        with self._measuring:
            limits = self.limits
            for tenant, meter in tuple(self._meters.items()):
                now = self._monotonic()
                meter.step(now, entries)
                if _exceeds(meter.least(), limits):
                    self._over_since.setdefault(tenant, now)
                else:
                    self._over_since.pop(tenant, None)

    @property
    def limits(self) -> TenantLimits:
        """Returns the limits of a tenant on this disk."""
        space = self.room.space()
        bytes_limit, files_limit = self._limits.size_bytes, self._limits.files
        return TenantLimits(
            size_bytes=space.size_bytes // 2 if bytes_limit is None else bytes_limit,
            files=space.files // 2 if files_limit is None else files_limit,
        )

    def use_of(self, tenant: str) -> FolderUse:
        """Returns the space that a tenant uses, as far as it was measured."""
        meter = self._meters.get(tenant)
        return meter.least() if meter is not None else FolderUse()

    def uses(self) -> Mapping[str, FolderUse]:
        """Returns the space that each tenant uses."""
        return {tenant: meter.least() for tenant, meter in tuple(self._meters.items())}

    def _who_uses(self, tenant: str) -> str:
        return who_uses(tenant, {name: use.size_bytes for name, use in self.uses().items()})

    def why_over(self, tenant: str, seconds: float = 0.0) -> str:
        """Returns the reason why no job of the tenant starts, if the tenant has exceeded its disk limit for
        this time. The text is empty if the tenant is within its limit."""
        since = self._over_since.get(tenant)
        if since is None or self._monotonic() - since < seconds:
            return ""
        use, limits = self.use_of(tenant), self.limits
        if limits.size_bytes and use.size_bytes > limits.size_bytes:
            size, most = show_bytes(use.size_bytes), show_bytes(limits.size_bytes)
            used = f"{size} of the farm's disk; its limit is {most}"
            option = "--tenant-disk"
        else:
            used = f"{use.files:,} inodes of the farm's disk; its limit is {limits.files:,}"
            option = "--tenant-files"
        return f"tenant {tenant} uses {used} (`gridmill up --light {option}` on the farm raises the limit)"

    def why_short(self, tenant: str) -> str:
        """Returns the reason why no job starts on the farm, if the reserve is not free and deleting unused
        data did not help. The text is empty if there is enough space."""
        space = self.recover()
        return self.room.explain(tenant) if space.is_short else ""

    def recover(self) -> DiskSpace:
        """Returns the free space. If the disk has too little space, the function first deletes unused
        data."""
        return self.room.recover()

    def why_waits(self, tenant: str) -> str:
        """Returns the reason why no deployment of a tenant starts now. The text is empty if the disk does
        not prevent the start."""
        return self.why_over(tenant) or (self.room.explain(tenant) if self.room.space().is_short else "")


def _exceeds(use: FolderUse, limits: TenantLimits) -> bool:
    return bool(
        (limits.size_bytes and use.size_bytes > limits.size_bytes)
        or (limits.files and use.files > limits.files)
    )
