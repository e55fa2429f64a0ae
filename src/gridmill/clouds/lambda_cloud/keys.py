"""The SSH keys of machines. Lambda Cloud launches a machine only with exactly one SSH key of the account.
Therefore each request has its own key, which has the name of the machine and is deleted at the end of the
lease.

Lambda Cloud accepts a second key with the same name, and then refuses each launch with this name. Therefore a
key is added only if the list has none, and further keys of the name are deleted.
"""

from collections.abc import Iterator
from typing import Any

from gridmill.clouds.lambda_cloud.launch import name_of, read_name
from gridmill.clouds.lambda_cloud.requests import LambdaRequests
from gridmill.domain.machine import Leftover
from gridmill.errors import ConflictError, NotFoundError, RefusedError
from gridmill.ports.cloud import LaunchRequest

KIND, REGION = "key", "all"
"""The kind of a key as a leftover, and its region: a key belongs to the whole account."""

_MOST_REMEMBERED = 1000


class SshKeys:
    """The SSH keys of an account that Gridmill has added."""

    def __init__(self, requests: LambdaRequests) -> None:
        self._requests = requests
        self._added: dict[str, str] = {}
        """The ids of the last added keys by name, because a list may lag behind."""

    def find(self, request: LaunchRequest) -> str:
        """Return the id of the key of a request, or an empty text if the account does not have the key.
        Further keys of the same name, and keys with other contents, are deleted."""
        same = [one for one in self._listed() if one["name"] == name_of(request)]
        right = [
            one for one in same if _contents(str(one["public_key"])) == _contents(request.ssh_public_key)
        ]
        for extra in [one for one in same if one not in right[:1]]:
            self.delete(str(extra["id"]))
        return str(right[0]["id"]) if right else self._added.get(name_of(request), "")

    def add(self, request: LaunchRequest) -> str:
        """Add the key of a request, which does not exist yet, and return its id."""
        body = {"name": name_of(request), "public_key": request.ssh_public_key}
        key_id = str(self._requests.post("/ssh-keys", body)["data"]["id"])
        while len(self._added) >= _MOST_REMEMBERED:
            self._added.pop(next(iter(self._added)), None)
        self._added[name_of(request)] = key_id
        return key_id

    def delete(self, key_id: str) -> None:
        """Delete a key. A key that does not exist is ignored. Raises ConflictError if the list of keys shows
        it after a refused deletion."""
        for name in [name for name, added in tuple(self._added.items()) if added == key_id]:
            self._added.pop(name, None)
        try:
            self._requests.delete(f"/ssh-keys/{key_id}")
        except NotFoundError:
            return
        except RefusedError as error:
            # the documented error for an unknown id is that for invalid parameters
            if any(one["id"] == key_id for one in self._listed()):
                raise ConflictError(error.message, hint=error.hint, place=error.place) from error

    def leftovers(self, owner: str) -> Iterator[Leftover]:
        """Yield the keys of a grid (empty: all grids)."""
        for one in self._listed():
            parts = read_name(str(one["name"]))
            if parts is not None and owner in ("", parts.owner):
                yield Leftover(
                    kind=KIND, id=str(one["id"]), region=REGION, lease=parts.lease, owner=parts.owner
                )

    def _listed(self) -> list[Any]:
        return list(self._requests.pages("/ssh-keys"))


def _contents(public_key: str) -> list[str]:
    """Return the type and the key, without the comment."""
    return public_key.split()[:2]
