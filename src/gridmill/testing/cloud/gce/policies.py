"""The IAM policies of single instances and disks.

Sources: https://docs.cloud.google.com/compute/docs/reference/rest/v1/instances/setIamPolicy and
https://docs.cloud.google.com/compute/docs/reference/rest/v1/disks/setIamPolicy: the call replaces the policy
of the resource, and returns it. Conditions are not simulated.
"""

from typing import Any

from gridmill.testing.cloud.gce.call import Call, check_fields, fingerprint
from gridmill.testing.cloud.gce.refusal import bad_request, not_found


def set_of_instance(call: Call) -> dict[str, Any]:
    """Replaces the policy of an instance."""
    target = f"zones/{call.zone}/instances/{call.place['name']}"
    call.require("compute.instances.setIamPolicy", target)
    instance = call.world.instance(call.zone, call.place["name"], call.now, call.as_of)
    return _set(call, target, exists=instance is not None)


def set_of_disk(call: Call) -> dict[str, Any]:
    """Replaces the policy of a disk."""
    target = f"zones/{call.zone}/disks/{call.place['name']}"
    call.require("compute.disks.setIamPolicy", target)
    names = {one.name for one in call.world.disks.all(call.as_of) if one.zone == call.zone}
    return _set(call, target, exists=call.place["name"] in names)


def _set(call: Call, target: str, *, exists: bool) -> dict[str, Any]:
    if not exists:
        raise not_found(f"projects/{call.world.project}/{target}")
    call.allow_only("policy")
    policy = call.body.get("policy") or {}
    check_fields(policy, "policy", ("bindings", "etag", "version"))
    bindings = policy.get("bindings") or []
    for binding in bindings:
        check_fields(binding, "policy.bindings", ("role", "members"))
        _check(call, binding)
    call.world.policies[target] = bindings
    return {"version": 1, "etag": fingerprint(bindings), "bindings": bindings}


def _check(call: Call, binding: dict[str, Any]) -> None:
    if binding.get("role") not in call.world.roles:
        raise bad_request(f"Role {binding.get('role')} does not exist in the resource's hierarchy.")
    for member in binding.get("members") or ():
        kind, _, email = member.partition(":")
        if kind != "serviceAccount" or email not in call.world.accounts.principals:
            raise bad_request(f"Service account {email} does not exist.")
