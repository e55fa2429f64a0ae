"""Requests of a tenant for its deployments: bring them up, report their state, end them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from shutil import disk_usage

from gridmill.domain.amounts import roughly, show_count
from gridmill.domain.farm_protocol import FARM_PROTOCOL, Deploy, FarmLook
from gridmill.domain.pod_protocol import PodEvent
from gridmill.domain.site import Node
from gridmill.errors import GridmillError
from gridmill.farm.admission import Forecast, check_size, forecast, queue, queued, seats
from gridmill.farm.deployment import HAS_ROOM, Lodging, LodgingState, check_deploy, check_id
from gridmill.farm.farm import Farm
from gridmill.farm.store import Loss
from gridmill.farm.tenant import Source
from gridmill.farm.tenant_sandbox import Quarters
from gridmill.farm.unix_users import PATIENCE_SECONDS, end_processes
from gridmill.ports.site import PodSight, Sight, Sights


def look(farm: Farm, source: Source) -> FarmLook:
    """The farm as that source sees it; takes a moment."""
    quarters = farm.quarters_of(source)
    lost = [one for one in farm.records.all(Loss) if one.source == source.name]
    everybody, nodes = farm.records.all(Lodging), quarters.site.nodes()
    shares = farm.settings.gpu_shares
    given = seats(everybody, nodes, source.name, shares) if farm.shares_nodes else {}
    expected = _expected(farm, everybody, nodes)
    looks = quarters.site.looks()
    return FarmLook(
        version=farm.version,
        protocol=FARM_PROTOCOL,
        root=str(quarters.root),
        nodes=nodes,
        looks={name: replace(look, seats=given.get(name, ())) for name, look in looks.items()},
        waiting=len(queue(everybody)),
        queue=queued(everybody, source.name, expected.starts),
        openings=expected.openings,
        staged_bytes=quarters.carried.store.size_bytes,
        quota_bytes=farm.quota_bytes,
        disk_free_bytes=disk_usage(quarters.root).free,
        warnings=tuple(one.message for one in lost),
    )


def deploy(farm: Farm, source: Source, deployment_id: str, wanted: Deploy) -> None:
    """Bring up its pods as soon as there is room. May be repeated, also after they have ended: no pod
    comes up twice. Raises InputError, ConflictError, CapacityError."""
    nodes = farm.quarters_of(source).site.nodes() if farm.shares_nodes else ()
    with farm.records.change():
        farm.check(source)
        everybody = farm.records.all(Lodging)
        number = max((one.number for one in everybody), default=0) + 1
        lodging = Lodging(
            id=deployment_id, source=source.name, number=number, deploy=wanted, since=farm.now()
        )
        mine = [one for one in everybody if one.source == source.name]
        check_deploy(lodging, [one for one in mine if one.id != deployment_id])
        if any(one.id == deployment_id for one in mine):
            return
        if farm.shares_nodes:
            check_size(lodging, nodes, farm.settings.gpu_shares)
        farm.records.put(lodging)
    farm.wake()


def observe(farm: Farm, source: Source, pods: Sequence[str]) -> Sights:
    """How they look; of those that are gone what they said last. Raises InputError."""
    for pod in pods:
        check_id(pod)
    quarters, everybody = farm.quarters_of(source), farm.records.all(Lodging)
    lodging_of = {pod: one for one in everybody if one.source == source.name for pod in one.pods}
    waits = _waits(farm, everybody)
    sights = dict(_before(lodging_of, waits, pods))
    sights |= _seen(quarters, lodging_of, [pod for pod in pods if pod not in sights])
    gone = [pod for pod, sight in sights.items() if sight.sight == Sight.GONE]
    return Sights(sights=sights, words=_words(quarters, gone))


def _expected(farm: Farm, everybody: Sequence[Lodging], nodes: Sequence[Node]) -> Forecast:
    """Nothing of a cluster, whose own queue decides."""
    if not farm.shares_nodes:
        return Forecast(starts={}, openings=())
    return forecast(everybody, nodes, farm.now(), farm.settings.gpu_shares)


def _waits(farm: Farm, everybody: Sequence[Lodging]) -> Mapping[int, str]:
    """What is told of each that waits, by its number: home shows it, and keeps each change."""
    line = queue(everybody)
    starts = _expected(farm, everybody, farm.nodes()).starts if line else {}
    return {one.number: _place(place, starts.get(one.number)) for place, one in enumerate(line)}


def _place(ahead: int, seconds: float | None) -> str:
    told = f"{show_count(ahead, 'deployment')} before it" if ahead else "it is the next"
    return told if seconds is None else f"{told}, {roughly(seconds)}"


def _before(
    lodging_of: Mapping[str, Lodging], waits: Mapping[int, str], pods: Iterable[str]
) -> Iterable[tuple[str, PodSight]]:
    """Of pods whose turn has not come, and of those that the farm never brought up."""
    for pod in pods:
        lodging = lodging_of.get(pod)
        if lodging is None:
            yield pod, PodSight(sight=Sight.GONE, message="it was never started")
        elif lodging.state == LodgingState.WAITING:
            told = waits.get(lodging.number, "it is the next")
            yield pod, PodSight(sight=Sight.QUEUED, message=f"waits for room on the farm; {told}")
        elif lodging.state == LodgingState.STARTING:
            yield pod, PodSight(sight=Sight.QUEUED, message="is being brought up")


def _seen(
    quarters: Quarters, lodging_of: Mapping[str, Lodging], pods: Sequence[str]
) -> Mapping[str, PodSight]:
    """What the site says, and what we know of those that we ended."""
    seen = dict(quarters.observe(pods)) if pods else {}
    for pod in pods:
        why = lodging_of[pod].message
        if why and seen[pod].sight == Sight.GONE:
            seen[pod] = PodSight(sight=Sight.GONE, message=why, use=seen[pod].use)
    return seen


def _words(quarters: Quarters, pods: Iterable[str]) -> Mapping[str, tuple[PodEvent, ...]]:
    found = ((pod, quarters.last_words(pod)) for pod in pods)
    return {pod: words for pod, words in found if words}


def end(farm: Farm, source: Source, pods: Sequence[str]) -> None:
    """They are gone when this returns, and do not come later. May be repeated; others' pods are no business
    of this source."""
    wanted = {check_id(pod) for pod in pods}
    _withdraw(farm, source, wanted)
    brought = [
        one
        for one in farm.lodgings(source)
        if one.state not in (LodgingState.WAITING, LodgingState.ENDED) and wanted & set(one.pods)
    ]
    quarters = farm.quarters_of(source)
    turn_out(farm, source, sorted(wanted))
    left = [one for one in brought if not _is_gone(quarters, one)]
    if left and _are_its_last(farm, source, wanted):
        end_processes(source.user)  # its jobs can hold what tells that a pod lives
    for lodging in brought:
        if lodging not in left or _is_gone(quarters, lodging):
            settle(farm, lodging, lodging.ended(farm.now()))
    farm.wake()


def turn_out(
    farm: Farm, source: Source, pods: Sequence[str], patience_seconds: float = PATIENCE_SECONDS
) -> None:
    """These pods are gone when this returns; where its jobs have damaged what tells of them, all that runs
    for the source ends once nothing else of it has room. Raises UnavailableError, OSError."""
    try:
        farm.quarters_of(source).tear_down(pods)
    except (GridmillError, OSError):
        if source.user is None or not _are_its_last(farm, source, set(pods)):
            raise
        end_processes(source.user, patience_seconds)


def _is_gone(quarters: Quarters, lodging: Lodging) -> bool:
    return all(one.sight == Sight.GONE for one in quarters.observe(lodging.pods).values())


def _are_its_last(farm: Farm, source: Source, pods: set[str]) -> bool:
    return all(pods >= set(one.pods) for one in farm.lodgings(source) if one.state in HAS_ROOM)


def _withdraw(farm: Farm, source: Source, wanted: set[str]) -> None:
    """Those that wait are no longer wanted."""
    with farm.records.change():
        for lodging in farm.lodgings(source):
            if lodging.state == LodgingState.WAITING and wanted & set(lodging.pods):
                left = lodging.without(wanted)
                farm.records.put(left if left.pods else lodging.ended(farm.now()))


def settle(farm: Farm, before: Lodging, after: Lodging) -> bool:
    """Keep `after`, unless something else has become of it meanwhile."""
    with farm.records.change():
        found = next((one for one in farm.records.all(Lodging) if one.number == before.number), None)
        if found is None or found.state != before.state:
            return False
        farm.records.put(after)
        return True
