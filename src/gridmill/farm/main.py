"""Starts a farm: it restores the state that is stored in the home, serves tenants, and ticks.

A tick starts admitted deployments, records deployments that have ended, and ends deployments that no tenant
needs.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from subprocess import SubprocessError

from gridmill.disk_space import FULL
from gridmill.domain.amounts import show_seconds
from gridmill.domain.confinement import Isolation
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import PodOrder
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import GridmillError, explained
from gridmill.farm.admission import admit
from gridmill.farm.app import make_app
from gridmill.farm.certificates import Authority
from gridmill.farm.confinement import look_at_isolation, why_not_isolated
from gridmill.farm.deployment import (
    HAS_ROOM,
    AttemptRecord,
    TenantDeployment,
    TenantDeploymentState,
    expired,
    expired_results,
    forgotten,
    left_behind,
    left_by,
    silent,
)
from gridmill.farm.deployment_requests import end_pods, settle
from gridmill.farm.disk import OVER_SECONDS, FarmDisk, TenantLimits, TenantUse
from gridmill.farm.result_export import ResultExporter
from gridmill.farm.state import Farm
from gridmill.farm.store import LostResults, obsolete_losses, open_records
from gridmill.farm.tenant import Invitation, LastContact, Tenant, unknown_tenant
from gridmill.farm.tenant_sandbox import TenantSandbox
from gridmill.farm.unix_users import PASS, end_processes, refuse_together, why_one_user
from gridmill.http.connections import raise_open_files
from gridmill.http.server import Server, serve
from gridmill.ports.site import PodStatus
from gridmill.private_files import remove_tree
from gridmill.process_memory import share_memory_areas
from gridmill.settings import Settings

_LOG = logging.getLogger(__name__)
POLL_SECONDS = 1.0
_NOTE_SECONDS = 10.0
_JUMP_SECONDS = 5.0
_END_SECONDS = 1.0  # short, because other tenants wait meanwhile; the next tick continues the work
_CLOSE_SECONDS = 30.0  # pods that were just told to end may need this time


class TickLoop:
    """The loop of the farm: `tick` does all work that is due at this moment, and `start` repeats `tick`."""

    def __init__(self, farm: Farm, retain_seconds: float) -> None:
        self._farm, self._retain_seconds = farm, retain_seconds
        self._wakeup = threading.Event()
        self._stopped = threading.Event()
        self._contacts_saved = 0.0
        self._clocks = farm.now(), farm.uptime()
        self._is_short = False
        self._still = set[str]()
        """The tenants that had no running process at the last check."""
        self._thread = threading.Thread(target=self._run, name="gridmill-farm", daemon=True)
        farm.wake = self._wakeup.set

    def start(self) -> None:
        """Calls `tick` every second, and whenever the loop is woken."""
        self._thread.start()

    def close(self) -> None:
        """Stops the loop. The pods continue to run after the loop has stopped. The call can be repeated."""
        self._stopped.set()
        self._wakeup.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wakeup.clear()
            try:
                self.tick()
            except GridmillError as error:
                _LOG.warning("farm_tick_failed reason=%s", explained(error))
            except Exception:  # noqa: BLE001  the outermost loop: the next tick can succeed
                _LOG.exception("farm_tick_failed")
            self._wakeup.wait(POLL_SECONDS)

    def tick(self) -> None:
        """Executes one tick of the farm. The process can be killed at any point, because the next tick
        continues the work."""
        self._save_last_contacts()
        self._hang_up_silent()
        tenants = self._farm.records.all(Tenant)
        for tenant in tenants:
            _isolated(tenant.name, partial(self._end_revoked, tenant))
        self._end_expired()
        for tenant in tenants:
            _isolated(tenant.name, partial(self._end_above_limit, tenant))
            _isolated(tenant.name, partial(self._mark_ended, tenant))
            _isolated(tenant.name, partial(self._end_strays, tenant))
        for quarters in tuple(self._farm.sandboxes.values()):
            quarters.files.end_expired_early()
        self._bring_up()
        self._clean()

    def _tenant(self, deployment: TenantDeployment) -> Tenant | None:
        return self._farm.records.find(Tenant, deployment.tenant)

    def _of(self, *states: TenantDeploymentState) -> list[TenantDeployment]:
        return [
            deployment
            for deployment in self._farm.records.all(TenantDeployment)
            if deployment.state in states
        ]

    def _delete_unknown_tenants(self) -> None:
        """Deletes the records of removed tenants that a running request wrote after the removal."""
        records = self._farm.records
        with records.change():
            names = {one.name for one in records.all(Tenant)}
            kept: tuple[LastContact | TenantDeployment | LostResults | AttemptRecord | TenantUse, ...]
            kept = (
                *records.all(LastContact),
                *records.all(TenantUse),
                *records.all(TenantDeployment),
                *records.all(LostResults),
                *records.all(AttemptRecord),
            )
            records.remove(*(one for one in kept if one.tenant not in names))
        for name in self._farm.last_contacts.keys() - names:
            self._farm.last_contacts.pop(name, None)

    def _save_last_contacts(self) -> None:
        now = self._farm.now()
        self._follow_clock(now, self._farm.uptime())
        for name, moment in tuple(self._farm.last_contacts.items()):
            # at most the present time, so that leases do not become longer if the clock was set back
            self._farm.last_contacts[name] = min(moment, now)
        if now - self._contacts_saved >= _NOTE_SECONDS or now < self._contacts_saved:
            self._contacts_saved = now
            self._delete_unknown_tenants()
            contacts = tuple(self._farm.last_contacts.items())
            self._farm.records.put(*(LastContact(tenant=name, time=moment) for name, moment in contacts))
            self._save_uses(now)

    def _follow_clock(self, now: float, uptime: float) -> None:
        """Moves the times of the last contacts if the wall clock jumps, so that a jump ends no pod."""
        jump = (now - self._clocks[0]) - (uptime - self._clocks[1])
        self._clocks = now, uptime
        if abs(jump) >= _JUMP_SECONDS:
            _LOG.warning("clock_jumped seconds=%.0f", jump)
            for name, moment in tuple(self._farm.last_contacts.items()):
                self._farm.last_contacts[name] = moment + jump

    def _save_uses(self, now: float) -> None:
        """Stores the disk use of tenants for the command `gridmill farm tenants`, which reads the
        records."""
        uses = self._farm.disk.uses()
        self._farm.records.put(
            *(
                TenantUse(tenant=name, size_bytes=use.size_bytes, files=use.files, time=now)
                for name, use in uses.items()
            )
        )

    def _hang_up_silent(self) -> None:
        for name in silent(self._farm.last_contacts, self._farm.now()):
            quarters = self._farm.sandboxes.get(name)
            if quarters is not None:
                quarters.relay.hang_up()

    def _bring_up(self) -> None:
        """Starts admitted deployments. The record of a deployment is written before its pods start. After a
        crash, the next tick therefore starts the deployments that were admitted before. While the disk has
        too little space, no deployment starts. A tenant that exceeds its limit is skipped."""
        farm = self._farm
        if farm.disk.recover().is_short and self._evict_caches():
            self._log_short()
            return
        self._is_short = False
        everybody = [one for one in farm.records.all(TenantDeployment) if not self._is_held(one)]
        if farm.shares_nodes:
            admitted = admit(everybody, farm.nodes(), farm.now(), farm.settings.gpu_shares)
        else:
            waiting = [one for one in everybody if one.state == TenantDeploymentState.WAITING]
            admitted = tuple(one.to(TenantDeploymentState.STARTING, farm.now()) for one in waiting)
        for deployment in admitted:
            settle(farm, replace(deployment, state=TenantDeploymentState.WAITING), deployment)
        for deployment in self._of(TenantDeploymentState.STARTING):
            _isolated(deployment.tenant, partial(self._start, deployment))

    def _is_held(self, deployment: TenantDeployment) -> bool:
        return deployment.state == TenantDeploymentState.WAITING and bool(
            self._farm.disk.why_over(deployment.tenant)
        )

    def _evict_caches(self) -> bool:
        """Deletes the caches of tenants that have no running jobs. Returns whether the disk still has too
        little space."""
        farm = self._farm
        busy = {one.tenant for one in self._of(*HAS_ROOM)}
        for tenant in farm.records.all(Tenant):
            if tenant.name not in busy and not tenant.revoked:
                freed = farm.sandbox_of(tenant).remove_caches()
                if freed:
                    _LOG.warning("caches_evicted tenant=%s bytes=%d", tenant.name, freed)
        return farm.disk.room.space().is_short

    def _log_short(self) -> None:
        if not self._is_short:
            _LOG.warning("disk_short reason=%s", self._farm.disk.room.explain())
        self._is_short = True

    def _end_above_limit(self, tenant: Tenant) -> None:
        """Ends the pods of a tenant that continues to exceed its disk limit. A single job that uses too much
        space is ended by its pod. This function handles files outside the folders that the pods observe, and
        files of several jobs that are too large only in sum."""
        why = self._farm.disk.why_over(tenant.name, OVER_SECONDS)
        if not why:
            return
        for deployment in self._of(*HAS_ROOM):
            if deployment.tenant == tenant.name:
                _LOG.warning("tenant_above_limit deployment=%s reason=%s", deployment.id, why)
                self._tear_down(deployment, why)

    def _start(self, deployment: TenantDeployment) -> None:
        tenant = self._tenant(deployment)
        if tenant is None:
            return
        self._still.discard(tenant.name)
        try:
            self._farm.sandbox_of(tenant).bring_up(orders(deployment))
        except (GridmillError, OSError) as error:
            _LOG.warning("bring_up_failed deployment=%s reason=%s", deployment.id, error)
            if is_full(error):
                why = f"no pod could be started: {self._farm.disk.room.explain(tenant.name)}"
                # kept with the reason, because the disk may get space: the next tick tries again
                settle(self._farm, deployment, replace(deployment, message=why))
                return
            why = explained(error) if isinstance(error, GridmillError) else str(error)
            self._tear_down(
                deployment, why
            )  # some pods of the deployment may have started, so they have to end
        else:
            if not settle(self._farm, deployment, deployment.to(TenantDeploymentState.UP, self._farm.now())):
                self._tear_down(deployment, "")  # the deployment was ended while its pods were being started

    def _mark_ended(self, tenant: Tenant) -> None:
        """Releases the capacity of deployments whose pods have ended by themselves."""
        mine = [one for one in self._of(TenantDeploymentState.UP) if one.tenant == tenant.name]
        if not mine:
            return
        seen = self._farm.sandbox_of(tenant).observe([pod for one in mine for pod in one.pods])
        for deployment in mine:
            if all(seen[pod].status == PodStatus.GONE for pod in deployment.pods):
                settle(self._farm, deployment, deployment.to(TenantDeploymentState.GONE, self._farm.now()))
                self._release(deployment)

    def _release(self, deployment: TenantDeployment) -> None:
        """Releases the inputs of pods that have ended."""
        tenant = self._tenant(deployment)
        if tenant is not None:
            for work in left_by(self._farm.records.all(AttemptRecord), deployment):
                self._farm.sandbox_of(tenant).files.delete_draft(work.attempt_id)
            self._farm.sandbox_of(tenant).clear(deployment.pods)

    def _end_strays(self, tenant: Tenant) -> None:
        """Ends all processes of a tenant that has no deployment with capacity, whatever the files of its
        jobs contain, and deletes its unpacked code and empty folders."""
        has_room = any(one.tenant == tenant.name for one in self._of(*HAS_ROOM))
        if not has_room and tenant.name not in self._still:
            if not tenant.revoked:
                self._farm.sandbox_of(tenant).clear_all()
            end_processes(tenant.user, _END_SECONDS)
            if not tenant.revoked:
                self._farm.sandbox_of(tenant).remove_code()
            self._still.add(tenant.name)
        if not has_room and not tenant.revoked:
            self._farm.sandbox_of(tenant).files.tidy()
            if self._farm.disk.why_over(tenant.name):
                self._farm.sandbox_of(tenant).empty_home()

    def _end_expired(self) -> None:
        farm = self._farm
        for deployment in expired(farm.records.all(TenantDeployment), farm.last_contacts, farm.now()):
            silent = show_seconds(deployment.request.lease_seconds)
            _LOG.warning("lease_ended tenant=%s deployment=%s", deployment.tenant, deployment.id)
            why = f"the tenant sent no request for {silent}"
            _isolated(deployment.tenant, partial(self._tear_down, deployment, why))

    def _tear_down(self, deployment: TenantDeployment, why: str) -> None:
        tenant = self._tenant(deployment)
        if tenant is not None and deployment.state != TenantDeploymentState.WAITING:
            end_pods(self._farm, tenant, deployment.pods, _END_SECONDS)
        settle(self._farm, deployment, deployment.to(TenantDeploymentState.GONE, self._farm.now(), why))
        self._release(deployment)

    def _clean(self) -> None:
        farm, now = self._farm, self._farm.now()
        for deployment in expired_results(farm.records.all(TenantDeployment), self._retain_seconds, now):
            _isolated(deployment.tenant, partial(self._record_loss, deployment, now))
        deployments = farm.records.all(TenantDeployment)
        for work in left_behind(farm.records.all(AttemptRecord), deployments, self._retain_seconds, now):
            _LOG.info("abandoned_attempt_removed tenant=%s attempt=%s", work.tenant, work.attempt_id)
            _isolated(work.tenant, partial(self._delete_attempt, work))
        for deployment in forgotten(farm.records.all(TenantDeployment), now):
            _isolated(deployment.tenant, partial(self._remove, deployment))
            farm.records.remove(deployment)
        farm.records.remove(*obsolete_losses(farm.records.all(LostResults), now))

    def _record_loss(self, deployment: TenantDeployment, now: float) -> None:
        """Deletes results that were not downloaded in time. If results were deleted, the loss is recorded.
        The record of the loss is written before the deletion, so a crash in between can only report the loss
        twice."""
        records = self._farm.records
        left = left_by(records.all(AttemptRecord), deployment)
        if any(work.uri for work in left):
            _LOG.warning("results_lost tenant=%s deployment=%s", deployment.tenant, deployment.id)
            records.put(self._loss(deployment, left, now))
        for work in left:
            self._delete_attempt(work)
        self._remove(deployment)
        loss = records.find(LostResults, f"{deployment.tenant}/{deployment.id}")
        records.put(deployment.ended(now, loss.message if loss is not None else ""))

    def _loss(self, deployment: TenantDeployment, left: Sequence[AttemptRecord], now: float) -> LostResults:
        kept = show_seconds(self._retain_seconds)
        names = ", ".join(work.attempt_id for work in left if work.uri)
        message = f"the results of {names} on the farm were not downloaded within {kept} and are deleted"
        return LostResults(deployment=deployment.id, tenant=deployment.tenant, time=now, message=message)

    def _delete_attempt(self, work: AttemptRecord) -> None:
        tenant = self._farm.records.find(Tenant, work.tenant)
        if tenant is not None:
            self._farm.sandbox_of(tenant).files.delete_attempt(work.attempt_id)

    def _remove(self, deployment: TenantDeployment) -> None:
        tenant = self._tenant(deployment)
        if tenant is not None:
            self._farm.sandbox_of(tenant).remove(deployment.pods)

    def _end_revoked(self, tenant: Tenant) -> None:
        """Ends the pods of a revoked tenant and deletes its files. After the files are deleted, another
        tenant can use the name."""
        farm = self._farm
        if not tenant.revoked:
            return
        _LOG.info("tenant_revoked tenant=%s", tenant.name)
        quarters = farm.left_by(tenant)
        mine = farm.deployments_of(tenant)
        quarters.relay.end()
        quarters.tear_down(
            [pod for one in mine if one.state != TenantDeploymentState.WAITING for pod in one.pods]
        )
        end_processes(tenant.user, _END_SECONDS)
        quarters.clear_all()
        quarters.close()
        farm.sandboxes.pop(tenant.name, None)
        farm.disk.remove(tenant.name)
        for folder in (quarters.root, quarters.files.drafts, quarters.settings.home.parent):
            if folder is not None:
                remove_tree(folder)
        losses = [one for one in farm.records.all(LostResults) if one.tenant == tenant.name]
        works = [one for one in farm.records.all(AttemptRecord) if one.tenant == tenant.name]
        invited = [one for one in farm.records.all(Invitation) if one.name == tenant.name]
        with farm.records.change():
            farm.records.remove(
                tenant,
                *mine,
                *losses,
                *works,
                *invited,
                LastContact(tenant=tenant.name, time=0.0),
                TenantUse(tenant=tenant.name, size_bytes=0, files=0, time=0.0),
            )
        farm.last_contacts.pop(tenant.name, None)
        self._still.discard(tenant.name)


def _isolated(tenant: str, act: Callable[[], None]) -> None:
    """Logs errors that concern one tenant, so that the other tenants are processed. The next tick tries
    again."""
    try:
        act()
    except (GridmillError, OSError, RecursionError, SubprocessError) as error:
        _LOG.warning("tenant_failed tenant=%s reason=%s", tenant, error)


def is_full(error: BaseException | None) -> bool:
    """Returns whether an error was caused by a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        error = error.__cause__
    return False


