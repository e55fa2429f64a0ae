"""Lets each machine of Compute Engine delete itself, and no other machine.

Every machine gets a service account that no other machine uses at the same time, as long as there are enough.
The account has no rights at the project: the IAM policies of the machine and of its disk give it the role
`machine_role` there. Such a policy can be set again without a change, so that it is set at each request for
a machine, and once more when a control node lists the machine for the first time.

Sources: instances.setIamPolicy and disks.setIamPolicy in the Compute Engine API reference; "Manage access to
Compute Engine resources" (docs.cloud.google.com/compute/docs/access/managing-access-to-resources).
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gridmill.clouds.gcp.requests import GcpRequests
from gridmill.clouds.gcp.settings import GcpSettings
from gridmill.errors import GridmillError

_LOG = logging.getLogger(__name__)
_CHOSEN_SECONDS = 900.0
"""The time after which a chosen account counts as unused if the provider does not list its machine."""


class MachineAccounts:
    """The service accounts of the machines of one project. This class is safe to use from several threads."""

    def __init__(
        self,
        requests: GcpRequests,
        settings: GcpSettings,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests, self._settings, self._monotonic = requests, settings, monotonic
        self._lock = threading.Lock()
        self._chosen: dict[str, tuple[str, float]] = {}
        """The account of each requested machine, with the time of the request."""
        self._permitted: set[str] = set()

    def choose(self, name: str, listed: Callable[[], Iterable[Mapping[str, Any]]]) -> str:
        """Return the account for a new machine: the one that the fewest machines use. It is empty if the
        machines have no accounts. `listed` returns the machines of the provider."""
        accounts = self._settings.service_accounts
        if len(accounts) < 2:
            return next(iter(accounts), "")
        users = {one["name"]: email_of(one) for one in listed()}
        with self._lock:
            now = self._monotonic()
            self._chosen = {
                key: pair for key, pair in self._chosen.items() if now - pair[1] < _CHOSEN_SECONDS
            }
            users |= {key: email for key, (email, _) in self._chosen.items()}
            counts = Counter(email for key, email in users.items() if key != name)
            email = users.get(name) or min(accounts, key=lambda one: counts[one])
            self._chosen[name] = email, now
            return email

    def permit(self, item: Mapping[str, Any], zone: str) -> None:
        """Permit a machine, as instances.get describes it, to delete itself and its disks. A failure is
        logged, and the call is repeated when the machine is listed: until then, only the provider ends the
        machine after its longest time."""
        email = email_of(item)
        if not self._settings.machine_role or not email:
            return
        key = f"{zone}/{item['name']}/{item.get('id', '')}"
        if key in self._permitted:
            return
        try:
            self._set("instances.setIamPolicy", f"/zones/{zone}/instances/{item['name']}", email)
            for disk in item.get("disks") or ():
                if disk.get("autoDelete") and disk.get("source"):
                    name = disk["source"].rpartition("/")[2]
                    self._set("disks.setIamPolicy", f"/zones/{zone}/disks/{name}", email)
        except GridmillError as error:
            _LOG.warning("no_self_end machine=%s reason=%s", item["name"], error)
            return
        with self._lock:
            self._permitted.add(key)

    def _set(self, action: str, path: str, email: str) -> None:
        binding = {"role": self._settings.machine_role, "members": [f"serviceAccount:{email}"]}
        self._requests.compute(action, f"{path}/setIamPolicy", body={"policy": {"bindings": [binding]}})


def email_of(item: Mapping[str, Any]) -> str:
    """Return the service account of a machine, or an empty text."""
    return next((one.get("email", "") for one in item.get("serviceAccounts") or ()), "")


def notes_of(settings: GcpSettings) -> tuple[str, ...]:
    """Return what machines can delete besides themselves."""
    accounts = len(settings.service_accounts)
    if not accounts:
        return ()
    if not settings.machine_role:
        return (
            "a process that becomes root on a machine can delete the other machines of Gridmill in the "
            "project; the setting `machine_role` limits it to its own machine",
        )
    return (f"each of {accounts} machines can delete only itself; further ones share a service account",)
