"""The farm's disk: its reserve, how much of it each tenant uses, and what a tenant may use at most."""

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
"""The measuring thread rests this many times as long as a step took: it takes a tenth of a CPU at most."""
OVER_SECONDS = 5.0
"""A tenant's jobs may be above its limit for this long: until then pods end the job that is too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """The most that the home and the root of one tenant may use; None: half of the file system's."""

    size_bytes: int | None = None
    files: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUse:
    """What the files of a tenant use on the farm's disk, as measured at `time` (Unix)."""

    tenant: str
    size_bytes: int
    files: int
    time: float


class FarmDisk:
    """Measures in a thread of its own, once it is started. Safe to use from several threads."""

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
        """Measure from now on."""
        self._thread.start()

    def close(self) -> None:
        """May be repeated."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def add(self, tenant: str, folders: Iterable[Path]) -> None:
        """The folders in which that tenant has its files."""
        self._meters[tenant] = FolderMeter(tuple(folders))

    def remove(self, tenant: str) -> None:
        """It has none any more. May be repeated."""
        self._meters.pop(tenant, None)
        self._over_since.pop(tenant, None)
        self.room.remove(tenant)

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = self._monotonic()
            try:
                self.measure(_STEP_ENTRIES)
            except Exception:  # noqa: BLE001  the outermost loop: the next step may fare better
                _LOG.exception("disk_not_measured")
            self._stopped.wait(max(_IDLE_SECONDS / 5, _REST * (self._monotonic() - began)))

    def measure(self, entries: int) -> None:
        """Look at so many further entries of each tenant."""
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
        """As they are on this disk."""
        space = self.room.space()
        bytes_limit, files_limit = self._limits.size_bytes, self._limits.files
        return TenantLimits(
            size_bytes=space.size_bytes // 2 if bytes_limit is None else bytes_limit,
            files=space.files // 2 if files_limit is None else files_limit,
        )

    def use_of(self, tenant: str) -> FolderUse:
        """As far as it is known."""
        meter = self._meters.get(tenant)
        return meter.least() if meter is not None else FolderUse()

    def uses(self) -> Mapping[str, FolderUse]:
        """Of all tenants."""
        return {tenant: meter.least() for tenant, meter in tuple(self._meters.items())}

    def _who_uses(self, tenant: str) -> str:
        return who_uses(tenant, {name: use.size_bytes for name, use in self.uses().items()})

    def why_over(self, tenant: str, seconds: float = 0.0) -> str:
        """Why nothing more of a tenant begins: it has been above its limit for so long; empty: it is not."""
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
        """Why nothing new begins on the farm; empty: the reserve is free, or eviction has freed it."""
        space = self.recover()
        return self.room.explain(tenant) if space.is_short else ""

    def recover(self) -> DiskSpace:
        """The space, after the eviction of what nothing uses where the disk is short."""
        return self.room.recover()

    def why_waits(self, tenant: str) -> str:
        """Why no deployment of a tenant is brought up now; empty: the disk is not why."""
        return self.why_over(tenant) or (self.room.explain(tenant) if self.room.space().is_short else "")


def _exceeds(use: FolderUse, limits: TenantLimits) -> bool:
    return bool(
        (limits.size_bytes and use.size_bytes > limits.size_bytes)
        or (limits.files and use.files > limits.files)
    )
