"""The status of farms as text, one line each: GPUs, queue, load, disk, version and the route to the farm."""

from collections import Counter
from collections.abc import Sequence

from gridmill.domain.amounts import roughly, show_bytes, show_count, show_seconds
from gridmill.domain.farm_protocol import FarmLook, Queued
from gridmill.domain.route import Carriage, Crossing, Pace, Paces, Way
from gridmill.domain.site import Seat
from gridmill.domain.views import FarmView


def farm_line(view: FarmView) -> str:
    """`gpu-farm: 3 of 4 GPUs free; nobody waits; ...`."""
    said = [view.problem] if view.look is None else _said(view.look)
    return f"{view.site}: {'; '.join(filter(None, (*said, way_words(view.way))))}"


def _said(look: FarmLook) -> list[str]:
    cpus = sum(node.capacity.cpus for node in look.nodes)
    busy = sum(one.busy_cpus for one in look.looks.values())
    load = f"{busy:.0f} of {cpus:.0f} CPUs busy" if look.looks else f"{cpus:.0f} CPUs"
    disk = f", disk has {show_bytes(look.disk_free_bytes)} left" if look.disk_free_bytes else ""
    staged = f"{show_bytes(look.staged_bytes)} of {show_bytes(look.quota_bytes)} staged{disk}"
    return [_gpus(look), load, _line(look), staged, f"version {look.version}", *look.warnings]


def _gpus(look: FarmLook) -> str:
    count = sum(node.capacity.gpus for node in look.nodes)
    seats = [seat for one in look.looks.values() for seat in one.seats]
    if not seats:
        return show_count(count, "GPU") if count else ""
    return f"{sum(not seat.taken for seat in seats)} of {show_count(count, 'GPU')} free"


def _line(look: FarmLook) -> str:
    if not look.waiting:
        return "nobody waits"
    own = [_place(one) for one in look.queue]
    return f"{show_count(look.waiting, 'deployment')} waiting there" + (f" ({', '.join(own)})" if own else "")


def _place(one: Queued) -> str:
    behind = f"{one.deployment} behind {one.before}" if one.before else f"{one.deployment} next"
    return behind if one.seconds is None else f"{behind}: {roughly(one.seconds)}"


def way_words(way: Way | None) -> str:
    """`80 MiB/s there, 92 MiB/s back, round trip 2 ms`."""
    if way is None:
        return "the way there is not measured yet"
    trip = way.round_trip_seconds
    told = [*_paces(Paces(there=way.there, back=way.back)), *_others(way)]
    return ", ".join(told if trip is None else [*told, f"round trip {show_seconds(trip)}"])


def _paces(paces: Paces) -> list[str]:
    return [_pace(paces.there, "there"), _pace(paces.back, "back")]


def _others(way: Way) -> list[str]:
    return [f"by {name}: {', '.join(_paces(one))}" for name, one in sorted(way.others.items())]


def _pace(pace: Pace | None, direction: str) -> str:
    if pace is None:
        return f"{direction} not measured yet"
    return f"{show_bytes(pace.bytes_per_second)}/s {direction}" + ("" if pace.transfers else " by a probe")


def carriage_words(carriage: Carriage) -> str:
    """`75 MiB there in 7.5 s (25% was there), 1 MiB back in 500 ms`."""
    share = carriage.there.reused_share
    there = f" ({share:.0%} was there)" if share else ""
    return f"{_crossing(carriage.there, 'there')}{there}, {_crossing(carriage.back, 'back')}"


def _crossing(one: Crossing, direction: str) -> str:
    took = f" in {show_seconds(one.seconds)}" if one.carried_bytes else ""
    return f"{show_bytes(one.carried_bytes)} {direction}{took}"


def seat_words(seats: Sequence[Seat]) -> list[str]:
    """`0 trainer-1`, `1 free`, `2 taken`; of one that is shared `0 trainer-1, 3 x free`."""
    gpus: dict[int, Counter[str]] = {}
    for seat in seats:
        who = seat.deployment or ("taken" if seat.taken else "free")
        gpus.setdefault(seat.gpu, Counter())[who] += 1
    return [
        f"{gpu} {', '.join(_times(who, count) for who, count in some.items())}" for gpu, some in gpus.items()
    ]


def _times(who: str, count: int) -> str:
    return who if count == 1 else f"{count} x {who}"
