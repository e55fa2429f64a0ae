"""Builds a farm in this process, and opens the records of its tenants."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gridmill.bootstrap.home_lock import lock_home
from gridmill.domain.frozen import dataclass
from gridmill.domain.site import Site
from gridmill.errors import UnavailableError
from gridmill.farm.deployment import HAS_ROOM, TenantDeployment
from gridmill.farm.disk import TenantLimits, TenantUse
from gridmill.farm.listening import listening, note_address
from gridmill.farm.store import RecordStore, open_records
from gridmill.farm.tenant import LastContact, Tenant
from gridmill.ports.host import FarmAddress, ServedFarm, TenantRecords, TenantView
from gridmill.settings import Settings

if TYPE_CHECKING:
    from gridmill.farm.main import RunningFarm


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningFarm:
    """See `ports.host.ServedFarm`."""

    settings: Settings
    running: "RunningFarm"

    @property
    def address(self) -> str:
        return self.running.server.address.removeprefix("https://")

    @property
    def fingerprint(self) -> str:
        return self.running.farm.authority.fingerprint

    @property
    def one_user(self) -> str:
        return self.running.farm.one_tenant

    def announce(self, address: FarmAddress) -> None:
        note_address(self.settings, address)

    def count_tenants(self) -> int:
        return len(self.running.farm.records.all(Tenant))

    def invite(self) -> str:
        return _invite(self.running.farm.records)


@contextmanager
def serve_farm(
    settings: Settings,
    place: Site,
    address: tuple[str, int],
    *,
    quota_bytes: int,
    retain_seconds: float,
    limits: tuple[int | None, int | None] = (None, None),
) -> Iterator[ServedFarm]:
    """Runs a farm until the end of the `with` block. After the block, the pods of the farm continue to run.
    Raises InputError, UnavailableError, HomeInUseError, StorageError."""
    _want_tls()
    # imported here, because it loads `cryptography`, which may not be installed
    from gridmill.farm.main import start

    size_bytes, files = limits
    with lock_home(settings.home):
        running = start(
            settings,
            place,
            address,
            quota_bytes=quota_bytes,
            retain_seconds=retain_seconds,
            limits=TenantLimits(size_bytes=size_bytes, files=files),
        )
        try:
            yield _RunningFarm(settings=settings, running=running)
        finally:
            running.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class _TenantRecords:
    """See `ports.host.TenantRecords`."""

    records: RecordStore
    listening: FarmAddress

    def tenants(self) -> tuple[TenantView, ...]:
        last_contacts = {one.tenant: one.time for one in self.records.all(LastContact)}
        uses = {one.tenant: one.size_bytes for one in self.records.all(TenantUse)}
        here = [one.tenant for one in self.records.all(TenantDeployment) if one.state in HAS_ROOM]
        return tuple(
            TenantView(
                name=one.name,
                version=one.version,
                added=one.added,
                last_contact=last_contacts.get(one.name, one.added),
                user=one.user,
                deployments=here.count(one.name),
                revoked=one.revoked,
                disk_bytes=uses.get(one.name, 0),
            )
            for one in self.records.all(Tenant)
        )

    def invite(self, name: str = "") -> str:
        return _invite(self.records, name)

    def revoke(self, name: str) -> None:
        # imported here, because it loads `cryptography`, which may not be installed
        from gridmill.farm.join import revoke

        revoke(self.records, name)


@contextmanager
def open_desk(settings: Settings) -> Iterator[TenantRecords]:
    """Yields the records of the home's farm, which are open until the end of the `with` block. Raises
    NotFoundError, StorageError."""
    address = listening(settings)
    _want_tls()
    records = open_records(settings)
    try:
        yield _TenantRecords(records=records, listening=address)
    finally:
        records.close()


def _invite(records: RecordStore, name: str = "") -> str:
    # imported here, because it loads `cryptography`, which may not be installed
    from gridmill.farm.join import invite

    return invite(records, time.time(), name)


def _want_tls() -> None:
    """Raises UnavailableError if no certificate can be created."""
    if find_spec("cryptography") is None:
        raise UnavailableError(
            "a farm needs certificates, and the package `cryptography` is not installed",
            hint="pip install 'gridmill[tls]'",
        )
