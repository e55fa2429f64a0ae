"""Client methods for services."""

from gridmill.domain.project import DEFAULT
from gridmill.domain.service import ServiceView
from gridmill.domain.service_keys import NewServiceKey
from gridmill.domain.service_settings import NO_SETTINGS, ServiceSettings
from gridmill.sdk.base import Connected
from gridmill.sdk.listing import Listing


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
        replicas: int = 1,
        resource: str = "",
        port: int = 0,
        project: str = DEFAULT,
        settings: ServiceSettings = NO_SETTINGS,
    ) -> ServiceView:
        """Start a service, and return immediately. `model` is a reference such as `weather/lstm@3`, or
        `weather/lstm@champion` to follow an alias. Without `model`, a stopped service starts again.
        `settings` has the address, TLS, the request log and limits. Raises InputError, ConflictError,
        NotFoundError, PipelineError."""
        return self.grid.start_service(
            name,
            model=model,
            replicas=replicas,
            resource=resource,
            port=port,
            project=project,
            settings=settings,
        )

    def update_service(
        self,
        name: str,
        *,
        model: str = "",
        replicas: int | None = None,
        port: int = 0,
        settings: ServiceSettings = NO_SETTINGS,
        canary: str = "",
        weight_percent: float | None = None,
        expected: int | None = None,
    ) -> ServiceView:
        """Change the version, the number of replicas, the port or the settings of a running service, without
        a failed request. The method returns immediately. Settings that are None stay as they are. `canary` is
        a second version, which gets `weight_percent` of the requests. `expected` is the generation that the
        service must have. Raises InputError, ConflictError, StaleVersionError, NotFoundError."""
        return self.grid.update_service(
            name,
            model=model,
            replicas=replicas,
            port=port,
            settings=settings,
            canary=canary,
            weight_percent=weight_percent,
            expected=expected,
        )

    def promote_service(self, name: str) -> ServiceView:
        """Make the canary of a service its version. Raises ConflictError, NotFoundError."""
        return self.grid.promote_service(name)

    def add_service_key(self, name: str, key: str) -> NewServiceKey:
        """Make an API key of a service, under the name `key`. Its value is not shown again. Raises
        ConflictError, InputError, NotFoundError."""
        return self.grid.add_service_key(name, key)

    def remove_service_key(self, name: str, key: str) -> None:
        """Delete an API key of a service. Raises NotFoundError."""
        self.grid.remove_service_key(name, key)

    def rollback_service(self, name: str) -> ServiceView:
        """Remove the canary of a service, or return to the version before its last update. Raises
        ConflictError, NotFoundError."""
        return self.grid.rollback_service(name)

    def stop_service(self, name: str) -> ServiceView:
        """Stop a service after it has answered its running requests, and return immediately. Raises
        NotFoundError."""
        return self.grid.stop_service(name)

    def remove_service(self, name: str) -> None:
        """Delete the record of a stopped service. Raises ConflictError, NotFoundError."""
        self.grid.remove_service(name)
