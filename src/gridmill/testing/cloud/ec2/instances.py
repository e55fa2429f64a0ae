"""Lists, changes and ends of instances of the simulated EC2.

Sources: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstances.html,
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_TerminateInstances.html and
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceStatus.html
"""

import base64
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from gridmill.domain.frozen import replace
from gridmill.testing.cloud.ec2.call import Call
from gridmill.testing.cloud.ec2.filters import page, select
from gridmill.testing.cloud.ec2.records import Instance, State
from gridmill.testing.cloud.ec2.refusal import RefusalError, invalid, missing, not_simulated
from gridmill.testing.cloud.ec2.shapes import reservation, state_shape
from gridmill.testing.cloud.ec2.wire import moment

_MOST = 1000
_LARGEST_CONSOLE_BYTES = 64 * 1024


def describe_instances(call: Call) -> dict[str, Any]:
    """Lists instances, grouped by launch."""
    call.allow_only("InstanceIds", "Filters", "MaxResults", "NextToken")
    listed, token = _listed(call, fewest=5)
    launches = groupby(listed, key=lambda one: one.reservation_id)
    return {"Reservations": [reservation(list(each), call) for _, each in launches], "NextToken": token}


def _listed(call: Call, fewest: int) -> tuple[list[Instance], str | None]:
    ids = call.get("InstanceIds", ())
    if ids:
        instances = call.instances_named(ids, call.as_of)
    else:
        known = call.region.instances.all(call.as_of)
        instances = [one for one in known if call.visible(one) and call.world.is_listed(one, call.now)]
    found = select(instances, call.get("Filters", ()), _attributes, lambda one: one.tags)
    return page(found, call.parameters, fewest=fewest, most=_MOST, ids=ids)


def _attributes(instance: Instance) -> Mapping[str, Sequence[str]]:
    return {
        "architecture": [instance.architecture],
        "availability-zone": [instance.zone],
        "client-token": [instance.client_token],
        "image-id": [instance.image_id],
        "instance-id": [instance.id],
        "instance-lifecycle": ["spot"] if instance.is_spot else [],
        "instance-state-code": [str(instance.state.number)],
        "instance-state-name": [instance.state.value],
        "instance-type": [instance.type],
        "instance.group-id": instance.groups,
        "ip-address": [instance.public_address],
        "key-name": [instance.key_name],
        "private-ip-address": [instance.address],
        "reservation-id": [instance.reservation_id],
        "spot-instance-request-id": [instance.spot_request_id],
        "state-reason-code": [instance.reason_code],
        "subnet-id": [instance.subnet_id],
        "vpc-id": [instance.vpc_id],
    }


def terminate_instances(call: Call) -> dict[str, Any]:
    """Ends instances. An instance that is ending or has ended is no error. If one of the instances is
    protected, none of its zone is ended."""
    call.allow_only("InstanceIds")
    instances = call.instances_named(call.get("InstanceIds", ()), call.now)
    if not instances:
        raise missing("InstanceId")
    protected = {one.zone: one.id for one in instances if one.is_protected}
    changes = [_change(one, _terminate(call, one)) for one in instances if one.zone not in protected]
    if protected:
        raise RefusalError(
            "OperationNotPermitted",
            f"The instance '{min(protected.values())}' may not be terminated. Modify its "
            "'disableApiTermination' "
            "instance attribute and try again.",
        )
    return {"TerminatingInstances": changes}


def _terminate(call: Call, instance: Instance) -> Instance:
    return call.world.terminate(instance, "Client.UserInitiatedShutdown", "User initiated shutdown", call.now)


def _change(before: Instance, after: Instance) -> dict[str, Any]:
    return {
        "InstanceId": before.id,
        "PreviousState": state_shape(before.state),
        "CurrentState": state_shape(after.state),
    }


