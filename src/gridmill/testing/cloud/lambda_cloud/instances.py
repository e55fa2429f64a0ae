"""Lists, changes and terminations of instances, instance types and images.

Sources: https://docs-api.lambda.ai/api/cloud#listInstances, #getInstance, #postInstance,
#terminateInstance, #listInstanceTypes and #listImages
"""

from typing import Any

from gridmill.domain.frozen import replace
from gridmill.testing.cloud.lambda_cloud import catalogue
from gridmill.testing.cloud.lambda_cloud.call import Call
from gridmill.testing.cloud.lambda_cloud.catalogue import InstanceType
from gridmill.testing.cloud.lambda_cloud.launch import has_room
from gridmill.testing.cloud.lambda_cloud.records import Instance, Status
from gridmill.testing.cloud.lambda_cloud.refusal import invalid, not_found, not_simulated

_IMAGE_TIME = "2026-01-15T00:00:00Z"


def list_instances(call: Call) -> list[dict[str, Any]]:
    """Lists the running instances. The list has no pages."""
    return [_shape(one) for one in call.world.listed(call.now, call.as_of)]


def get_instance(call: Call) -> dict[str, Any]:
    """Returns one instance, also one that has ended a short time ago."""
    return _shape(_named(call, call.subject))


def _named(call: Call, instance_id: str) -> Instance:
    instance = call.world.known(instance_id, call.now, call.as_of)
    if instance is None:
        raise not_found("Specified instance does not exist.")
    return instance


def post_instance(call: Call) -> dict[str, Any]:
    """Changes the name of an instance."""
    call.allow_only("name")
    instance = replace(_named(call, call.subject), name=call.text("name", longest=64))
    call.world.instances.put(instance.id, instance, call.now)
    return _shape(instance)


def terminate_instance(call: Call) -> dict[str, Any]:
    """Ends instances. If one of them does not exist, or has ended, none is ended."""
    call.allow_only("instance_ids")
    ids = call.items("instance_ids")
    if not ids:
        raise invalid("instance_ids is missing.")
    instances = [_named(call, str(one)) for one in ids]
    if any(one.status == Status.TERMINATED for one in instances):
        raise not_found("Specified instance does not exist.")
    ended = [call.world.terminate(one, call.now) for one in instances]
    return {"terminated_instances": [_shape(one) for one in ended]}


def restart_instance(call: Call) -> dict[str, Any]:
    """Refuses to restart instances, because simulated machines cannot restart."""
    raise not_simulated("restarts")


def _region(name: str) -> dict[str, str]:
    return {"name": name, "description": catalogue.REGIONS[name]}


def _shape(instance: Instance) -> dict[str, Any]:
    """Returns an instance as the API shows it. The address is missing until the instance has booted."""
    is_known = instance.active_at is not None and not instance.status.is_over
    shape: dict[str, Any] = {
        "id": instance.id,
        "status": instance.status.value,
        "ssh_key_names": [instance.key_name],
        "file_system_names": [],
        "region": _region(instance.region),
        "instance_type": _type_shape(catalogue.TYPES[instance.type]),
        "hostname": instance.hostname,
        "is_reserved": False,
        "actions": _actions(instance),
        "tags": [{"key": key, "value": value} for key, value in instance.tags],
        "firewall_rulesets": [{"id": one} for one in instance.rulesets],
    }
    if instance.name is not None:
        shape["name"] = instance.name
    if is_known:
        shape |= {
            "ip": instance.public_address,
            "private_ip": instance.address,
            "jupyter_token": instance.jupyter_token,
            "jupyter_url": f"https://jupyter-{instance.id}.lambdaspaces.com/?token={instance.jupyter_token}",
        }
    return shape


def _actions(instance: Instance) -> dict[str, Any]:
    if instance.status.is_over:
        reason = "vm-is-terminating"
    elif instance.status == Status.BOOTING:
        reason = "vm-has-not-launched"
    else:
        reason = ""
    blocked = {"available": False, "reason_code": reason, "reason_description": f"The instance: {reason}."}
    usual = blocked if reason else {"available": True}
    ending = blocked if instance.status.is_over else {"available": True}
    return dict.fromkeys(("migrate", "rebuild", "restart", "cold_reboot"), usual) | {"terminate": ending}


def _type_shape(kind: InstanceType) -> dict[str, Any]:
    return {
        "name": kind.name,
        "description": kind.description,
        "gpu_description": kind.gpu_description,
        "price_cents_per_hour": kind.cents_per_hour,
        "specs": {
            "vcpus": kind.vcpus,
            "memory_gib": kind.memory_gib,
            "storage_gib": kind.storage_gib,
            "gpus": kind.gpus,
        },
    }


def list_types(call: Call) -> dict[str, Any]:
    """Lists all instance types, with the regions that have a free machine."""
    return {
        kind.name: {
            "instance_type": _type_shape(kind),
            "regions_with_capacity_available": [
                _region(one) for one in kind.regions if has_room(call.world, kind, one, call.as_of)
            ],
        }
        for kind in catalogue.TYPES.values()
    }


def list_images(call: Call) -> list[dict[str, Any]]:
    """Lists the images of all regions."""
    return [
        {
            "id": one.id,
            "created_time": _IMAGE_TIME,
            "updated_time": _IMAGE_TIME,
            "name": one.name,
            "description": one.description,
            "family": one.family,
            "version": one.version,
            "architecture": one.architecture,
            "region": _region(one.region),
        }
        for one in catalogue.IMAGES
        if one.region not in call.world.faults.regions_gone
    ]