def orders(deployment: TenantDeployment) -> tuple[PodOrder, ...]:
    """Returns the orders of the pods as the site gets them, with the node, the GPUs, and the time for which
    a pod runs without contact to the farm. After that time, the tenant assumes that the pod has ended."""
    placements = {placement.pod_id: placement for placement in deployment.placements}

    def placed_order(given: PodOrder) -> PodOrder:
        order = replace(given, lease_seconds=deployment.request.lease_seconds)
        placement = placements.get(order.pod_id)
        if placement is None:
            return order
        gpus = ",".join(map(str, placement.gpus))
        return replace(order, node=placement.node, settings={**order.settings, "gpus": gpus})

    return tuple(placed_order(order) for order in deployment.request.orders)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningFarm:
    """A farm that is running, with its HTTP server and its loop."""

    farm: Farm
    server: Server
    tick_loop: TickLoop
    exporter: ResultExporter

    def stop(self) -> None:
        """Disconnects the tenants and stops the loop. The pods continue to run. The call can be repeated."""
        for quarters in tuple(self.farm.sandboxes.values()):
            quarters.relay.end()
        self.server.stop()
        self.exporter.close()
        self.tick_loop.close()
        self.farm.close()


def start(
    settings: Settings,
    place: Site,
    address: tuple[str, int],
    *,
    quota_bytes: int,
    retain_seconds: float,
    limits: TenantLimits | None = None,
) -> RunningFarm:
    """Starts the farm. When this function returns, the farm serves its tenants. The caller must have locked
    the home. Raises UnavailableError if the farm cannot listen at the address, StorageError, and
    InputError."""
    raise_open_files()
    share_memory_areas()
    records = open_records(settings)
    one_user = _why_one_user(settings, place)
    isolation = Isolation() if one_user else look_at_isolation(settings.cgroups)
    joined = [tenant for tenant in records.all(Tenant) if not tenant.revoked]
    refuse_together(one_user, joined, why_not_isolated(isolation))
    authority = Authority(settings.home / "farm", time.time())
    farm = Farm(
        settings=settings,
        records=records,
        authority=authority,
        place=place,
        disk=FarmDisk(settings.home / "farm", settings.disk_reserve_bytes, limits),
        quota_bytes=quota_bytes,
        one_user=one_user,
        isolation=isolation,
    )
    keeper = TickLoop(farm, retain_seconds)
    try:
        _take_up(farm)
        server = serve(make_app(farm), host=address[0], port=address[1], tls=authority.context())
    except BaseException:
        farm.close()
        raise
    farm.disk.start()
    keeper.start()
    exporter = exporter_of(farm)
    exporter.start()
    return RunningFarm(farm=farm, server=server, tick_loop=keeper, exporter=exporter)