def describe_instance_status(call: Call) -> dict[str, Any]:
    """Lists the status checks of instances. Without IncludeAllInstances, only running instances are
    listed."""
    call.allow_only("InstanceIds", "Filters", "MaxResults", "NextToken", "IncludeAllInstances")
    listed, token = _listed(call, fewest=5)
    every = bool(call.get("IncludeAllInstances", False))
    shown = [one for one in listed if every or one.state == State.RUNNING]
    return {"InstanceStatuses": [_status(one, call) for one in shown], "NextToken": token}


def _status(instance: Instance, call: Call) -> dict[str, Any]:
    status = _check(instance, call)
    details = {"passed": "ok", "failed": "impaired", "initializing": "initializing"}
    shape = {
        "Status": details.get(status, "not-applicable"),
        "Details": [{"Name": "reachability", "Status": status}] if status in details else [],
    }
    return {
        "InstanceId": instance.id,
        "AvailabilityZone": instance.zone,
        "InstanceState": state_shape(instance.state),
        "InstanceStatus": shape,
        "SystemStatus": shape,
        "Events": [],
    }


def _check(instance: Instance, call: Call) -> str:
    if instance.state != State.RUNNING:
        return "not-applicable"
    if instance.is_broken:
        return "failed"
    booted_at = instance.runs[-1][0] + call.world.faults.boot_seconds
    return "passed" if call.now >= booted_at else "initializing"


def get_console_output(call: Call) -> dict[str, Any]:
    """Returns the last 64 KB of the console of an instance.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetConsoleOutput.html
    """
    call.allow_only("InstanceId", "Latest")
    [instance] = call.instances_named([call.get("InstanceId")], call.now)
    output = call.world.host.console(instance.id)[-_LARGEST_CONSOLE_BYTES:]
    return {
        "InstanceId": instance.id,
        "Timestamp": moment(call.now),
        "Output": base64.b64encode(output).decode(),
    }


def modify_attribute(call: Call) -> dict[str, Any]:
    """Changes the shutdown behavior or the protection of an instance.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ModifyInstanceAttribute.html
    """
    names = ("InstanceInitiatedShutdownBehavior", "DisableApiTermination")
    call.allow_only("InstanceId", "Attribute", "Value", *names)
    [instance] = call.instances_named([call.get("InstanceId")], call.now)
    if instance.state.is_over:
        raise RefusalError(
            "IncorrectInstanceState",
            f"The instance '{instance.id}' is not in a state from which it can be modified.",
        )
    given = {name: call.get(name, {}).get("Value") for name in names if call.get(name)}
    attribute = str(call.get("Attribute", ""))
    if attribute:
        name = attribute[0].upper() + attribute[1:]
        if name not in names:
            raise not_simulated(f"the attribute {attribute}")
        given[name] = call.get("Value") if name == names[0] else call.get("Value") == "true"
    if not given:
        raise missing("Attribute")
    behavior = given.get(names[0], instance.shutdown_behavior)
    if behavior not in ("stop", "terminate"):
        raise invalid(behavior, names[0])
    protected = bool(given.get(names[1], instance.is_protected))
    call.world.update(replace(instance, shutdown_behavior=behavior, is_protected=protected), call.now)
    return {}


def describe_attribute(call: Call) -> dict[str, Any]:
    """Returns one attribute of an instance.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceAttribute.html
    """
    call.allow_only("InstanceId", "Attribute")
    [instance] = call.instances_named([call.get("InstanceId")], call.as_of)
    match call.get("Attribute"):
        case "instanceInitiatedShutdownBehavior":
            value: dict[str, Any] = {
                "InstanceInitiatedShutdownBehavior": {"Value": instance.shutdown_behavior}
            }
        case "disableApiTermination":
            value = {"DisableApiTermination": {"Value": instance.is_protected}}
        case "userData":
            value = {"UserData": {"Value": instance.user_data} if instance.user_data else {}}
        case "instanceType":
            value = {"InstanceType": {"Value": instance.type}}
        case other:
            raise not_simulated(f"the attribute {other}")
    return {"InstanceId": instance.id, **value}
