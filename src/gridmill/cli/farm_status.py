"""The status of farms as text. Each line shows the GPUs, queue, load, disk, version and network route of a
farm."""

from collections import Counter
from collections.abc import Sequence

from gridmill.domain.amounts import roughly, show_bytes, show_count, show_seconds
from gridmill.domain.farm_protocol import FarmStatus, QueuedDeployment
from gridmill.domain.route import AttemptTransfers, Route, Transfer, TransferRate, TransferRates
from gridmill.domain.site import GpuSlot
from gridmill.domain.views import FarmView


def farm_line(view: FarmView) -> str:
    """Return a line about a farm, such as `gpu-farm: 3 of 4 GPUs free; no deployment waits; ...`."""
    parts = [view.problem] if view.status is None else _load_lines(view.status)
    return f"{view.site}: {'; '.join(filter(None, (*parts, route_text(view.route))))}"


def _load_lines(state: FarmStatus) -> list[str]:
    cpus = sum(node.capacity.cpus for node in state.nodes)
    busy = sum(status.busy_cpus for status in state.utilization.values())
    load = f"{busy:.0f} of {cpus:.0f} CPUs busy" if state.utilization else f"{cpus:.0f} CPUs"
    disk = f", {show_bytes(state.disk_free_bytes)} free on disk" if state.disk_free_bytes else ""
    if state.disk_limit_bytes:
        disk += (
            f", {show_bytes(state.disk_use_bytes)} of {show_bytes(state.disk_limit_bytes)} for files in use"
        )
    staged = f"{show_bytes(state.staged_bytes)} of {show_bytes(state.quota_bytes)} staged{disk}"
    return [_gpus(state), load, _line(state), staged, f"version {state.version}", *state.warnings]


def _gpus(state: FarmStatus) -> str:
    count = sum(node.capacity.gpus for node in state.nodes)
    seats = [seat for status in state.utilization.values() for seat in status.seats]
    if not seats:
        return show_count(count, "GPU") if count else ""
    return f"{sum(not seat.taken for seat in seats)} of {show_count(count, 'GPU')} free"


def _line(state: FarmStatus) -> str:
    if not state.waiting:
        return "no deployment waits"
    own = [_place(one) for one in state.queue]
    return f"{show_count(state.waiting, 'deployment')} waiting" + (f" ({', '.join(own)})" if own else "")


def _place(one: QueuedDeployment) -> str:
    behind = f"{one.deployment} behind {one.position}" if one.position else f"{one.deployment} next"
    return behind if one.seconds is None else f"{behind}: {roughly(one.seconds)}"


def route_text(route: Route | None) -> str:
    """Return the measured transfer rates, such as `upload 80 MiB/s, download 92 MiB/s, round trip 2 ms`."""
    if route is None:
        return "transfer rates are not measured yet"
    trip = route.round_trip_seconds
    texts = [*_rate_texts(TransferRates(upload=route.upload, download=route.download)), *_others(route)]
    return ", ".join(texts if trip is None else [*texts, f"round trip {show_seconds(trip)}"])


def _rate_texts(paces: TransferRates) -> list[str]:
    return [_rate_text(paces.upload, "upload"), _rate_text(paces.download, "download")]


def _others(route: Route) -> list[str]:
    return [f"by {name}: {', '.join(_rate_texts(one))}" for name, one in sorted(route.others.items())]


def _rate_text(pace: TransferRate | None, direction: str) -> str:
    if pace is None:
        return f"{direction} not measured yet"
    return f"{direction} {show_bytes(pace.bytes_per_second)}/s" + ("" if pace.transfers else " (probe)")


def transfers_text(carriage: AttemptTransfers) -> str:
    """Return a text about the transfers of an attempt, such as `75 MiB uploaded in 7.5 s (25% present
    already), 1 MiB downloaded in 500 ms`."""
    share = carriage.upload.reused_share
    message = f" ({share:.0%} present already)" if share else ""
    early = carriage.early.transferred_bytes
    before = f", {show_bytes(early)} before its start" if early else ""
    return (
        f"{_transfer_text(carriage.upload, 'uploaded')}{message}{before}, "
        f"{_transfer_text(carriage.download, 'downloaded')}"
    )


def _transfer_text(one: Transfer, direction: str) -> str:
    took = f" in {show_seconds(one.seconds)}" if one.transferred_bytes else ""
    return f"{show_bytes(one.transferred_bytes)} {direction}{took}"


def gpu_slot_texts(seats: Sequence[GpuSlot]) -> list[str]:
    """Return a text about the use of each GPU, such as `0 trainer-1`, `1 free` or `2 taken`, and for a
    shared GPU `0 trainer-1, 3 x free`."""
    gpus: dict[int, Counter[str]] = {}
    for seat in seats:
        who = seat.deployment or ("taken" if seat.taken else "free")
        gpus.setdefault(seat.gpu, Counter())[who] += 1
    return [
        f"{gpu} {', '.join(_times(who, count) for who, count in some.items())}" for gpu, some in gpus.items()
    ]


def _times(who: str, count: int) -> str:
    return who if count == 1 else f"{count} x {who}"
