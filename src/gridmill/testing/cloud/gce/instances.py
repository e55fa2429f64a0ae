"""Instances: their state, lists, and changes.

Sources: https://cloud.google.com/compute/docs/reference/rest/v1/instances (get, list, aggregatedList, delete,
stop, setLabels, getSerialPortOutput)
"""

from typing import Any

from gridmill.domain.frozen import replace
from gridmill.testing.cloud.gce import catalogue
from gridmill.testing.cloud.gce.call import Call, fingerprint, moment
from gridmill.testing.cloud.gce.lists import aggregated, listing
from gridmill.testing.cloud.gce.records import Instance
from gridmill.testing.cloud.gce.refusal import GoogleRefusalError, bad_request, not_found

_LARGEST_OUTPUT_BYTES = 1_048_576


def get_instance(call: Call) -> dict[str, Any]:
    """Returns one instance."""
    return shape(_named(call, "compute.instances.get"), call)


def _named(call: Call, permission: str) -> Instance:
    zone, name = call.zone, call.place["name"]
    target = f"zones/{zone}/instances/{name}"
    call.require(permission, target)
    instance = call.world.instance(zone, name, call.now, call.as_of)
    if instance is None:
        raise not_found(f"projects/{call.world.project}/{target}")
    return instance


def list_instances(call: Call) -> dict[str, Any]:
    """Lists the instances of one zone."""
    zone = call.zone
    call.require("compute.instances.list", "")
    return listing("instance", _shapes(call, zone), call.query)


def list_all(call: Call) -> dict[str, Any]:
    """Lists the instances of all zones."""
    call.require("compute.instances.list", "")
    scopes = {f"zones/{zone}": _shapes(call, zone) for zone in call.zones()}
    return aggregated("instance", "instances", scopes, call.query, call.unreachable(list(scopes)))


def _shapes(call: Call, zone: str) -> list[dict[str, Any]]:
    return [
        shape(one, call)
        for one in call.world.instances.all(call.as_of)
        if one.zone == zone and one.visible_from <= call.now
    ]


def delete_instance(call: Call) -> dict[str, Any]:
    """Begins to delete an instance, with those of its disks that have `autoDelete`."""
    instance = _named(call, "compute.instances.delete")
    if instance.is_protected:
        text = (
            "Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion. "
            f"{instance.name}'."
        )
        raise GoogleRefusalError("invalidResourceUsage", text, 400)
    end = call.world.delete(instance, call.now)
    return _begin(call, "delete", instance, end)


def stop_instance(call: Call) -> dict[str, Any]:
    """Begins to stop an instance. Its disks are still charged."""
    instance = _named(call, "compute.instances.stop")
    return _begin(call, "stop", instance, call.world.stop(instance, call.now))


def _begin(call: Call, kind: str, instance: Instance, end: float) -> dict[str, Any]:
    target = f"zones/{instance.zone}/instances/{instance.name}"
    return call.begin(kind, f"zones/{instance.zone}", target, instance.id, seconds=end - call.now)


def set_labels(call: Call) -> dict[str, Any]:
    """Replaces the labels of an instance."""
    call.allow_only("labels", "labelFingerprint")
    instance = _named(call, "compute.instances.setLabels")
    if call.body.get("labelFingerprint") != fingerprint(dict(instance.labels)):
        raise GoogleRefusalError(
            "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed", 412
        )
    call.world.update(replace(instance, labels=call.labels(call.body.get("labels"))), call.now)
    return _begin(call, "setLabels", instance, call.now)


def serial_output(call: Call) -> dict[str, Any]:
    """Returns the console of an instance, from the byte `start` on."""
    instance = _named(call, "compute.instances.getSerialPortOutput")
    if call.query.get("port", "1") != "1":
        raise bad_request("Only the first serial port has output.")
    output = call.world.host.console(instance.id)
    start = int(call.query.get("start", "0"))
    start = max(start, len(output) - _LARGEST_OUTPUT_BYTES)
    text = output[start:].decode("utf-8", "replace")
    return {
        "kind": "compute#serialPortOutput",
        "contents": text,
        "start": str(start),
        "next": str(len(output)),
    }


