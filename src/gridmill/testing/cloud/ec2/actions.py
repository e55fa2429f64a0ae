"""The actions of the simulated services, and the way of a request through the checks of AWS.

Sources: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html and
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html (DryRun)
"""

from collections.abc import Callable, Mapping
from typing import Any

from gridmill.testing.cloud.cloud_faults import PlannedFault
from gridmill.testing.cloud.ec2 import (
    groups,
    iam,
    images,
    instances,
    launch,
    network,
    offers,
    own_images,
    services,
    signature,
    storage,
    wire,
)
from gridmill.testing.cloud.ec2.call import Call
from gridmill.testing.cloud.ec2.records import Principal
from gridmill.testing.cloud.ec2.refusal import RefusalError, not_simulated
from gridmill.testing.cloud.ec2.throttle import Throttle
from gridmill.testing.cloud.ec2.users import arn_of, is_denied
from gridmill.testing.cloud.ec2.world import World
from gridmill.testing.cloud.simulation_server import NO_ANSWER, Answer, with_fault

_Action = Callable[[Call], dict[str, Any]]
_EC2: Mapping[str, _Action] = {
    "AllocateAddress": network.allocate_address,
    "AuthorizeSecurityGroupIngress": groups.authorize_ingress,
    "CreateImage": own_images.create_image,
    "CreateSecurityGroup": groups.create_security_group,
    "CreateTags": storage.create_tags,
    "DeleteKeyPair": groups.delete_key_pair,
    "DeleteSecurityGroup": groups.delete_security_group,
    "DeleteSnapshot": own_images.delete_snapshot,
    "DeleteTags": storage.delete_tags,
    "DeleteVolume": storage.delete_volume,
    "DeregisterImage": own_images.deregister_image,
    "DescribeAddresses": network.describe_addresses,
    "DescribeAvailabilityZones": offers.describe_zones,
    "DescribeImages": images.describe_images,
    "DescribeInstanceAttribute": instances.describe_attribute,
    "DescribeInstanceStatus": instances.describe_instance_status,
    "DescribeInstanceTypeOfferings": offers.describe_offerings,
    "DescribeInstanceTypes": offers.describe_instance_types,
    "DescribeInstances": instances.describe_instances,
    "DescribeKeyPairs": groups.describe_key_pairs,
    "DescribeRegions": offers.describe_regions,
    "DescribeRouteTables": network.describe_route_tables,
    "DescribeSecurityGroups": groups.describe_security_groups,
    "DescribeSnapshots": own_images.describe_snapshots,
    "DescribeSpotPriceHistory": offers.describe_spot_prices,
    "DescribeSubnets": network.describe_subnets,
    "DescribeVolumes": storage.describe_volumes,
    "DescribeVpcAttribute": network.describe_vpc_attribute,
    "DescribeVpcs": network.describe_vpcs,
    "GetConsoleOutput": instances.get_console_output,
    "ImportKeyPair": groups.import_key_pair,
    "ModifyInstanceAttribute": instances.modify_attribute,
    "ReleaseAddress": network.release_address,
    "RunInstances": launch.run_instances,
    "TerminateInstances": instances.terminate_instances,
}
_ACTIONS: Mapping[str, Mapping[str, _Action]] = {
    "ec2": _EC2,
    "sts": {"GetCallerIdentity": services.get_caller_identity},
    "iam": {
        "AddRoleToInstanceProfile": iam.add_role_to_instance_profile,
        "AttachRolePolicy": iam.attach_role_policy,
        "CreateInstanceProfile": iam.create_instance_profile,
        "CreateRole": iam.create_role,
        "GetInstanceProfile": iam.get_instance_profile,
        "GetRole": iam.get_role,
        "PutRolePolicy": iam.put_role_policy,
        "SimulatePrincipalPolicy": iam.simulate_principal_policy,
    },
    "servicequotas": {
        "ListServiceQuotas": services.list_service_quotas,
        "GetServiceQuota": services.get_service_quota,
    },
    "pricing": {"GetProducts": services.get_products},
}
_FREE = {"GetCallerIdentity"}
"""Actions that need no rights."""


class Services:
    """All simulated services of one account."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._throttle = Throttle()

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Carries out a request, and returns its answer."""
        with self.world.lock:
            request_id = f"{self.world.random.getrandbits(128):032x}"
            service = "ec2"
            try:
                scope = signature.scope_of(headers)
                service = scope.service
                action = wire.action_of(service, headers, body)
                request = signature.Request(
                    method=method,
                    path=path,
                    headers=headers,
                    body=body,
                    wall_time=self.world.wall_time(),
                )
                return self._carried_out(scope, action, request, request_id)
            except RefusalError as error:
                return _refused(service, error, request_id)

    def _carried_out(
        self,
        scope: signature.Scope,
        action: str,
        given: signature.Request,
        request_id: str,
    ) -> Answer:
        now = self.world.settle()
        self.world.requests.append((now, scope.region, action))
        if scope.region in self.world.faults.regions_down:
            return NO_ANSWER
        if scope.region in self.world.faults.regions_gone:
            raise signature.failed(scope.service)
        principal = self.world.users.signer(scope, given)
        fault = self.world.faults.next_fault(action, scope.region, scope.access_key)

        def effect() -> Answer:
            request = wire.read_request(scope.service, action, given.body)
            values = self._effect(scope, action, principal, request, now)
            return Answer(
                status=200,
                body=wire.write_answer(scope.service, action, values, request_id),
                content_type=_content_type(scope.service),
            )

        return with_fault(fault, effect, lambda one: _refused(scope.service, _error_of(one), request_id))

    def _effect(
        self,
        scope: signature.Scope,
        action: str,
        principal: Principal,
        parameters: dict[str, Any],
        now: float,
    ) -> dict[str, Any]:
        world = self.world
        function = _ACTIONS[scope.service].get(action)
        if function is None:
            raise not_simulated(f"the action {action} of {scope.service}")
        if world.faults.throttling and scope.service == "ec2":
            self._throttle.take(scope.region, action, parameters, now)
        if action not in _FREE and is_denied(principal, f"{scope.service}:{action}"):
            raise _unauthorized(scope.service, action, principal)
        if parameters.get("DryRun"):
            raise RefusalError(
                "DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412
            )
        is_list = action.startswith(("Describe", "List", "Get"))
        call = Call(
            world=world,
            region=world.regions[scope.region],
            action=action,
            parameters=parameters,
            principal=principal,
            now=now,
            as_of=now - world.faults.lag_seconds() if is_list else now,
        )
        values = function(call)
        world.settle()
        return values


def _content_type(service: str) -> str:
    return "application/x-amz-json-1.1" if wire.protocol(service) == "json" else "text/xml;charset=UTF-8"


def _refused(service: str, error: RefusalError, request_id: str) -> Answer:
    known = service if service in _ACTIONS else "ec2"
    return Answer(
        status=error.status,
        body=wire.write_error(known, error, request_id),
        content_type=_content_type(known),
    )


def _error_of(fault: PlannedFault) -> RefusalError:
    return RefusalError(fault.code, fault.message, fault.status)


def _unauthorized(service: str, action: str, principal: Principal) -> RefusalError:
    who = f"User: {arn_of(principal)} is not authorized to perform: {service}:{action}"
    if service == "ec2":
        return RefusalError(
            "UnauthorizedOperation",
            f"You are not authorized to perform this operation. {who} because no identity-based policy "
            "allows "
            f"the {service}:{action} action",
            403,
        )
    code = "AccessDeniedException" if wire.protocol(service) == "json" else "AccessDenied"
    return RefusalError(code, who, 400 if wire.protocol(service) == "json" else 403)
