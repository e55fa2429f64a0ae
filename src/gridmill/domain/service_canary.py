"""This module decides the record of a service that serves a second version, its canary."""

from collections.abc import Iterable

from gridmill.domain.amounts import MIB, show_bytes
from gridmill.domain.artifact import Artifact
from gridmill.domain.footprint import REPLICA_BYTES
from gridmill.domain.frozen import replace
from gridmill.domain.service import Service, has_own_code, shadow_bytes
from gridmill.domain.service_features import view_bytes
from gridmill.domain.service_totals import reports_of
from gridmill.errors import ConflictError, InputError

FILE_FACTOR = 2
"""A loaded model needs about this many times the memory of its files."""
CODE_BYTES = 64 * MIB
"""The assumed memory of the process in which the code of a version runs."""
PARENT_BYTES = 64 * MIB
"""The memory of the parent process of a service."""
DEFAULT_PERCENT = 10.0
"""The share of the requests that a canary gets, in percent, if the user names none."""


def check_percent(percent: float | None, place: str = "weight_percent") -> None:
    """Raise InputError for a share that no version can have."""
    if percent is not None and not 0.0 <= percent <= 100.0:
        raise InputError(f"the weight is {percent:g}; it must be from 0 to 100 percent", place=place)


def with_canary(
    service: Service,
    version: Artifact,
    *,
    stages: Iterable[Artifact] = (),
    model: str,
    follows: str,
    percent: float,
    now: float,
) -> Service:
    """Return the service with a canary, which gets `percent` of the requests that name no version. The
    `stages` predict features of the canary. `model` is the reference to the canary, and `follows` the alias
    that the service follows after its promotion. If the version is the shadow, its copies
    end. Raises InputError for the version that the service serves."""
    if version.id == service.version:
        raise InputError(
            f"service {service.name!r} already serves {version.id}",
            hint="Name another version as the canary.",
            place="canary",
        )
    shadow = service.shadow
    wanted = replace(
        service,
        shadow=None if shadow is not None and shadow.version == version.id else shadow,
        canary=version.id,
        canary_model=model,
        canary_follows=follows,
        canary_percent=percent,
        canary_bytes=sum(map(canary_bytes, (version, *stages))),
    )
    return service if wanted == service else _changed(wanted, now)


def canary_bytes(version: Artifact) -> int:
    """Return the memory that a replica is assumed to need for a second version: twice the size of its files,
    and a process if the version has its own code."""
    return FILE_FACTOR * version.output.size_bytes + (CODE_BYTES if has_own_code(version) else 0)


def room_needed(service: Service, before: Service) -> int:
    """Return the memory in bytes that a service needs for a new canary or a new shadow; 0 if it has no new
    one. `before` is the service before the change, whose replicas have reported their memory."""
    has_canary = service.canary and service.canary != before.canary
    has_shadow = service.shadow is not None and shadow_bytes(service) != shadow_bytes(before)
    if not (has_canary or has_shadow):
        return 0
    needed = (service.replicas + 1) * (_replica_bytes(before) + service.canary_bytes) + PARENT_BYTES
    needed += shadow_bytes(service)
    return needed + (view_bytes(service.replicas) if service.version in service.features else 0)


def why_no_room(service: Service, before: Service, given_bytes: int | None) -> str:
    """Return why the running attempt of a service, which has `given_bytes` of memory, cannot run its canary
    or its shadow; empty if it can. `before` is the service before the change, whose replicas have reported
    their memory."""
    needed = room_needed(service, before)
    if not given_bytes or needed <= given_bytes:
        return ""
    versions = "two versions" if service.shadow is None else "all versions"
    return (
        f"{service.replicas} replicas with {versions} need about {show_bytes(needed)}, and service "
        f"{service.name!r} has {show_bytes(given_bytes)}"
    )


def _replica_bytes(service: Service) -> int:
    """Return the memory of a replica without a canary: the largest that replicas have reported."""
    replicas = [replica for report in reports_of(service) for replica in report.replicas]
    used = max((one.memory_bytes for one in replicas), default=0) - service.canary_bytes
    if used > 0:
        return used
    size = service.size
    return size.replica_bytes + size.code_bytes if size is not None else REPLICA_BYTES


def with_percent(service: Service, percent: float, now: float) -> Service:
    """Return the service whose canary has another share of the requests. Raises ConflictError if there is no
    canary."""
    _check_canary(service)
    if percent == service.canary_percent:
        return service
    return _changed(replace(service, canary_percent=percent), now)


def promoted(service: Service, now: float) -> Service:
    """Return the service with the canary as its version. `rollback` then returns to the version before.
    Raises ConflictError if there is no canary."""
    _check_canary(service)
    after = replace(
        service,
        version=service.canary,
        model=service.canary_model,
        follows=service.canary_follows,
        previous=service.version,
    )
    return without_canary(after, now)


def without_canary(service: Service, now: float) -> Service:
    """Return the service without its canary. If the service follows the alias that named the canary, the
    canary is not taken again until the alias moves."""
    after = replace(
        service, canary="", canary_model="", canary_follows="", canary_percent=0.0, canary_bytes=0
    )
    is_followed = bool(service.follows) and service.follows == service.canary_follows
    if is_followed and service.canary != service.version:
        why = f"{service.follows} names {service.canary}, which was rolled back"
        after = replace(
            after,
            refused=service.canary,
            refusal=f"{why}. The service still serves {service.version}.",
        )
    return _changed(after, now)


def _changed(service: Service, now: float) -> Service:
    return replace(service, generation=service.generation + 1, changed=now)


def _check_canary(service: Service) -> None:
    if not service.canary:
        raise ConflictError(
            f"service {service.name!r} has no canary",
            hint=f"Start one: gridmill update service {service.name} --canary PIPELINE/JOB@NUMBER",
        )
