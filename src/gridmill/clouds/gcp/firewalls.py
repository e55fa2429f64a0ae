"""The firewall rules of leases. A lease has one rule, which permits SSH to its machines by a network tag that
has the name of the rule. The rule is deleted at the end of the lease.

A firewall rule has no labels. Its description has the lease and the owner.
"""

import hashlib
from collections.abc import Iterable, Iterator
from ipaddress import ip_network
from typing import Any

from gridmill.clouds.gcp.launch import described, description_of, time_of
from gridmill.clouds.gcp.requests import GcpRequests
from gridmill.clouds.gcp.settings import GcpSettings
from gridmill.domain.machine import Leftover
from gridmill.errors import ConflictError, InputError
from gridmill.ports.cloud import LaunchRequest

KIND = "firewall-rule"
GLOBAL = "global"
_PREFIX = "gridmill-ssh-"


def rule_name(owner: str, lease: str) -> str:
    """Return the name of the rule of a lease, which is its network tag too."""
    return _PREFIX + hashlib.sha256(f"{owner}/{lease}".encode()).hexdigest()[:24]


def rule_body(request: LaunchRequest, network: str, sources: Iterable[str]) -> dict[str, Any]:
    """Return the body of firewalls.insert. The machines have only IPv4 addresses. Raises InputError if no
    network of IPv4 is permitted."""
    ranges = [one for one in sources if ip_network(one).version == 4]
    if not ranges:
        raise InputError(
            "the machines have only IPv4 addresses, but SSH is permitted only from networks of IPv6",
            hint="Add a network of IPv4, for example 192.0.2.0/24.",
            place="settings.ssh_from",
        )
    name = rule_name(request.owner, request.lease)
    return {
        "name": name,
        "description": description_of(request, is_shared=True),
        "network": network,
        "direction": "INGRESS",
        "sourceRanges": ranges,
        "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
        "targetTags": [name],
    }


class Firewalls:
    """Creates, lists and deletes the rules of leases."""

    def __init__(self, requests: GcpRequests, settings: GcpSettings, wait_seconds: float) -> None:
        """A launch waits for `wait_seconds` until the provider has created the rule."""
        self._requests, self._settings, self._wait_seconds = requests, settings, wait_seconds

    def tags(self, request: LaunchRequest) -> tuple[str, ...]:
        """Return the network tags for the machine of a request. The rule of the lease is created if it does
        not exist, unless the settings have tags. The method can be repeated. It waits until the rule
        exists, so that an error is known before a machine costs money."""
        if self._settings.network_tags:
            return self._settings.network_tags
        network = f"projects/{self._requests.project()}/global/networks/{self._settings.network}"
        body = rule_body(request, network, self._settings.ssh_from or request.allowed_addresses)
        try:
            operation = self._requests.compute(
                "firewalls.insert", "/global/firewalls", body=body, is_launch=True
            )
            self._requests.wait(operation, self._wait_seconds)
        except ConflictError:
            pass  # an earlier call has created the rule
        return (str(body["name"]),)

    def leftovers(self, owner: str) -> Iterator[Leftover]:
        """Yield the rules of all leases of a grid (empty: of all grids)."""
        for one in self._requests.pages("firewalls.list", "/global/firewalls"):
            fields = described(one.get("description", ""))
            if not one["name"].startswith(_PREFIX) or owner not in ("", fields.get("owner", "")):
                continue
            yield Leftover(
                kind=KIND,
                id=one["name"],
                region=GLOBAL,
                lease=fields.get("lease", ""),
                owner=fields.get("owner", ""),
                created=time_of(one.get("creationTimestamp", "")),
            )
