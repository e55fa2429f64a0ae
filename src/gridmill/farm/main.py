"""Starts a farm: restores the state in its home and listens for tenants."""

import logging
import os
import time

from gridmill.domain.frozen import dataclass
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import GridmillError, explained
from gridmill.farm.app import make_app
from gridmill.farm.certificates import Authority
from gridmill.farm.farm import Farm
from gridmill.farm.store import open_records
from gridmill.farm.tenant import Heard, Source
from gridmill.farm.tick import Keeper
from gridmill.farm.unix_users import PASS, refuse_together, why_one_user
from gridmill.http.server import Server, serve
from gridmill.settings import Settings

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A farm that is up."""

    farm: Farm
    server: Server
    keeper: Keeper

    def stop(self) -> None:
        """Sources are let go of; pods go on. May be repeated."""
        for quarters in tuple(self.farm.quarters.values()):
            quarters.relay.end()
        self.server.stop()
        self.keeper.close()
        self.farm.close()


def start(
    settings: Settings, place: Site, address: tuple[str, int], *, quota_bytes: int, retain_seconds: float
) -> Running:
    """Up when this returns; the home's lock is the caller's. Raises UnavailableError where it cannot listen,
    StorageError, InputError."""
    records = open_records(settings)
    one_user = _why_one_user(settings, place)
    refuse_together(one_user, [one for one in records.all(Source) if not one.revoked])
    authority = Authority(settings.home / "farm", time.time())
    farm = Farm(
        settings=settings,
        records=records,
        authority=authority,
        place=place,
        quota_bytes=quota_bytes,
        one_user=one_user,
    )
    keeper = Keeper(farm, retain_seconds)
    try:
        _take_up(farm)
        server = serve(make_app(farm), host=address[0], port=address[1], tls=authority.context())
    except BaseException:
        farm.close()
        raise
    keeper.start()
    return Running(farm=farm, server=server, keeper=keeper)


def _why_one_user(settings: Settings, place: Site) -> str:
    if place.kind != SiteKind.LOCAL:
        return f"a {place.kind.value} cluster starts its jobs as one user"
    sources = settings.home / "farm" / "sources"
    sources.mkdir(exist_ok=True, mode=0o700)
    for passed in (settings.home, sources.parent, sources) if os.geteuid() == 0 else ():
        passed.chmod(PASS)  # others may pass, and see nothing
    why = why_one_user(sources)
    if not why:
        os.setgroups([])  # what is done for a source is done with none of our groups
    return why


def _take_up(farm: Farm) -> None:
    """Those whose pods may live: they dial."""
    heard = {one.source: one.time for one in farm.records.all(Heard)}
    for source in (one for one in farm.records.all(Source) if not one.revoked):
        farm.heard[source.name] = heard.get(source.name, farm.now())
        try:
            farm.quarters_of(source)
        except GridmillError as error:
            _LOG.warning("source_not_served source=%s reason=%s", source.name, explained(error))
