"""This module has the use cases of the API keys of services."""

from gridmill.control.ledger import Transaction
from gridmill.control.usecases.services import ServiceUseCases
from gridmill.domain.frozen import replace
from gridmill.domain.service import Service
from gridmill.domain.service_keys import PREFIX, NewServiceKey, ServiceKey, key_hash, with_key, without_key
from gridmill.domain.service_settings import NO_SETTINGS, ServiceSettings, merged

_TOKENS = 4
"""The number of tokens of 64 random bits in an API key."""


class ServiceKeyUseCases(ServiceUseCases):
    """The use cases of services with those of their API keys (ports.services.Services)."""

    def add_service_key(self, name: str, key: str) -> NewServiceKey:
        """Make an API key of a service."""
        value = PREFIX + "".join(self._control.new_token() for _ in range(_TOKENS))
        with self._node.changing() as transaction:
            service = self._known_service(name)
            now = transaction.now
            keys = with_key(service.keys, ServiceKey(name=key, created=now, sha256=key_hash(value)), name)
            # a user who has turned the keys off may add further ones before turning them on
            requires = not service.keys or service.settings.require_keys
            self._put_keys(transaction, service, keys, ServiceSettings(require_keys=requires))
        return NewServiceKey(service=name, name=key, key=value, created=now)

    def remove_service_key(self, name: str, key: str) -> None:
        """Delete an API key of a service."""
        with self._node.changing() as transaction:
            service = self._known_service(name)
            self._put_keys(transaction, service, without_key(service.keys, key, name), NO_SETTINGS)

    def _put_keys(
        self,
        transaction: Transaction,
        service: Service,
        keys: tuple[ServiceKey, ...],
        change: ServiceSettings,
    ) -> None:
        """Store the keys of a service. From its first key on, the service requires a key, also if all its
        keys are deleted later."""
        settings = merged(service.settings, change)
        after = replace(service, keys=keys, settings=settings, generation=service.generation + 1)
        if service.is_meant_to_run:
            self._change(transaction, service, after)
        else:
            transaction.put(after)
