"""The users of a simulated AWS account: their credentials, and the actions that they may not carry out."""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from random import Random
from threading import RLock
from typing import Any

from gridmill.domain.frozen import replace
from gridmill.testing.cloud.ec2 import catalogue, signature
from gridmill.testing.cloud.ec2.records import Principal


def arn_of(principal: Principal) -> str:
    """Returns the name of a user in policies."""
    return f"arn:aws:iam::{catalogue.ACCOUNT}:user/{principal.user}"


def is_denied(principal: Principal, action: str) -> bool:
    """Returns whether the policies of a user do not allow an action such as `ec2:RunInstances`."""
    return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in principal.denied)


class Users:
    """The users of an account. `by_key` has each user by its access key."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.by_key: dict[str, Principal] = {}

    def add(self, name: str, denied: tuple[str, ...]) -> Principal:
        """Adds a user with own credentials."""
        number = self._random.getrandbits(160)
        principal = Principal(
            access_key=f"AKIA{number % 16**16:016X}", secret_key=f"{number:040x}", user=name, denied=denied
        )
        self.by_key[principal.access_key] = principal
        return principal

    def change(self, access_key: str, **changes: Any) -> None:  # noqa: ANN401  fields of Principal
        """Changes fields of a user."""
        self.by_key[access_key] = replace(self.by_key[access_key], **changes)

    def signer(self, scope: signature.Scope, request: signature.Request) -> Principal:
        """Returns the user who has signed a request. Raises RefusalError if the credentials or the signature
        are not valid."""
        principal = self.by_key.get(scope.access_key)
        if principal is None or principal.is_revoked or scope.region not in catalogue.REGIONS:
            raise signature.failed(scope.service)
        signature.check(scope, principal.secret_key, request)
        return principal


class UserControl:
    """The methods of a simulation that change the users of its account. They can be called from any thread.

    `access_key` and `secret_key` are the credentials of the first user, who may do everything.
    """

    def __init__(self, users: Users, lock: RLock) -> None:
        self._users = users
        self._users_lock = lock
        admin = self.add_user("admin")
        self.access_key, self.secret_key = admin.access_key, admin.secret_key

    def add_user(self, name: str, denied: tuple[str, ...] = ()) -> Principal:
        """Adds a user with own credentials. `denied` are patterns of the actions that the user may not carry
        out, such as `ec2:Terminate*` or `pricing:*`."""
        with self._users_lock:
            return self._users.add(name, denied)

    def deny(self, *patterns: str, access_key: str = "") -> None:
        """Sets the actions that a user may not carry out. Without patterns, all actions are allowed."""
        self._change_user(access_key, denied=patterns)

    def revoke(self, access_key: str = "") -> None:
        """Revokes the credentials of a user: the services refuse them from now on."""
        self._change_user(access_key, is_revoked=True)

    def restore(self, access_key: str = "") -> None:
        """Makes revoked credentials valid again."""
        self._change_user(access_key, is_revoked=False)

    def _change_user(self, access_key: str, **changes: Any) -> None:  # noqa: ANN401  fields of Principal
        with self._users_lock:
            self._users.change(access_key or self.access_key, **changes)

    def _user_commands(self) -> Mapping[str, Callable[[dict[str, Any]], Any]]:
        return {
            "revoke": lambda _: self.revoke(),
            "restore": lambda _: self.restore(),
            "deny": lambda given: self.deny(*given["actions"]),
        }
