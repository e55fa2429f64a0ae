"""The security groups of leases, one for each network."""

from collections.abc import Mapping

from gridmill.clouds.aws.security_groups import SecurityGroups
from gridmill.ports.cloud import LaunchRequest

REQUEST = LaunchRequest(
    token="lease-7.1",
    lease="lease-7",
    owner="grid-a",
    region="us-east-1",
    zone="us-east-1b",
    instance_type="g5.xlarge",
    image="",
    spot=False,
    disk_bytes=100 * 10**9,
    ssh_public_key="ssh-ed25519 AAAA",
    user_data="",
    max_seconds=3600.0,
    tags={},
)


class Ec2:
    """An EC2 that makes groups."""

    def __init__(self) -> None:
        self.networks: list[str] = []

    def call_for_launch(self, region: str, action: str, **arguments: object) -> Mapping[str, object]:
        if action != "CreateSecurityGroup":
            return {}
        self.networks.append(str(arguments.get("VpcId", "")))
        return {"GroupId": f"sg-{len(self.networks)}"}


def test_a_lease_has_a_group_in_each_network() -> None:
    ec2 = Ec2()
    groups = SecurityGroups(ec2)  # type: ignore[arg-type]
    assert [groups.group(REQUEST, vpc) for vpc in ("vpc-1", "vpc-2", "vpc-1")] == ["sg-1", "sg-2", "sg-1"]
    assert ec2.networks == ["vpc-1", "vpc-2"]
    groups.forget(REQUEST)
    assert [groups.group(REQUEST, vpc) for vpc in ("vpc-1", "vpc-2")] == ["sg-3", "sg-4"]
