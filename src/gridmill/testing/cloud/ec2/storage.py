"""Disks and tags of the simulated EC2.

Sources: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeVolumes.html and
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateTags.html
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gridmill.domain.frozen import replace
from gridmill.testing.cloud.ec2.call import Call
from gridmill.testing.cloud.ec2.filters import checked, page, select, tag_set
from gridmill.testing.cloud.ec2.records import Tags, Volume
from gridmill.testing.cloud.ec2.refusal import RefusalError, not_simulated
from gridmill.testing.cloud.ec2.wire import moment

_MOST_TAGS = 50


def describe_volumes(call: Call) -> dict[str, Any]:
    """Lists disks by id or filter."""
    call.allow_only("VolumeIds", "Filters", "MaxResults", "NextToken")
    ids = call.get("VolumeIds", ())
    volumes = [one for one in call.region.volumes.all(call.as_of) if call.visible(one)]
    named = {one.id: one for one in volumes}
    for one in ids:
        if one not in named:
            raise _no_volume(one)
    chosen = [named[one] for one in ids] or volumes
    found = select(chosen, call.get("Filters", ()), _attributes, lambda one: one.tags)
    listed, token = page(found, call.parameters, fewest=5, most=1000, ids=ids)
    return {"Volumes": [_shape(one, call) for one in listed], "NextToken": token}


def _attributes(volume: Volume) -> Mapping[str, Sequence[str]]:
    return {
        "attachment.instance-id": [volume.instance_id],
        "availability-zone": [volume.zone],
        "size": [str(volume.size_gb)],
        "status": [_status(volume)],
        "volume-id": [volume.id],
        "volume-type": [volume.kind],
    }


def _status(volume: Volume) -> str:
    return "in-use" if volume.instance_id else "available"


def _shape(volume: Volume, call: Call) -> dict[str, Any]:
    instance = call.region.instances.get(volume.instance_id)
    deleted = {each[1]: each[2] for each in instance.volumes} if instance is not None else {}
    attachment = {
        "InstanceId": volume.instance_id,
        "VolumeId": volume.id,
        "Device": volume.device,
        "State": "attached",
        "AttachTime": moment(volume.created_at),
        "DeleteOnTermination": deleted.get(volume.id, False),
    }
    return {
        "VolumeId": volume.id,
        "AvailabilityZone": volume.zone,
        "Size": volume.size_gb,
        "VolumeType": volume.kind,
        "CreateTime": moment(volume.created_at),
        "State": _status(volume),
        "Encrypted": False,
        "Attachments": [attachment] if volume.instance_id else [],
        "Tags": tag_set(volume.tags),
    }


def delete_volume(call: Call) -> dict[str, Any]:
    """Deletes a disk that is not attached."""
    call.allow_only("VolumeId")
    volume = call.region.volumes.get(call.get("VolumeId"))
    if volume is None or not call.visible(volume):
        raise _no_volume(call.get("VolumeId"))
    if volume.instance_id:
        raise RefusalError("VolumeInUse", f"Volume {volume.id} is currently attached to {volume.instance_id}")
    call.world.delete_volume(volume, call.now)
    return {}


def _no_volume(volume_id: str) -> RefusalError:
    return RefusalError("InvalidVolume.NotFound", f"The volume '{volume_id[:60]}' does not exist.")


def create_tags(call: Call) -> dict[str, Any]:
    """Adds tags to resources, or overwrites them. If one resource does not exist, nothing is changed."""
    call.allow_only("Resources", "Tags")
    new = checked(call.get("Tags", ()))
    changes = [_tagged(call, one, new) for one in call.get("Resources", ())]
    for table, key, record in changes:
        table.put(key, record, call.now)
    return {}


def delete_tags(call: Call) -> dict[str, Any]:
    """Deletes tags of resources. A tag that does not exist is no error."""
    call.allow_only("Resources", "Tags")
    gone = {str(tag.get("Key")): tag.get("Value") for tag in call.get("Tags", ())}
    for one in call.get("Resources", ()):
        table, key, record = _tagged(call, one, {})
        kept = tuple(
            (name, value) for name, value in record.tags if not (name in gone and gone[name] in (None, value))
        )
        table.put(key, replace(record, tags=kept if gone else ()), call.now)
    return {}


def _tagged(call: Call, resource_id: str, new: Mapping[str, str]) -> tuple[Any, str, Any]:
    table, key, record = _resource(call, resource_id)
    tags: Tags = tuple((dict(record.tags) | dict(new)).items())
    if len(tags) > _MOST_TAGS:
        raise RefusalError("TagLimitExceeded", f"More than {_MOST_TAGS} tags for {resource_id}.")
    return table, key, replace(record, tags=tags)


def _resource(call: Call, resource_id: str) -> tuple[Any, str, Any]:
    """Returns the table, the key and the record of a resource."""
    region = call.region
    kind = resource_id.partition("-")[0]
    if kind == "i":
        [instance] = call.instances_named([resource_id], call.now)
        return region.instances, resource_id, instance
    tables: dict[str, Any] = {
        "ami": region.images,
        "eipalloc": region.addresses,
        "sg": region.groups,
        "snap": region.snapshots,
        "vol": region.volumes,
    }
    if kind == "key":
        for pair in region.keys.all():
            if pair.id == resource_id:
                return region.keys, pair.name, pair
        raise RefusalError("InvalidKeyPair.NotFound", f"The key pair '{resource_id}' does not exist")
    if kind not in tables:
        raise not_simulated(f"tags of {resource_id[:60]!r}")
    record = tables[kind].get(resource_id)
    if record is None:
        codes = {
            "ami": "InvalidAMIID.NotFound",
            "sg": "InvalidGroup.NotFound",
            "snap": "InvalidSnapshot.NotFound",
            "vol": "InvalidVolume.NotFound",
        }
        code = codes.get(kind, "InvalidAllocationID.NotFound")
        raise RefusalError(code, f"The resource '{resource_id[:60]}' does not exist")
    return tables[kind], resource_id, record
