"""The use cases of services, which serve a version of a model at a stable address."""

from typing import Protocol

from gridmill.domain.project import DEFAULT
from gridmill.domain.service import ServiceView
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
        replicas: int = 1,
        resource: str = "",
        port: int = 0,
        project: str = DEFAULT,
    ) -> ServiceView:
        """Start a service that serves a version of a model, and return immediately.

        `model` is a reference such as `weather/lstm@3`, or `weather/lstm@champion` to follow an alias.
        `latest` is resolved once. Without `model`, a service that was stopped serves its version before. With
        port 0, the service keeps its earlier port, or gets a free port. If the service already runs with the
        same settings, the method changes nothing. Raises InputError for a version that is not a model or
        cannot be served, ConflictError if the service runs with other settings or another service has the
        port, NotFoundError, PipelineError for a resource that does not fit.
        """

    def update_service(
        self, name: str, *, model: str = "", replicas: int | None = None, expected: int | None = None
    ) -> ServiceView:
        """Change the version or the number of replicas of a running service, without a failed request.

        `expected` is the generation that the caller has seen: if the service has another generation, the
        method raises StaleVersionError. Raises ConflictError while an earlier update is not in effect, or if
        the service does not run; InputError if the features or the predictions of the version differ from
        those of the present version, or if the replicas do not fit into the memory of the service;
        NotFoundError.
        """

    def rollback_service(self, name: str) -> ServiceView:
        """Return a service to the version before its last update; it then follows no alias.

        Raises ConflictError if there is no version before or the service does not run, NotFoundError.
        """

    def stop_service(self, name: str) -> ServiceView:
        """Stop a service after it has answered its running requests, and return immediately.

        If the service has already ended, the method changes nothing. Raises NotFoundError.
        """

    def remove_service(self, name: str) -> None:
        """Delete the record of a stopped service; its runs and logs stay.

        Raises ConflictError while the service runs, NotFoundError.
        """
