"""The state of a farm: its records, its certificate authority, and the sandboxes of its tenants."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path

from gridmill.domain.confinement import Isolation
from gridmill.domain.frozen import dataclass
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.farm.admission import QueueForecast
from gridmill.farm.certificates import Authority
from gridmill.farm.confinement import why_not_isolated
from gridmill.farm.deployment import TenantDeployment
from gridmill.farm.disk import FarmDisk
from gridmill.farm.files import TenantFiles
from gridmill.farm.result_export import ExportGrants
from gridmill.farm.store import RecordStore
from gridmill.farm.tenant import Tenant, authorised, unknown_tenant
from gridmill.farm.tenant_sandbox import TenantSandbox, open_sandbox
from gridmill.settings import Settings
from gridmill.version import __version__

FORECAST_SECONDS, CHANGED_TIMES = 5.0, 5.0
"""The first value is the number of seconds for which a forecast of waiting times is reused. If deployments
or nodes have changed, the forecast is reused for a shorter time: the second value times the seconds that
making the forecast took. All tenants ask for the forecast every second."""


class KeptForecast:
    """Caches the latest forecast of the farm's queue. The class is thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock, self._clock = threading.Lock(), clock
        self._took_seconds = 0.0
        self._made: tuple[Sequence[TenantDeployment], Sequence[Node], float, QueueForecast] | None = None

    def read(
        self,
        everybody: Sequence[TenantDeployment],
        nodes: Sequence[Node],
        now: float,
        make: Callable[[float], QueueForecast],
    ) -> QueueForecast:
        """Returns the cached forecast, or makes a new forecast."""
        with self._lock:
            if self._made is not None:
                of, on, at, made = self._made
                same = of is everybody and on == nodes
                holds = (
                    FORECAST_SECONDS if same else min(FORECAST_SECONDS, CHANGED_TIMES * self._took_seconds)
                )
                if 0 <= now - at < holds:
                    return made
            began = self._clock()
            made = make(now)
            self._took_seconds = self._clock() - began
            self._made = (everybody, nodes, now, made)
            return made


@dataclass(slots=True, kw_only=True)
class Farm:
    """The state of a farm. The class is thread-safe. `place` is the site at which the pods of all tenants
    start. `one_user` is the reason why jobs have no separate Unix users, and is empty if jobs have separate
    Unix users. `isolation` lists the other means that isolate tenants from each other. `last_contacts`
    contains the Unix time of the last request of each tenant. `uptime` returns seconds that no change of the
    wall clock affects. `wake` starts the next tick immediately."""

    settings: Settings
    records: RecordStore
    authority: Authority
    place: Site
    disk: FarmDisk
    quota_bytes: int = 0
    one_user: str = ""
    isolation: Isolation = Isolation()
    version: str = __version__
    now: Callable[[], float] = time.time
    uptime: Callable[[], float] = time.monotonic
    wake: Callable[[], None] = lambda: None
    last_contacts: dict[str, float] = field(default_factory=dict)
    sandboxes: dict[str, TenantSandbox] = field(default_factory=dict)
    opening: threading.Lock = field(default_factory=threading.Lock)
    exports: ExportGrants = field(default_factory=ExportGrants)
    forecasts: KeptForecast = field(default_factory=KeptForecast)

    def authorise(self, certificate: str, token: str) -> Tenant | None:
        """Returns the tenant with this certificate and token."""
        return authorised(self.records.all(Tenant), certificate, token)

    def record_contact(self, tenant: Tenant) -> None:
        """Records a permitted request of the tenant, which renews the tenant's leases."""
        self.last_contacts[tenant.name] = self.now()

    def sandbox_of(self, tenant: Tenant) -> TenantSandbox:
        """Returns the sandbox of a tenant, which is opened at the first call. Raises UnavailableError,
        StorageError, and InputError if the tenant does not exist any more."""
        with self.opening:
            self.check(tenant)
            return self._opened(tenant)

    def left_by(self, tenant: Tenant) -> TenantSandbox:
        """Returns the sandbox of a revoked tenant. Raises UnavailableError, StorageError, InputError."""
        with self.opening:
            return self._opened(tenant)

    def check(self, tenant: Tenant) -> None:
        """Raises InputError if a request that was admitted earlier is not permitted any more."""
        known = self.records.find(Tenant, tenant.name)
        if known is None or known.revoked or known.certificate != tenant.certificate:
            raise unknown_tenant()

    def _opened(self, tenant: Tenant) -> TenantSandbox:
        quarter = self.sandboxes.get(tenant.name)
        if quarter is None:
            carry = partial(self._open_files, tenant)
            quarter = open_sandbox(
                self._limited_settings(), tenant.name, tenant.user, self.place, carry, self.isolation
            )
            self.sandboxes[tenant.name] = quarter
            written = *quarter.folders.written, quarter.files.drafts
            self.disk.add(tenant.name, (folder for folder in written if folder is not None))
        return quarter

    def _limited_settings(self) -> Settings:
        """Returns the settings for jobs of a tenant. With these settings, no job can write more than its
        tenant is allowed to write."""
        limits, settings = self.disk.limits, self.settings
        sizes = [size for size in (limits.size_bytes, settings.job_disk_bytes) if size]
        files = [count for count in (limits.files, settings.job_files) if count]
        return replace(settings, job_disk_bytes=min(sizes, default=0), job_files=min(files, default=0))

    def _open_files(self, tenant: Tenant, root: Path, folder: Path) -> TenantFiles:
        return TenantFiles(
            tenant.name,
            root,
            folder,
            self.quota_bytes,
            tenant.user,
            records=self.records,
            now=self.now,
            bucket_hosts=self.settings.bucket_hosts,
            disk=self.disk.room,
        )

    def nodes(self) -> tuple[Node, ...]:
        """Returns the nodes of the farm, measured by the first opened sandbox. The result is empty if the
        farm never had a tenant."""
        return next((one.site.nodes() for one in tuple(self.sandboxes.values())), ())

    def deployments_of(self, tenant: Tenant) -> Sequence[TenantDeployment]:
        """Returns the deployments of one tenant."""
        return [
            deployment
            for deployment in self.records.all(TenantDeployment)
            if deployment.tenant == tenant.name
        ]

    @property
    def one_tenant(self) -> str:
        """The reason why this farm serves only one tenant. The text is empty if the farm serves several
        tenants."""
        return self.one_user or why_not_isolated(self.isolation)

    @property
    def shares_nodes(self) -> bool:
        """Returns whether the farm assigns the GPUs of nodes. If the farm is a cluster, the queue of the
        cluster assigns the GPUs."""
        return self.place.kind == SiteKind.LOCAL

    def close(self) -> None:
        """Closes the sandboxes and the records. The pods continue to run."""
        self.disk.close()
        for quarters in tuple(self.sandboxes.values()):
            quarters.close()
        self.records.close()
