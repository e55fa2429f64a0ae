"""Instances as they are in answers.

Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Instance.html
"""

from collections.abc import Sequence
from typing import Any

from gridmill.testing.cloud.ec2 import catalogue
from gridmill.testing.cloud.ec2.call import Call
from gridmill.testing.cloud.ec2.catalogue import INSTANCE_TYPES
from gridmill.testing.cloud.ec2.filters import tag_set
from gridmill.testing.cloud.ec2.records import Instance, State
from gridmill.testing.cloud.ec2.wire import moment


def reservation(instances: Sequence[Instance], call: Call) -> dict[str, Any]:
    """Returns the instances of one launch."""
    return {
        "ReservationId": instances[0].reservation_id,
        "OwnerId": catalogue.ACCOUNT,
        "Groups": [],
        "Instances": [instance_shape(one, call) for one in instances],
    }


def state_shape(state: State) -> dict[str, Any]:
    """Returns the code and the name of a state."""
    return {"Code": state.number, "Name": state.value}


def instance_shape(instance: Instance, call: Call) -> dict[str, Any]:
    """Returns an instance. Addresses are in the answer only while the instance has them."""
    has_addresses = instance.state != State.TERMINATED
    shape: dict[str, Any] = {
        "InstanceId": instance.id,
        "ImageId": instance.image_id,
        "State": state_shape(instance.state),
        "PrivateDnsName": _name(instance.address, "internal") if has_addresses else "",
        "PublicDnsName": _name(_shown_public(instance), "amazonaws.com"),
        "StateTransitionReason": instance.transition,
        "AmiLaunchIndex": instance.launch_index,
        "InstanceType": instance.type,
        "LaunchTime": moment(instance.launched_at),
        "Placement": {"AvailabilityZone": instance.zone, "Tenancy": "default", "GroupName": ""},
        "Monitoring": {"State": "disabled"},
        "Architecture": instance.architecture,
        "RootDeviceType": "ebs",
        "VirtualizationType": "hvm",
        "Hypervisor": "xen",
        "EbsOptimized": False,
        "CpuOptions": _cpu_options(instance.type),
        "EnaSupport": True,
        "SourceDestCheck": True,
        "Tags": tag_set(instance.tags),
        "SecurityGroups": _groups(instance, call) if has_addresses else [],
        "BlockDeviceMappings": [_device(instance, *each) for each in instance.volumes],
        "NetworkInterfaces": [_interface(instance)] if has_addresses else [],
        "MetadataOptions": {
            "State": "applied",
            "HttpTokens": "required" if instance.tokens_required else "optional",
            "HttpPutResponseHopLimit": 2,
            "HttpEndpoint": "enabled",
        },
    }
    return shape | _optional(instance, has_addresses)


def _cpu_options(instance_type: str) -> dict[str, int]:
    vcpus = INSTANCE_TYPES[instance_type].vcpus
    return {"CoreCount": vcpus // 2, "ThreadsPerCore": 2}


def _optional(instance: Instance, has_addresses: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if has_addresses:
        found |= {
            "PrivateIpAddress": instance.address,
            "SubnetId": instance.subnet_id,
            "VpcId": instance.vpc_id,
        }
    if _shown_public(instance):
        found["PublicIpAddress"] = _shown_public(instance)
    if instance.key_name:
        found["KeyName"] = instance.key_name
    if instance.client_token:
        found["ClientToken"] = instance.client_token
    if instance.is_spot:
        found |= {"InstanceLifecycle": "spot", "SpotInstanceRequestId": instance.spot_request_id}
    if instance.reason_code:
        found["StateReason"] = {"Code": instance.reason_code, "Message": instance.reason_message}
    if instance.profile:
        found["IamInstanceProfile"] = {"Arn": instance.profile}
    return found


def _shown_public(instance: Instance) -> str:
    """Returns the public address, which an instance gets while it is pending."""
    return instance.public_address if instance.state in (State.RUNNING, State.SHUTTING_DOWN) else ""


def _name(address: str, domain: str) -> str:
    return f"ip-{address.replace('.', '-')}.ec2.{domain}" if address else ""


def _groups(instance: Instance, call: Call) -> list[dict[str, str]]:
    found = [call.region.groups.get(one) for one in instance.groups]
    return [{"GroupId": one.id, "GroupName": one.name} for one in found if one is not None]


def _device(instance: Instance, device: str, volume_id: str, is_deleted: bool) -> dict[str, Any]:
    return {
        "DeviceName": device,
        "Ebs": {
            "VolumeId": volume_id,
            "Status": "attached",
            "AttachTime": moment(instance.launched_at),
            "DeleteOnTermination": is_deleted,
        },
    }


def _interface(instance: Instance) -> dict[str, Any]:
    return {
        "NetworkInterfaceId": instance.interface_id,
        "Status": "in-use",
        "PrivateIpAddress": instance.address,
        "SubnetId": instance.subnet_id,
        "VpcId": instance.vpc_id,
        "OwnerId": catalogue.ACCOUNT,
        "Attachment": {"DeviceIndex": 0, "DeleteOnTermination": True, "Status": "attached"},
    }
