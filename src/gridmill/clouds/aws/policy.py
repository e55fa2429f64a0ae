"""The rights that Gridmill needs at AWS, as one table, and the IAM policy with exactly these rights.

Rights to end or delete something are limited to what has Gridmill's tags. AWS decides about such a right only
for something that exists. Therefore the policy also grants these rights for ids that never exist, so that a
dry run shows whether the account has the policy.
"""

import json
from collections.abc import Mapping
from dataclasses import field

from gridmill.clouds.aws.launch import LEASE, OWNER
from gridmill.domain.frozen import dataclass

_NOTHING = "00000000000000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A request that shows whether the credentials have a right. `resource` is the kind and the id of the
    thing that is ended or deleted, if the right is limited to things with Gridmill's tags. `region` is the
    region of the server (empty: any region)."""

    service: str
    action: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    resource: str = ""
    region: str = ""

    @property
    def right(self) -> str:
        """The action as IAM names it."""
        return f"{_PREFIXES.get(self.service, self.service)}:{self.action}"


_PREFIXES = {"service-quotas": "servicequotas"}
"""The name of a service in policies, if it differs from the name of its client."""


def _dry(action: str, resource: str = "", **arguments: object) -> Probe:
    return Probe(service="ec2", action=action, arguments={"DryRun": True, **arguments}, resource=resource)


_TAGS = [{"ResourceType": "security-group", "Tags": [{"Key": OWNER, "Value": "check"}]}]
PROBES: tuple[Probe, ...] = (
    _dry("DescribeRegions"),
    _dry("DescribeInstances"),
    _dry("DescribeVolumes"),
    _dry("DescribeAddresses"),
    _dry("DescribeSecurityGroups"),
    _dry("DescribeKeyPairs"),
    _dry("DescribeSubnets"),
    _dry("DescribeImages"),
    _dry("DescribeSnapshots"),
    _dry("DescribeVpcs"),
    _dry("DescribeVpcAttribute", VpcId=f"vpc-{_NOTHING}", Attribute="enableDnsSupport"),
    _dry("DescribeInstanceTypes"),
    _dry("DescribeInstanceTypeOfferings"),
    _dry("DescribeSpotPriceHistory"),
    _dry(
        "RunInstances",
        ImageId=f"ami-{_NOTHING}",
        InstanceType="t3.micro",
        MinCount=1,
        MaxCount=1,
    ),
    _dry("CreateSecurityGroup", GroupName="gridmill-check", Description="check", TagSpecifications=_TAGS),
    _dry(
        "AuthorizeSecurityGroupIngress",
        f"security-group/sg-{_NOTHING}",
        GroupId=f"sg-{_NOTHING}",
        IpPermissions=[
            {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "192.0.2.1/32"}]}
        ],
    ),
    _dry("TerminateInstances", f"instance/i-{_NOTHING}", InstanceIds=[f"i-{_NOTHING}"]),
    _dry("DeleteSecurityGroup", f"security-group/sg-{_NOTHING}", GroupId=f"sg-{_NOTHING}"),
    _dry("DeleteVolume", f"volume/vol-{_NOTHING}", VolumeId=f"vol-{_NOTHING}"),
    _dry("ReleaseAddress", f"elastic-ip/eipalloc-{_NOTHING}", AllocationId=f"eipalloc-{_NOTHING}"),
    _dry("DeleteKeyPair", f"key-pair/key-{_NOTHING}", KeyPairId=f"key-{_NOTHING}"),
    _dry("DeregisterImage", f"image/ami-{_NOTHING}", ImageId=f"ami-{_NOTHING}"),
    _dry("DeleteSnapshot", f"snapshot/snap-{_NOTHING}", SnapshotId=f"snap-{_NOTHING}"),
    _dry(
        "DeleteTags",
        f"image/ami-{_NOTHING}",
        Resources=[f"ami-{_NOTHING}"],
        Tags=[{"Key": LEASE}],
    ),
    _dry("CreateImage", f"instance/i-{_NOTHING}", InstanceId=f"i-{_NOTHING}", Name="gridmill-check"),
    Probe(service="sts", action="GetCallerIdentity"),
    Probe(
        service="service-quotas",
        action="ListServiceQuotas",
        arguments={"ServiceCode": "ec2", "MaxResults": 1},
    ),
    Probe(
        service="pricing",
        action="GetProducts",
        arguments={"ServiceCode": "AmazonEC2", "MaxResults": 1},
        region="us-east-1",
    ),
)
"""One request for each right that Gridmill needs."""

INDIRECT = ("ec2:CreateTags",)
"""Rights that other requests need: CreateImage, CreateSecurityGroup and RunInstances set tags."""


_TAGGING = ("CreateImage", "CreateSecurityGroup", "RunInstances")
_CREATE_IMAGE = "ec2:CreateImage"
"""AWS decides about this action also for the image and the snapshots that it creates, which have no tags
yet."""


def policy() -> dict[str, object]:
    """Return the IAM policy with exactly the rights that Gridmill needs."""
    free = sorted({one.right for one in PROBES if not one.resource})
    tagged = sorted({one.right for one in PROBES if one.resource})
    probed = sorted({f"arn:aws:ec2:*:*:{one.resource}" for one in PROBES if one.resource})
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Sid": "Rent", "Effect": "Allow", "Action": free, "Resource": "*"},
            {
                "Sid": "TagWhatIsCreated",
                "Effect": "Allow",
                "Action": list(INDIRECT),
                "Resource": "*",
                "Condition": {"StringEquals": {"ec2:CreateAction": list(_TAGGING)}},
            },
            {
                "Sid": "MakeImages",
                "Effect": "Allow",
                "Action": [_CREATE_IMAGE],
                "Resource": ["arn:aws:ec2:*::image/*", "arn:aws:ec2:*::snapshot/*"],
            },
            {
                "Sid": "ReturnOnlyWhatHasGridmillsTag",
                "Effect": "Allow",
                "Action": tagged,
                "Resource": "*",
                "Condition": {"Null": {f"aws:ResourceTag/{OWNER}": "false"}},
            },
            {"Sid": "CheckTheRights", "Effect": "Allow", "Action": tagged, "Resource": probed},
        ],
    }


def policy_text() -> str:
    """Return the policy as JSON."""
    return json.dumps(policy(), indent=2)
