"""The use cases of services for a grid of tests."""

from gridmill.domain.service import ServiceView
from gridmill.domain.service_keys import NewServiceKey
from gridmill.domain.service_settings import NO_SETTINGS, ServiceSettings
from gridmill.domain.service_size import ServicePlan
from gridmill.errors import NotFoundError


class FakeServices:
    """Implements the methods of gridmill.ports.services for a grid that has neither services nor models that
    a service can serve: each name is unknown."""

    def service(self, name: str) -> ServiceView:
        """See Services."""
        raise _no_service(name)

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
        """See Services."""
        raise _no_model(model) if model else _no_service(name)

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
        """See Services."""
        raise _no_model(model)

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
        """See Services."""
        raise _no_service(name)

    def promote_service(self, name: str) -> ServiceView:
        """See Services."""
        raise _no_service(name)

    def rollback_service(self, name: str) -> ServiceView:
        """See Services."""
        raise _no_service(name)

    def stop_service(self, name: str) -> ServiceView:
        """See Services."""
        raise _no_service(name)

    def remove_service(self, name: str) -> None:
        """See Services."""
        raise _no_service(name)

    def add_service_key(self, name: str, key: str) -> NewServiceKey:
        """See Services."""
        raise _no_service(name)

    def remove_service_key(self, name: str, key: str) -> None:
        """See Services."""
        raise _no_service(name)


def _no_service(name: str) -> NotFoundError:
    return NotFoundError(f"there is no service {name!r}", hint="`gridmill list services` shows them.")


def _no_model(model: str) -> NotFoundError:
    return NotFoundError(f"there is no model {model!r}", hint="`gridmill list models` shows them.")
