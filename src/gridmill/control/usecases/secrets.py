"""This module has the use cases of secrets."""

from collections.abc import Mapping

from gridmill.control.secret_values import users_of_secrets
from gridmill.control.usecases.base import UseCases
from gridmill.domain.frozen import replace
from gridmill.domain.secret import KeyRotation, Secret, SecretView, check_secret_name, check_value
from gridmill.errors import ConflictError, GridmillError, NotFoundError, explained
from gridmill.ports.pages import PAGE_ITEMS, Page, page_request


class SecretUseCases(UseCases):
    """The use cases of secrets (ports.grid.SecretVerbs)."""

    def secrets(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[SecretView]:
        """Return all secrets without their values, by name."""
        page = self._page_by_key(Secret, page_request(tuple, "secrets", limit, cursor))
        users = self._secret_users() if page.items else {}
        return Page(
            items=tuple(self._secret_view(one, users) for one in page.items), next_cursor=page.next_cursor
        )

    def secret(self, name: str) -> SecretView:
        """Return one secret without its value."""
        return self._secret_view(self._stored_secret(name), self._secret_users())

    def add_secret(self, name: str, value: str) -> SecretView:
        """Add a secret, or replace its value."""
        check_secret_name(name)
        check_value(name, value)
        with self._node.changing() as transaction:
            before = self._ledger.look_up(Secret, name)
            if before is None or self._present_value(before) != value:
                version, now = 1 if before is None else before.version + 1, transaction.now
                created = now if before is None else before.created
                vault = self._control.secrets.vault
                transaction.put(vault.encrypt(name, version, value, created=created, changed=now))
        return self.secret(name)

    def _present_value(self, secret: Secret) -> str | None:
        """Return the present value, or None if it cannot be decrypted any more."""
        try:
            return self._control.secrets.vault.decrypt(secret)
        except GridmillError:
            return None

    def remove_secret(self, name: str, *, force: bool = False) -> None:
        """Delete a secret that nothing uses, or with `force` any secret."""
        with self._node.changing() as transaction:
            if self._ledger.look_up(Secret, name) is None:
                raise _unknown(name)
            users = users_of_secrets(self._ledger).get(name, ())
            if users and not force:
                raise ConflictError(
                    f"{', '.join(users)} {'uses' if len(users) == 1 else 'use'} the secret {name!r}",
                    hint=f"Remove the references first. To delete it anyway, so that these jobs and sites "
                    f"fail: gridmill remove secret {name} --force",
                )
            transaction.delete(Secret, name)

    def rotate_secret_key(self) -> KeyRotation:
        """Encrypt all secrets with a new key. The earlier key is deleted after the commit, so that a crash at
        any point leaves every value readable."""
        vault = self._control.secrets.vault
        with self._node.changing() as transaction:
            kept = [self._ledger.fetch(Secret, one.name) for one in self._ledger.read_all(Secret)]
            values = {one.name: vault.decrypt(one) for one in kept}
            key_id = vault.add_key()
            for one in kept:
                again = vault.encrypt(
                    one.name, one.version, values[one.name], created=one.created, changed=one.changed
                )
                transaction.put(replace(one, sealed=again.sealed, key_id=again.key_id))
        vault.drop_earlier_keys()
        return KeyRotation(key_id=key_id, secrets=len(kept))

    def _stored_secret(self, name: str) -> Secret:
        record = self._ledger.store.get(Secret, name)
        if record is None or not isinstance(record.noun, Secret):
            raise _unknown(name)
        return record.noun

    def _secret_users(self) -> Mapping[str, tuple[str, ...]]:
        with self._node.lock:
            return users_of_secrets(self._ledger)

    def _secret_view(self, secret: Secret, users: Mapping[str, tuple[str, ...]]) -> SecretView:
        try:
            self._control.secrets.vault.decrypt(secret)
            problem = ""
        except GridmillError as error:
            problem = explained(error)
        return SecretView(
            name=secret.name,
            version=secret.version,
            created=secret.created,
            changed=secret.changed,
            used_by=users.get(secret.name, ()),
            problem=problem,
        )


def _unknown(name: str) -> NotFoundError:
    return NotFoundError(f"there is no secret {name!r}", hint="`gridmill list secrets` shows them.")
