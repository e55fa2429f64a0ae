"""This module decides the record of a service with a shadow: a version that gets copies of requests."""

from collections.abc import Iterable

from gridmill.domain.amounts import MIB
from gridmill.domain.artifact import Artifact
from gridmill.domain.footprint import REPLICA_BYTES
from gridmill.domain.frozen import replace
from gridmill.domain.service import Service, ServiceShadow
from gridmill.domain.service_canary import canary_bytes
from gridmill.domain.service_counters import without_shadows
from gridmill.domain.serving import ServedVersion, ServiceOrder, ShadowOrder
from gridmill.errors import ConflictError, InputError

WAITING_BYTES = 64 * MIB
"""The memory of the large copies that wait for the shadow of a service, of all its replicas."""
DEFAULT_PERCENT = 100.0
"""The part of the requests of which a shadow gets copies, in percent, if the user names none."""


def with_shadow(
    service: Service,
    version: Artifact,
    *,
    stages: Iterable[Artifact] = (),
    model: str,
    percent: float,
    now: float,
) -> Service:
    """Return the service with a shadow. The `stages` predict features of the shadow. Raises InputError for a
    version that answers requests."""
    if version.id in (service.version, service.canary):
        raise InputError(
            f"service {service.name!r} already serves {version.id}",
            hint="Name another version as the shadow.",
            place="shadow",
        )
    memory_bytes = REPLICA_BYTES + WAITING_BYTES + sum(map(canary_bytes, (version, *stages)))
    shadow = ServiceShadow(version=version.id, model=model, percent=percent, memory_bytes=memory_bytes)
    return _changed(service, shadow, now)


def with_shadow_percent(service: Service, percent: float, now: float) -> Service:
    """Return the service whose shadow gets copies of another part of the requests. Raises ConflictError if
    there is no shadow."""
    return _changed(service, replace(shadow_of(service), percent=percent), now)


def without_shadow(service: Service, now: float) -> Service:
    """Return the service without its shadow."""
    return _changed(service, None, now)


def shadow_of(service: Service) -> ServiceShadow:
    """Return the shadow of a service. Raises ConflictError if there is none."""
    if service.shadow is None:
        raise ConflictError(
            f"service {service.name!r} has no shadow",
            hint=f"Start one: gridmill update service {service.name} --shadow PIPELINE/JOB@NUMBER",
        )
    return service.shadow


def with_shadow_order(order: ServiceOrder, service: Service, folder: str) -> ServiceOrder:
    """Return the order of a service with its shadow. `folder` is the path of the files of the shadow."""
    shadow = service.shadow
    if shadow is None:
        return order
    version = ServedVersion(label=shadow.version, folder=folder, trust=bool(service.settings.trust))
    own = ShadowOrder(version=version, percent=shadow.percent, memory_bytes=shadow.memory_bytes)
    return replace(order, shadow=own)


def _changed(service: Service, shadow: ServiceShadow | None, now: float) -> Service:
    if shadow == service.shadow:
        return service
    is_other = shadow is None or shadow.version != service.shadow_version
    counted = without_shadows(service.counted) if is_other else service.counted
    after = replace(service, shadow=shadow, counted=counted)
    return replace(after, generation=service.generation + 1, changed=now)
