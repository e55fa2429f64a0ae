"""The use cases of services, which serve a version of a model at a stable address."""

from typing import Protocol

from gridmill.domain.service import ServiceView
from gridmill.domain.service_keys import NewServiceKey
from gridmill.domain.service_settings import NO_SETTINGS, ServiceSettings
from gridmill.domain.service_size import ServicePlan
from gridmill.ports.pages import PAGE_ITEMS, Page


class Services(Protocol):
    """The use cases of services. A service goes on while the control node does not run."""

    def services(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[ServiceView]:
        """List all services, by name."""

    def service(self, name: str) -> ServiceView:
        """Show one service: its address, its version, its replicas with their states, and its last failure.

        Raises NotFoundError.
        """

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
        """Start a service that serves a version of a model, and return immediately.

        `model` is a reference such as `weather/lstm@3`, or `weather/lstm@champion` to follow an alias.
        `latest` is resolved once. Without `model`, a service that was stopped serves its version before. With
        port 0, the service keeps its earlier port, or gets a free port. A service that was stopped also keeps
        its API keys, and everything that the call does not name: its size, its resource, its project and its
        settings. If the service already runs with what the call names, the method changes nothing.

        With `rate`, the expected requests per second, the service is sized from the calibration of its
        version, which `plan_service` starts. 0 replicas means as many as the rate needs, or 1 without a rate.
        With `least_replicas`, the number of replicas follows the load, from `least_replicas` (0: none while
        there are no requests) to `replicas`. Raises CapacityError if the resource cannot serve the rate, or
        has no room for the replicas; the message names what fits.

        Raises InputError for a version that is not a model or cannot be served and for settings that cannot
        be used, ConflictError if the service runs with other settings, another service has the port, or the
        version is not calibrated, NotFoundError, PipelineError for a resource that does not fit.
        """

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
        """Show the pods, replicas, CPUs, memory and latency of a service for a rate of requests.

        A service on a Ray cluster gets the smallest number of pods that can serve the rate, and then the
        fewest replicas in each of them. `pods` or `replicas` is a number that the user requests instead (0:
        none).
        The size follows from a calibration, a measurement of a few seconds in a pod of the resource, which is
        kept for each version and type of machine. If there is none, or with `again`, the method starts it and
        returns a plan without a size: wait for its run, and call the method without `again`. `name` is the
        service that is left out of the services that share the resource. With `trust`, or if the settings of
        this service have it, the calibration may run the code of the version. Raises CapacityError, with
        the rate that the resource can serve; InputError, NotFoundError, PipelineError for a resource that
        does not fit.
        """

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
        """Change the version, the replicas or the settings of a running service, without a failed request.

        With `least_replicas`, the number of replicas follows the load, within the CPUs and the memory of the
        service. With `rate`, the service gets the size for this rate of requests per second, as at its start,
        within the free part of its pods (0: the size stays as it is). With port 0, the service keeps its
        port. Settings that are None stay as they are, and the settings that `settings.unset` names return to
        their default values. `canary` is a reference to a second version, which gets `weight_percent` of the
        requests (default: 10) until it is promoted or rolled back. Without `canary`, `weight_percent` changes
        the share of the present canary.
        `shadow` is a reference to a version that gets copies of `shadow_percent` of the requests (default:
        100), and whose answers are compared with the served answers. Without `shadow`, `shadow_percent`
        changes this part for the present shadow.
        `expected` is the generation that the caller has seen: if the service has another generation, the
        method raises StaleVersionError. Raises ConflictError while an earlier update is not in effect, or if
        the service does not run; InputError if the features or the predictions of the version differ from
        those of the present version, if the replicas do not fit into the memory of the service, or if the
        settings cannot be used; CapacityError if a range of replicas or a rate does not fit; NotFoundError.
        """

    def promote_service(self, name: str) -> ServiceView:
        """Make the canary of a service its version; without a canary, make its shadow the canary.

        The version of a service gets all requests. Raises ConflictError if there is neither, if an earlier
        update is not in effect or if the service does not run; NotFoundError.
        """

    def rollback_service(self, name: str) -> ServiceView:
        """Remove the canary of a service or else its shadow, or return to the version before its update.

        If the last update is not in effect, the service also returns to the settings and the size before it.
        After it has returned to a version, the service follows no alias. Raises ConflictError if there is no
        version before or the service does not run, NotFoundError.
        """

    def add_service_key(self, name: str, key: str) -> NewServiceKey:
        """Make an API key of a service; the answer has its value, which is not shown again.

        `key` is the name of the key. From its first key on, a service requires a key in each request except
        health checks. The key is valid within a second. Raises ConflictError if the service has a key of this
        name, InputError, NotFoundError."""

    def remove_service_key(self, name: str, key: str) -> None:
        """Delete an API key of a service, which is refused within a second.

        After the last key was deleted, the service refuses all requests except health checks. Raises
        NotFoundError.
        """

    def stop_service(self, name: str) -> ServiceView:
        """Stop a service after it has answered its running requests, and return immediately.

        If the service has already ended, the method changes nothing. Raises NotFoundError.
        """

    def remove_service(self, name: str) -> None:
        """Delete the record of a stopped service; its runs and logs stay.

        Raises ConflictError while the service runs, NotFoundError.
        """
