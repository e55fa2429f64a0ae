"""Starts a farm: restores the state in its home, listens for tenants and ticks.

A tick brings up admitted deployments, records ended ones, ends those that no tenant wants.
"""

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from gridmill.domain.amounts import show_seconds
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import PodOrder
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import GridmillError, explained
from gridmill.farm.admission import admit
from gridmill.farm.app import make_app
from gridmill.farm.certificates import Authority
from gridmill.farm.deployment import (
    HAS_ROOM,
    Lodging,
    LodgingState,
    Work,
    expired,
    forgotten,
    left_behind,
    left_by,
    silent,
    spoiled,
)
from gridmill.farm.deployments import settle, turn_out
from gridmill.farm.farm import Farm
from gridmill.farm.store import Loss, old_news, open_records
from gridmill.farm.tenant import Heard, Invitation, Source
from gridmill.farm.unix_users import PASS, end_processes, refuse_together, why_one_user
from gridmill.http.connections import raise_open_files
from gridmill.http.server import Server, serve
from gridmill.ports.site import Sight
from gridmill.settings import Settings

_LOG = logging.getLogger(__name__)
LOOK_SECONDS = 1.0
_NOTE_SECONDS = 10.0
_END_SECONDS = 1.0  # other sources wait meanwhile; the next tick goes on
_CLOSE_SECONDS = 30.0  # what it ends just now takes its time


