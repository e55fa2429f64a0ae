"""The use cases of secrets for a grid of tests."""

from gridmill.domain.secret import KeyRotation, SecretView, check_secret_name, check_value
from gridmill.errors import NotFoundError
from gridmill.ports.pages import PAGE_ITEMS, Page, page_by_names, page_request


class FakeSecrets:
    """Implements the methods of gridmill.ports.grid for secrets, for a class that has `_secrets`. Values are
    not stored."""

    _secrets: dict[str, SecretView]

    def secrets(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[SecretView]:
        """See SecretVerbs."""
        return page_by_names(
            page_request(tuple, "secrets", limit, cursor), self._secrets.values(), lambda one: (one.name,)
        )

    def secret(self, name: str) -> SecretView:
        """See SecretVerbs."""
        if name not in self._secrets:
            raise NotFoundError(f"there is no secret {name!r}", hint="`gridmill list secrets` shows them.")
        return self._secrets[name]

    def add_secret(self, name: str, value: str) -> SecretView:
        """See SecretVerbs."""
        check_secret_name(name)
        check_value(name, value)
        version = self._secrets[name].version + 1 if name in self._secrets else 1
        self._secrets[name] = SecretView(name=name, version=version, created=1.0, changed=float(version))
        return self._secrets[name]

    def remove_secret(self, name: str, *, force: bool = False) -> None:
        """See SecretVerbs."""
        self.secret(name)
        del self._secrets[name]

    def rotate_secret_key(self) -> KeyRotation:
        """See SecretVerbs."""
        return KeyRotation(key_id="0" * 16, secrets=len(self._secrets))
