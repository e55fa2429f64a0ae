"""Firewall rules of the network `default`.

Source: https://cloud.google.com/compute/docs/reference/rest/v1/firewalls
"""

import re
from ipaddress import ip_network
from typing import Any

from gridmill.testing.cloud.gce.call import Call, check_fields, last_part, moment
from gridmill.testing.cloud.gce.lists import listing
from gridmill.testing.cloud.gce.quotas import limit_of, usage
from gridmill.testing.cloud.gce.records import Firewall
from gridmill.testing.cloud.gce.refusal import exists, invalid, not_found, not_simulated, over_project_quota

_FIELDS = (
    "name",
    "description",
    "network",
    "direction",
    "priority",
    "sourceRanges",
    "targetTags",
    "allowed",
    "disabled",
)
_PORTS = re.compile(r"\d{1,5}(-\d{1,5})?")
_PROTOCOLS = ("tcp", "udp", "icmp", "esp", "ah", "sctp", "ipip", "all")


def list_firewalls(call: Call) -> dict[str, Any]:
    """Lists the firewall rules."""
    call.require("compute.firewalls.list", "")
    rules = [one for one in call.world.firewalls.all(call.as_of) if one.visible_from <= call.now]
    return listing("firewall", [_shape(one, call) for one in rules], call.query)


def get_firewall(call: Call) -> dict[str, Any]:
    """Returns one firewall rule."""
    return _shape(_named(call, "compute.firewalls.get"), call)


def _named(call: Call, permission: str) -> Firewall:
    target = f"global/firewalls/{call.place['name']}"
    call.require(permission, target)
    rule = call.world.firewalls.get(call.place["name"], call.as_of)
    if rule is None or rule.visible_from > call.now:
        raise not_found(f"projects/{call.world.project}/{target}")
    return rule


def insert_firewall(call: Call) -> dict[str, Any]:
    """Creates a firewall rule that allows incoming traffic."""
    name = call.new_name()
    target = f"global/firewalls/{name}"
    call.require("compute.firewalls.create", target)
    call.allow_only(*_FIELDS)
    if call.world.firewalls.get(name) is not None:
        raise exists(f"projects/{call.world.project}/{target}")
    limit = limit_of(call.world, "FIREWALLS", "global")
    if usage(call.world, "global")["FIREWALLS"] >= limit:
        raise over_project_quota("FIREWALLS", limit)
    rule = _rule(call, name)
    call.world.firewalls.put(name, rule, call.now)
    call.world.apply_firewalls()
    return call.begin("insert", "global", target, rule.id)


def _rule(call: Call, name: str) -> Firewall:
    body = call.body
    if body.get("direction", "INGRESS") != "INGRESS":
        raise not_simulated("firewall rules for outgoing traffic")
    network = body.get("network", "global/networks/default")
    if last_part(network, "resource.network") != "default":
        raise not_found(f"projects/{call.world.project}/global/networks/{last_part(network, 'network')}")
    allowed = tuple(_allowed(one) for one in body.get("allowed") or ())
    if not allowed:
        raise invalid("resource.allowed", "", "At least one protocol is required.")
    return Firewall(
        id=call.world.new_number(),
        name=name,
        created_at=call.now,
        visible_from=call.now + call.world.faults.invisible(),
        allowed=allowed,
        ranges=tuple(_network(one) for one in body.get("sourceRanges") or ("0.0.0.0/0",)),
        target_tags=tuple(body.get("targetTags") or ()),
        description=str(body.get("description", "")),
        priority=int(body.get("priority", 1000)),
        is_disabled=bool(body.get("disabled", False)),
    )


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise invalid("resource.sourceRanges", text, f"{error}.") from error


def _allowed(given: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    check_fields(given, "resource.allowed", ("IPProtocol", "ports"))
    protocol, ports = str(given.get("IPProtocol", "")).lower(), given.get("ports") or ()
    if protocol not in _PROTOCOLS and not protocol.isdecimal():
        raise invalid("resource.allowed.IPProtocol", protocol, "The protocol is unknown.")
    for one in ports:
        if not _PORTS.fullmatch(str(one)):
            raise invalid("resource.allowed.ports", one, "A port or a range of ports is expected.")
    return protocol, tuple(map(str, ports))


def delete_firewall(call: Call) -> dict[str, Any]:
    """Deletes a firewall rule, also one that instances use."""
    rule = _named(call, "compute.firewalls.delete")
    call.world.firewalls.put(rule.name, None, call.now)
    call.world.apply_firewalls()
    return call.begin("delete", "global", f"global/firewalls/{rule.name}", rule.id)


def _shape(rule: Firewall, call: Call) -> dict[str, Any]:
    allowed = [
        {"IPProtocol": protocol} | ({"ports": list(ports)} if ports else {})
        for protocol, ports in rule.allowed
    ]
    shape: dict[str, Any] = {
        "kind": "compute#firewall",
        "id": rule.id,
        "creationTimestamp": moment(rule.created_at),
        "name": rule.name,
        "description": rule.description,
        "network": call.link("global/networks/default"),
        "priority": rule.priority,
        "sourceRanges": list(rule.ranges),
        "allowed": allowed,
        "direction": "INGRESS",
        "disabled": rule.is_disabled,
        "selfLink": call.link(f"global/firewalls/{rule.name}"),
    }
    return shape | ({"targetTags": list(rule.target_tags)} if rule.target_tags else {})