class Keeper:
    """`tick` does what is due; `start` does it again and again."""

    def __init__(self, farm: Farm, retain_seconds: float) -> None:
        self._farm, self._retain_seconds = farm, retain_seconds
        self._bell = threading.Event()
        self._over = threading.Event()
        self._noted = 0.0
        self._still = set[str]()  # sources of which nothing has run since it was looked at
        self._thread = threading.Thread(target=self._run, name="gridmill-farm", daemon=True)
        farm.wake = self._bell.set

    def start(self) -> None:
        """Each second, and when it is woken."""
        self._thread.start()

    def close(self) -> None:
        """Pods go on. May be repeated."""
        self._over.set()
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._over.is_set():
            self._bell.clear()
            try:
                self.tick()
            except GridmillError as error:
                _LOG.warning("farm_tick_failed reason=%s", explained(error))
            except Exception:  # noqa: BLE001  the outermost loop: the next tick may fare better
                _LOG.exception("farm_tick_failed")
            self._bell.wait(LOOK_SECONDS)

    def tick(self) -> None:
        """Once. May be killed anywhere: the next one goes on."""
        self._note_heard()
        self._hang_up_silent()
        sources = self._farm.records.all(Source)
        for source in sources:
            _apart(source.name, partial(self._turn_out_revoked, source))
        self._end_expired()
        for source in sources:
            _apart(source.name, partial(self._note_gone, source))
            _apart(source.name, partial(self._end_strays, source))
        self._bring_up()
        self._clean()

    def _source(self, lodging: Lodging) -> Source | None:
        return self._farm.records.find(Source, lodging.source)

    def _of(self, *states: LodgingState) -> list[Lodging]:
        return [one for one in self._farm.records.all(Lodging) if one.state in states]

    def _forget_strangers(self) -> None:
        """What a request that was under way has noted for a source that was removed meanwhile."""
        records = self._farm.records
        with records.change():
            known = {one.name for one in records.all(Source)}
            kept: tuple[Heard | Lodging | Loss | Work, ...]
            kept = (*records.all(Heard), *records.all(Lodging), *records.all(Loss), *records.all(Work))
            records.remove(*(one for one in kept if one.source not in known))
        for name in self._farm.heard.keys() - known:
            self._farm.heard.pop(name, None)

    def _note_heard(self) -> None:
        now = self._farm.now()
        for name, moment in tuple(self._farm.heard.items()):
            self._farm.heard[name] = min(moment, now)  # where the clock was set back, leases are no longer
        if now - self._noted >= _NOTE_SECONDS or now < self._noted:
            self._noted = now
            self._forget_strangers()
            heard = tuple(self._farm.heard.items())
            self._farm.records.put(*(Heard(source=name, time=moment) for name, moment in heard))

    def _hang_up_silent(self) -> None:
        for name in silent(self._farm.heard, self._farm.now()):
            quarters = self._farm.quarters.get(name)
            if quarters is not None:
                quarters.relay.hang_up()

    def _bring_up(self) -> None:
        """The commit is before the effect: what was admitted before a crash is brought up after it."""
        farm = self._farm
        if farm.shares_nodes:
            admitted = admit(farm.records.all(Lodging), farm.nodes(), farm.now(), farm.settings.gpu_shares)
        else:
            waiting = self._of(LodgingState.WAITING)
            admitted = tuple(one.to(LodgingState.STARTING, farm.now()) for one in waiting)
        for lodging in admitted:
            settle(farm, replace(lodging, state=LodgingState.WAITING), lodging)
        for lodging in self._of(LodgingState.STARTING):
            _apart(lodging.source, partial(self._start, lodging))

    def _start(self, lodging: Lodging) -> None:
        source = self._source(lodging)
        if source is None:
            return
        self._still.discard(source.name)
        try:
            self._farm.quarters_of(source).bring_up(orders(lodging))
        except (GridmillError, OSError) as error:
            _LOG.warning("bring_up_failed deployment=%s reason=%s", lodging.id, error)
            why = explained(error) if isinstance(error, GridmillError) else str(error)
            self._tear_down(lodging, why)  # those that did come up
        else:
            if not settle(self._farm, lodging, lodging.to(LodgingState.UP, self._farm.now())):
                self._tear_down(lodging, "")  # it was ended meanwhile

    def _note_gone(self, source: Source) -> None:
        """Whose pods have ended by themselves leaves room."""
        mine = [one for one in self._of(LodgingState.UP) if one.source == source.name]
        if not mine:
            return
        seen = self._farm.quarters_of(source).observe([pod for one in mine for pod in one.pods])
        for lodging in mine:
            if all(seen[pod].sight == Sight.GONE for pod in lodging.pods):
                settle(self._farm, lodging, lodging.to(LodgingState.GONE, self._farm.now()))
                self._let_go(lodging)

    def _let_go(self, lodging: Lodging) -> None:
        """Its pods read nothing any more."""
        source = self._source(lodging)
        if source is not None:
            for work in left_by(self._farm.records.all(Work), lodging):
                self._farm.quarters_of(source).carried.over(work.attempt_id)

    def _end_strays(self, source: Source) -> None:
        """When nothing of it has room any more nothing of it runs, whatever its jobs have made us believe,
        and nobody wants its code, and the folders that its files were in."""
        has_room = any(one.source == source.name for one in self._of(*HAS_ROOM))
        if not has_room and source.name not in self._still:
            end_processes(source.user, _END_SECONDS)
            if not source.revoked:
                self._farm.quarters_of(source).remove_code()
            self._still.add(source.name)
        if not has_room and not source.revoked:
            self._farm.quarters_of(source).carried.tidy()

    def _end_expired(self) -> None:
        farm = self._farm
        for lodging in expired(farm.records.all(Lodging), farm.heard, farm.now()):
            silent = show_seconds(lodging.deploy.lease_seconds)
            _LOG.warning("lease_ended source=%s deployment=%s", lodging.source, lodging.id)
            why = f"nothing was heard of its source for {silent}"
            _apart(lodging.source, partial(self._tear_down, lodging, why))

    def _tear_down(self, lodging: Lodging, why: str) -> None:
        source = self._source(lodging)
        if source is not None and lodging.state != LodgingState.WAITING:
            turn_out(self._farm, source, lodging.pods, _END_SECONDS)
        settle(self._farm, lodging, lodging.to(LodgingState.GONE, self._farm.now(), why))
        self._let_go(lodging)

    def _clean(self) -> None:
        farm, now = self._farm, self._farm.now()
        for lodging in spoiled(farm.records.all(Lodging), self._retain_seconds, now):
            _apart(lodging.source, partial(self._lose, lodging, now))
        lodgings = farm.records.all(Lodging)
        for work in left_behind(farm.records.all(Work), lodgings, self._retain_seconds, now):
            _LOG.info("left_behind_removed source=%s attempt=%s", work.source, work.attempt_id)
            _apart(work.source, partial(self._forget, work))
        for lodging in forgotten(farm.records.all(Lodging), now):
            _apart(lodging.source, partial(self._remove, lodging))
            farm.records.remove(lodging)
        farm.records.remove(*old_news(farm.records.all(Loss), now))

    def _lose(self, lodging: Lodging, now: float) -> None:
        """What nobody took home in time goes; where nothing was left nothing is lost. It is told before
        it goes: killed in between we tell it once more."""
        records = self._farm.records
        left = left_by(records.all(Work), lodging)
        if any(work.uri for work in left):
            _LOG.warning("results_lost source=%s deployment=%s", lodging.source, lodging.id)
            records.put(self._loss(lodging, left, now))
        for work in left:
            self._forget(work)
        self._remove(lodging)
        loss = records.find(Loss, f"{lodging.source}/{lodging.id}")
        records.put(lodging.ended(now, loss.message if loss is not None else ""))

    def _loss(self, lodging: Lodging, left: Sequence[Work], now: float) -> Loss:
        kept = show_seconds(self._retain_seconds)
        names = ", ".join(work.attempt_id for work in left if work.uri)
        told = f"what {names} left at the farm was fetched by nobody for {kept}, and is lost"
        return Loss(lodging=lodging.id, source=lodging.source, time=now, message=told)

    def _forget(self, work: Work) -> None:
        source = self._farm.records.find(Source, work.source)
        if source is not None:
            self._farm.quarters_of(source).carried.forget(work.attempt_id)

    def _remove(self, lodging: Lodging) -> None:
        source = self._source(lodging)
        if source is not None:
            self._farm.quarters_of(source).remove(lodging.pods)

    def _turn_out_revoked(self, source: Source) -> None:
        """Its pods end, all that it had here goes, and its name is free again."""
        farm = self._farm
        if not source.revoked:
            return
        _LOG.info("source_revoked source=%s", source.name)
        quarters = farm.left_by(source)
        mine = farm.lodgings(source)
        quarters.relay.end()
        quarters.tear_down([pod for one in mine if one.state != LodgingState.WAITING for pod in one.pods])
        end_processes(source.user, _END_SECONDS)
        quarters.close()
        farm.quarters.pop(source.name, None)
        for folder in (quarters.root, quarters.carried.drafts, quarters.settings.home.parent):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        losses = [one for one in farm.records.all(Loss) if one.source == source.name]
        works = [one for one in farm.records.all(Work) if one.source == source.name]
        invited = [one for one in farm.records.all(Invitation) if one.name == source.name]
        with farm.records.change():
            farm.records.remove(source, *mine, *losses, *works, *invited, Heard(source=source.name, time=0.0))
        farm.heard.pop(source.name, None)
        self._still.discard(source.name)


def _apart(source: str, act: Callable[[], None]) -> None:
    """What fails for one source is tried again with the next tick, and holds up no other."""
    try:
        act()
    except (GridmillError, OSError) as error:
        _LOG.warning("source_fails source=%s reason=%s", source, error)


def orders(lodging: Lodging) -> tuple[PodOrder, ...]:
    """As the site is told them: where each is, which GPUs are its alone, and for how long it may be without
    us: its source believes that it has ended then."""
    berths = {berth.pod_id: berth for berth in lodging.berths}

    def berthed(given: PodOrder) -> PodOrder:
        order = replace(given, lease_seconds=lodging.deploy.lease_seconds)
        berth = berths.get(order.pod_id)
        if berth is None:
            return order
        gpus = ",".join(map(str, berth.gpus))
        return replace(order, node=berth.node, settings={**order.settings, "gpus": gpus})

    return tuple(berthed(order) for order in lodging.deploy.orders)


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
    raise_open_files()
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
