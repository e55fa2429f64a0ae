"""This module has the use cases that end the canary of a service: promotion and rollback."""

from gridmill.control.steps.references import fetch_artifact
from gridmill.control.steps.service_chains import chain_stages
from gridmill.control.steps.services import changed_version
from gridmill.control.usecases.service_checks import check_port_is_free, not_in_effect
from gridmill.control.usecases.service_keys import ServiceKeyUseCases
from gridmill.control.usecases.service_sizes import make_room
from gridmill.domain.frozen import replace
from gridmill.domain.service import Service, ServiceShadow, ServiceView, alias_followed, has_own_code
from gridmill.domain.service_canary import DEFAULT_PERCENT, promoted, with_canary, without_canary
from gridmill.domain.service_rollback import terms_to_restore, with_terms
from gridmill.domain.service_shadow import without_shadow
from gridmill.errors import ConflictError


class ServiceCanaryUseCases(ServiceKeyUseCases):
    """The use cases of services with those of their canaries (ports.services.Services)."""

    def promote_service(self, name: str) -> ServiceView:
        """Make the canary of a service its version; without a canary, make its shadow the canary."""
        with self._node.changing() as transaction:
            service = self._running_service(name)
            if service.canary or service.shadow is None:
                after = promoted(service, transaction.now)
            else:
                after = self._with_shadow_as_canary(service, service.shadow, transaction.now)
                make_room(self._ledger.snapshot, transaction, service, after)
            if not service.is_in_effect:
                raise not_in_effect(service)
            self._change(transaction, service, after)
        return self.service(name)

    def rollback_service(self, name: str) -> ServiceView:
        """Remove the canary of a service, or else its shadow, or return to the state before the last
        update."""
        with self._node.changing() as transaction:
            service = self._running_service(name)
            now = transaction.now
            terms = terms_to_restore(service)
            if service.canary:
                after = without_canary(service, now)
            elif service.shadow is not None:
                after = without_shadow(service, now)
            elif terms is not None and terms.version == service.version:
                after = replace(service, generation=service.generation + 1, changed=now)
            else:
                after = self._version_before(service, now)
            if terms is not None and terms.version == after.version:
                after = with_terms(after, terms)
                check_port_is_free(self._ledger.snapshot, after)
            if after.size != service.size:
                self._give(transaction, after)
            self._change(transaction, service, after)
        return self.service(name)

    def _with_shadow_as_canary(self, service: Service, shadow: ServiceShadow, now: float) -> Service:
        catalog = self._control.catalog
        version = fetch_artifact(catalog, shadow.version)
        return with_canary(
            service,
            version,
            stages=chain_stages(catalog, service.features.get(version.id)),
            model=shadow.model,
            follows=alias_followed(shadow.model, version),
            percent=DEFAULT_PERCENT,
            now=now,
        )

    def _version_before(self, service: Service, now: float) -> Service:
        if not service.previous:
            raise ConflictError(
                f"service {service.name!r} has no version before {service.version}",
                hint=f"Name a version: gridmill update service {service.name} --model PIPELINE/JOB@NUMBER",
            )
        catalog = self._control.catalog
        version = fetch_artifact(catalog, service.previous)
        parts = (version, *chain_stages(catalog, service.features.get(version.id)))
        code = [one.id for one in parts if has_own_code(one)]
        if code and not service.settings.trust:
            stage = "" if code[0] == version.id else f" reads {code[0]}, which"
            raise ConflictError(
                f"the version before, {version.id},{stage} predicts with its own code, and service "
                f"{service.name!r} has no --trust any more",
                hint=f"If you trust its author: gridmill update service {service.name} --model {version.id} "
                "--trust",
            )
        after = changed_version(service, version, "", version.id, now)
        return replace(after, previous=service.version)