def exporter_of(farm: Farm) -> ResultExporter:
    """Returns the exporter of the results at this farm."""

    def silent_seconds(tenant: str) -> float:
        return farm.now() - farm.last_contacts.get(tenant, farm.now())

    def sandbox_of(name: str) -> TenantSandbox:
        tenant = farm.records.find(Tenant, name)
        if tenant is None:
            raise unknown_tenant()
        return farm.sandbox_of(tenant)

    return ResultExporter(farm.exports, silent_seconds, sandbox_of, farm.settings.home / "farm")


def _why_one_user(settings: Settings, place: Site) -> str:
    if place.kind != SiteKind.LOCAL:
        return f"a {place.kind.value} cluster starts all jobs as one user"
    tenants = settings.home / "farm" / "tenants"
    tenants.mkdir(exist_ok=True, mode=0o700)
    for passed in (settings.home, tenants.parent, tenants) if os.geteuid() == 0 else ():
        passed.chmod(PASS)  # users of tenants have to pass through these folders, but must not list them
    why = why_one_user(tenants)
    if not why:
        # work for tenants must not have the rights of the supplementary groups of this process
        os.setgroups([])
    return why


def _take_up(farm: Farm) -> None:
    """Opens the sandboxes of all tenants, whose pods may be running, so that these pods can connect."""
    last_contacts = {one.tenant: one.time for one in farm.records.all(LastContact)}
    for tenant in (one for one in farm.records.all(Tenant) if not one.revoked):
        farm.last_contacts[tenant.name] = last_contacts.get(tenant.name, farm.now())
        try:
            farm.sandbox_of(tenant)
        except GridmillError as error:
            _LOG.warning("tenant_not_served tenant=%s reason=%s", tenant.name, explained(error))