def shape(instance: Instance, call: Call) -> dict[str, Any]:
    """Returns an instance as the API shows it."""
    zone = f"zones/{instance.zone}"
    given: dict[str, Any] = {
        "kind": "compute#instance",
        "id": instance.id,
        "creationTimestamp": moment(instance.created_at),
        "name": instance.name,
        "description": instance.description,
        "tags": {"items": list(instance.tags), "fingerprint": fingerprint(instance.tags)},
        "machineType": call.link(f"{zone}/machineTypes/{instance.machine_type}"),
        "status": instance.status.value,
        "zone": call.link(zone),
        "canIpForward": False,
        "networkInterfaces": [_interface(instance, call)],
        "disks": _disks(instance, call),
        "metadata": _metadata(instance),
        "scheduling": _scheduling(instance),
        "labels": dict(instance.labels),
        "labelFingerprint": fingerprint(dict(instance.labels)),
        "deletionProtection": instance.is_protected,
        "selfLink": call.link(f"{zone}/instances/{instance.name}"),
        "cpuPlatform": "Unknown CPU Platform",
        "startRestricted": False,
        "fingerprint": fingerprint(instance.status.value),
    }
    if not instance.labels:
        del given["labels"]
    if instance.service_account:
        given["serviceAccounts"] = [{"email": instance.service_account, "scopes": list(instance.scopes)}]
    if instance.accelerators:
        given["guestAccelerators"] = [
            {
                "acceleratorType": call.link(f"{zone}/acceleratorTypes/{one.type}"),
                "acceleratorCount": one.count,
            }
            for one in instance.accelerators
        ]
    return given | _times(instance)


def _times(instance: Instance) -> dict[str, str]:
    if not instance.runs:
        return {}
    since, until = instance.runs[-1]
    ended = {"lastStopTimestamp": moment(until)} if until is not None else {}
    return {"lastStartTimestamp": moment(since)} | ended


def _interface(instance: Instance, call: Call) -> dict[str, Any]:
    region = catalogue.region_of(instance.zone)
    interface: dict[str, Any] = {
        "kind": "compute#networkInterface",
        "name": "nic0",
        "network": call.link("global/networks/default"),
        "subnetwork": call.link(f"regions/{region}/subnetworks/default"),
        "networkIP": instance.address,
        "stackType": "IPV4_ONLY",
    }
    if instance.has_public_address:
        config = {
            "kind": "compute#accessConfig",
            "type": "ONE_TO_ONE_NAT",
            "name": "External NAT",
            "networkTier": "PREMIUM",
        }
        if instance.public_address and instance.runs:
            config["natIP"] = instance.public_address
        interface["accessConfigs"] = [config]
    return interface


def _disks(instance: Instance, call: Call) -> list[dict[str, Any]]:
    return [
        {
            "kind": "compute#attachedDisk",
            "type": "PERSISTENT",
            "mode": "READ_WRITE",
            "source": call.link(f"zones/{instance.zone}/disks/{one.name}"),
            "deviceName": one.device,
            "index": index,
            "boot": one.is_boot,
            "autoDelete": one.is_deleted,
            "diskSizeGb": str(one.size_gb),
        }
        for index, one in enumerate(instance.disks)
    ]


def _metadata(instance: Instance) -> dict[str, Any]:
    items = [{"key": key, "value": value} for key, value in instance.metadata]
    found: dict[str, Any] = {"kind": "compute#metadata", "fingerprint": fingerprint(items)}
    return found | ({"items": items} if items else {})


def _scheduling(instance: Instance) -> dict[str, Any]:
    found: dict[str, Any] = {
        "automaticRestart": instance.restarts,
        "onHostMaintenance": instance.on_maintenance,
        "preemptible": instance.is_spot,
        "provisioningModel": "SPOT"
        if instance.is_spot and not instance.is_legacy_preemptible
        else "STANDARD",
    }
    if instance.end_action is not None:
        found["instanceTerminationAction"] = instance.end_action.value
    if instance.max_seconds is not None:
        found["maxRunDuration"] = {"seconds": str(instance.max_seconds)}
    return found
