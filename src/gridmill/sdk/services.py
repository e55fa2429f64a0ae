"""Client methods for services."""

import time

from gridmill.domain.service import Service, ServiceView
from gridmill.domain.service_keys import NewServiceKey
from gridmill.domain.service_settings import NO_SETTINGS, ServiceSettings
from gridmill.domain.service_size import ServicePlan
from gridmill.domain.states import FINISHED_RUNS, RunState
from gridmill.errors import NotFoundError, UnavailableError
from gridmill.sdk.base import Connected
from gridmill.sdk.listing import Listing

_LOOK_SECONDS = 0.2


class ServiceVerbs(Connected):
    """Client methods for services, which serve a version of a model at a stable address."""

    def list_services(self, *, limit: int | None = None) -> Listing[ServiceView]:
        """List services with their states, by name."""
        return Listing(self.grid.services, limit=limit)

    def service(self, name: str) -> ServiceView:
        """Show one service: its address, its version, and its replicas. Raises NotFoundError."""
        return self.grid.service(name)

    def start_service(
        self,
        name: str,
        *,
        model: str = "",
        replicas: int = 0,
        least_replicas: int | None = None,
        rate: float = 0.0,
        resource: str = "",
        port: int = 0,
        project: str = "",
        settings: ServiceSettings = NO_SETTINGS,
    ) -> ServiceView:
        """Start a service, and return immediately. `model` is a reference such as `weather/lstm@3`, or
        `weather/lstm@champion` to follow an alias. Without `model`, a stopped service starts again.
        `settings` has the address, TLS, the request log and limits. A stopped service keeps its size, its
        resource, its project and its settings that the call does not name.

        With `rate` (requests per second), the service is sized by a measurement; with `least_replicas`, the
        number of replicas follows the load from `least_replicas` to `replicas`. In both cases, the method
        first waits for the measurement if there is none. Raises CapacityError, InputError, ConflictError,
        NotFoundError, PipelineError."""
        before = self._stored_service(name)
        resource = resource or (before.resource if before is not None else "")
        reference = model or (before.follows or before.version if before is not None else "")
        is_sized = before is not None and not before.is_meant_to_run and before.size is not None
        trust = bool(settings.trust or (before is not None and before.settings.trust))
        pods = before.settings.pods if settings.pods is None and before is not None else settings.pods
        if reference and (rate or least_replicas is not None):
            self.plan_service(
                reference,
                rate=rate,
                replicas=replicas,
                least_replicas=least_replicas,
                pods=pods or 0,
                resource=resource,
                name=name,
                trust=trust,
            )
        elif is_sized and not replicas:
            # the size that the service keeps follows from a measurement, also for another version
            self.plan_service(reference, resource=resource, name=name, trust=trust)
        return self.grid.start_service(
            name,
            model=model,
            replicas=replicas,
            least_replicas=least_replicas,
            rate=rate,
            resource=resource,
            port=port,
            project=project,
            settings=settings,
        )

    def _stored_service(self, name: str) -> Service | None:
        try:
            return self.service(name).service
        except NotFoundError:
            return None

    def plan_service(
        self,
        model: str,
        *,
        rate: float = 0.0,
        replicas: int = 0,
        least_replicas: int | None = None,
        pods: int = 0,
        resource: str = "",
        name: str = "",
        again: bool = False,
        trust: bool = False,
    ) -> ServicePlan:
        """Return the pods, the replicas, the CPUs, the memory and the expected latency of a service for a
        rate of requests per second. On a Ray cluster, 0 pods means as many as the rate needs. If the version
        was not measured on this type of machine, or with `again`, the method waits for a measurement, which
        takes a few seconds. With `trust`, the measurement may run the code of a version that predicts with
        its own code. Raises CapacityError, with the rate that the resource can serve; InputError,
        NotFoundError, PipelineError, UnavailableError if the measurement fails."""
        while True:
            plan = self.grid.plan_service(
                model,
                rate=rate,
                replicas=replicas,
                least_replicas=least_replicas,
                pods=pods,
                resource=resource,
                name=name,
                again=again,
                trust=trust,
            )
            again = False
            if plan.size is not None or plan.later:
                return plan
            self._wait_for_calibration(plan)

    def _wait_for_calibration(self, plan: ServicePlan) -> None:
        while (view := self.grid.run(plan.run_id)).run.state not in FINISHED_RUNS:
            time.sleep(_LOOK_SECONDS)
        if view.run.state is not RunState.SUCCEEDED:
            why = next((one.job.message for one in view.jobs if one.job.message), str(view.run.state))
            raise UnavailableError(
                f"{plan.version} could not be measured: {why}", hint=f"gridmill logs {plan.run_id}"
            )

    def update_service(
        self,
        name: str,
        *,
        model: str = "",
        replicas: int | None = None,
        least_replicas: int | None = None,
        rate: float = 0.0,
        port: int = 0,
        settings: ServiceSettings = NO_SETTINGS,
        canary: str = "",
        weight_percent: float | None = None,
        shadow: str = "",
        shadow_percent: float | None = None,
        expected: int | None = None,
    ) -> ServiceView:
        """Change the version, the replicas, the port or the settings of a running service, without a failed
        request. The method returns immediately. With `least_replicas`, the number of replicas follows the
        load. With `rate`, the service gets the size for this rate of requests per second. Settings that are
        None stay as they are, and those that `settings.unset` names return to their defaults. `canary` is a
        second version, which gets `weight_percent` of the requests. `shadow` is a version that gets copies of
        `shadow_percent` of the requests, and its answers are compared with the served ones. `expected` is the
        generation that the service must have. Raises
        InputError, CapacityError, ConflictError, StaleVersionError, NotFoundError."""
        if rate or least_replicas is not None:
            service = self.service(name).service
            self.plan_service(
                model or service.version, resource=service.resource, name=name, trust=bool(settings.trust)
            )
        return self.grid.update_service(
            name,
            model=model,
            replicas=replicas,
            least_replicas=least_replicas,
            rate=rate,
            port=port,
            settings=settings,
            canary=canary,
            weight_percent=weight_percent,
            shadow=shadow,
            shadow_percent=shadow_percent,
            expected=expected,
        )

    def promote_service(self, name: str) -> ServiceView:
        """Make the canary of a service its version, or else its shadow the canary. Raises
        ConflictError, NotFoundError."""
        return self.grid.promote_service(name)

    def add_service_key(self, name: str, key: str) -> NewServiceKey:
        """Make an API key of a service, under the name `key`. Its value is not shown again. Raises
        ConflictError, InputError, NotFoundError."""
        return self.grid.add_service_key(name, key)

    def remove_service_key(self, name: str, key: str) -> None:
        """Delete an API key of a service. Raises NotFoundError."""
        self.grid.remove_service_key(name, key)

    def rollback_service(self, name: str) -> ServiceView:
        """Remove the canary of a service, or else its shadow, or return to the version before its last
        update. Raises ConflictError, NotFoundError."""
        return self.grid.rollback_service(name)

    def stop_service(self, name: str) -> ServiceView:
        """Stop a service after it has answered its running requests, and return immediately. Raises
        NotFoundError."""
        return self.grid.stop_service(name)

    def remove_service(self, name: str) -> None:
        """Delete the record of a stopped service. Raises ConflictError, NotFoundError."""
        self.grid.remove_service(name)
