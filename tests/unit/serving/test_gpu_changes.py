"""Changes of a service that shares a GPU, compared with all ways in which its replicas start and end."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.amounts import GIB
from gridmill.domain.gpu_sharing import GpuClaim, GpuMeasurement, GpuNeed, check_change, check_return
from gridmill.domain.serving import ReplicaState, ServedVersion, ServiceOrder
from gridmill.errors import CapacityError
from gridmill.serving.replica_plan import Drain, Kill, RunningReplica, Start, decide_replicas

SHARES = 24
CLAIMS = st.builds(GpuClaim, shares=st.integers(1, SHARES), gpu_shares=st.just(SHARES))
MEASURED = st.builds(
    GpuMeasurement,
    replica_bytes=st.integers(1, 14).map(lambda number: number * GIB),
    gpu_bytes=st.just(SHARES * GIB),
    max_batch=st.just(256),
)
Replicas = Counter[tuple[ServiceOrder, ReplicaState]]
"""How many replicas of each order have each state."""


@st.composite
def needs(draw: st.DrawFn) -> GpuNeed:
    versions = draw(st.sampled_from([(), ("m@1",), ("m@2",), ("m@1", "m@2")]))
    exact, least = draw(st.one_of(st.none(), MEASURED)), draw(st.one_of(st.none(), MEASURED))
    return GpuNeed(
        versions=versions,
        replicas=draw(st.integers(1, 3)),
        max_batch=256,
        measured=exact if versions else None,
        at_least=None if exact or not versions else least,
    )


def order_for(need: GpuNeed, claim: GpuClaim, generation: int) -> ServiceOrder:
    labels = need.versions or ("cpu@1",)
    return ServiceOrder(
        name="rain",
        versions=tuple(ServedVersion(label=one, folder=f"/{generation}") for one in labels),
        replicas=need.replicas,
        gpu_memory_bytes=need.version_limit(claim, SHARES * GIB),
    )


def following(order: ServiceOrder, present: Replicas) -> list[Replicas]:
    """The replicas after each event that can happen next: the parent process acts, or one replica gets ready
    or ends its drain."""
    running = [
        RunningReplica(number=number, order=one, state=state, since=0.0)
        for number, (one, state) in enumerate(present.elements())
    ]
    acted = present.copy()
    for action in decide_replicas(order, running, now=1.0, start_at=0.0):
        match action:
            case Start():
                acted[order, ReplicaState.STARTING] += 1
            case Drain(number=number) | Kill(number=number):
                one = running[number]
                acted[one.order, one.state] -= 1
                acted[one.order, ReplicaState.DRAINING] += 1
    states = [acted]
    for one, state in present:
        if state is not ReplicaState.READY:
            after = present.copy()
            after[one, state] -= 1
            if state is ReplicaState.STARTING:
                after[one, ReplicaState.READY] += 1
            states.append(after)
    return [+one for one in states]


def reachable(order: ServiceOrder, begin: list[Replicas]) -> list[Replicas]:
    """All replicas that can run together while the parent process changes to an order."""
    seen = {frozenset(one.items()): one for one in begin}
    left = list(begin)
    while left:
        for after in following(order, left.pop()):
            if frozenset(after.items()) not in seen:
                seen[frozenset(after.items())] = after
                left.append(after)
    return list(seen.values())


def used(replicas: Replicas) -> int:
    return sum(
        count * (one.gpu_memory_bytes or 0) * len(one.versions) for (one, _), count in replicas.items()
    )


def is_admitted(check: object, *given_: object) -> bool:
    try:
        check(*given_)  # type: ignore[operator]
    except CapacityError:
        return False
    return True


@given(claim=CLAIMS, before=needs(), after=needs(), back=st.booleans())
def test_a_change_is_admitted_exactly_if_no_order_of_events_needs_more_than_the_part_of_the_service(
    claim: GpuClaim, before: GpuNeed, after: GpuNeed, back: bool
) -> None:
    has = claim.memory_bytes(SHARES * GIB)
    old, new = order_for(before, claim, 1), order_for(after, claim, 2)
    steady = Counter({(old, ReplicaState.READY): before.replicas})
    if not (before.known or after.known):
        return  # the size of the GPU is not known
    states = reachable(new, [steady])
    known = after.known
    reserved = (after.replicas + 1) * len(after.versions) * known.limit_bytes if known is not None else 0
    fits = max(reserved, *map(used, states)) <= has
    admitted = is_admitted(check_change, "rain", claim, before, after)
    if not after.versions:
        assert admitted
        assert max(map(used, states)) <= has
        return
    assert admitted == fits
    if not admitted or not back:
        return
    # from each moment of an admitted change, the service can return
    if is_admitted(check_return, "rain", claim, after, before):
        assert max(map(used, reachable(old, states))) <= has
    else:
        assert before.replicas != after.replicas
