"""The security groups of leases. A lease has one group in each region and network, which permits SSH to its
machines. The group has the tags of the lease and is deleted at the end of the lease."""

import threading

from gridmill.clouds.aws.launch import LEASE, ssh_permission, tags_of
from gridmill.clouds.aws.requests import AwsRequests
from gridmill.errors import ConflictError, NotFoundError, UnavailableError
from gridmill.ports.cloud import LaunchRequest

_MOST_REMEMBERED = 1000
_NAME_LENGTH = 255


class SecurityGroups:
    """Creates the security groups of leases. `networks` are the networks from which SSH is permitted; if
    they are empty, each request has them."""

    def __init__(self, requests: AwsRequests, networks: tuple[str, ...] = ()) -> None:
        self._requests = requests
        self._networks = networks
        self._groups: dict[tuple[str, str, str], str] = {}
        self._lock = threading.Lock()

    def group(self, request: LaunchRequest, vpc: str) -> str:
        """Return the id of the security group of the lease in the network `vpc`, or in the default network of
        the region (`vpc` is empty) the name of the group. The group is created if it does not exist. The
        method can be repeated.

        In the default network, requests can name a group, so that a new group is used before it is in the
        lists of the provider.
        """
        key = (request.region, request.lease, vpc)
        with self._lock:
            known = self._groups.get(key)
        if known is not None:
            return known
        group = self._created(request, vpc)
        self._permit_ssh(request, group)
        with self._lock:
            if len(self._groups) >= _MOST_REMEMBERED:
                self._groups.clear()
            self._groups[key] = group
        return group

    def forget(self, request: LaunchRequest) -> None:
        """Forget the ids of the groups of a lease, so that the next request asks the provider for them."""
        with self._lock:
            for key in [one for one in self._groups if one[:2] == (request.region, request.lease)]:
                del self._groups[key]

    def _created(self, request: LaunchRequest, vpc: str) -> str:
        name = f"gridmill-{request.owner}-{request.lease}"[:_NAME_LENGTH]
        tags = [{"ResourceType": "security-group", "Tags": tags_of(request, is_shared=True)}]
        network = {"VpcId": vpc} if vpc else {}
        try:
            answer = self._requests.call_for_launch(
                request.region,
                "CreateSecurityGroup",
                GroupName=name,
                Description=f"SSH to the machines of lease {request.lease}"[:_NAME_LENGTH],
                TagSpecifications=tags,
                **network,
            )
        except ConflictError:
            return self._existing(request, name, vpc) if vpc else name
        return str(answer["GroupId"]) if vpc else name

    def _existing(self, request: LaunchRequest, name: str, vpc: str) -> str:
        filters = [
            {"Name": "vpc-id", "Values": [vpc]},
            {"Name": "group-name", "Values": [name]},
            {"Name": f"tag:{LEASE}", "Values": [request.lease]},
        ]
        groups = self._requests.pages(
            "ec2", request.region, "DescribeSecurityGroups", "SecurityGroups", Filters=filters
        )
        for group in groups:
            return str(group["GroupId"])
        raise _not_visible(name, request.region)

    def _permit_ssh(self, request: LaunchRequest, group: str) -> None:
        permission = ssh_permission(self._networks or request.allowed_addresses)
        try:
            self._requests.call_for_launch(
                request.region,
                "AuthorizeSecurityGroupIngress",
                IpPermissions=permission,
                **{"GroupId" if group.startswith("sg-") else "GroupName": group},
            )
        except ConflictError:
            return  # an earlier call has permitted SSH
        except NotFoundError as error:
            raise _not_visible(group, request.region) from error


def _not_visible(group: str, region: str) -> UnavailableError:
    return UnavailableError(
        f"the security group {group} exists, but AWS does not list it yet", place=f"aws {region}"
    )
