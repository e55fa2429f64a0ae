"""This module decides to which settings and which size a service returns if an update does not take effect.
All functions of this module are pure."""

from gridmill.domain.frozen import replace
from gridmill.domain.service import Service, ServiceTerms
from gridmill.domain.service_totals import served_generation


def with_terms_before(before: Service, after: Service) -> Service:
    """Return a service after a change, with the terms to which a rollback returns: those before the change,
    or earlier ones if these were never in effect."""
    if after.generation == before.generation or not before.is_in_effect:
        return after
    terms = ServiceTerms(
        generation=before.generation,
        version=before.version,
        settings=before.settings,
        port=before.port,
        replicas=before.replicas,
        rate=before.rate,
        scaling=before.scaling,
        size=before.size,
        size_request=before.size_request,
        features=before.features,
    )
    return replace(after, terms_before=terms)


def terms_to_restore(service: Service) -> ServiceTerms | None:
    """Return the terms of a service before its update; None if the update is in effect, or if these terms are
    unknown."""
    terms = service.terms_before
    if terms is None or service.is_in_effect:
        return None
    return terms if served_generation(service) <= terms.generation else None


def is_return(before: Service, after: Service) -> bool:
    """Return whether a change returns a service to its terms before an update that is not in effect."""
    terms = terms_to_restore(before)
    if terms is None or after.canary:
        return False
    return (after.version, after.replicas, after.settings.max_batch) == (
        terms.version,
        terms.replicas,
        terms.settings.max_batch,
    )


def with_terms(service: Service, terms: ServiceTerms) -> Service:
    """Return the service with its earlier settings and its earlier size. The version stays as it is. A
    service that requires API keys now still requires them, because its keys may be newer than the terms."""
    is_closed = terms.settings.require_keys or service.settings.require_keys
    used = (*service.features_before, *service.features.values())
    return replace(
        service,
        settings=replace(terms.settings, require_keys=is_closed),
        port=terms.port,
        replicas=terms.replicas,
        rate=terms.rate,
        scaling=terms.scaling,
        size=terms.size,
        size_request=terms.size_request,
        features={**service.features, **terms.features},
        features_before=tuple(one for number, one in enumerate(used) if one not in used[:number]),
    )
