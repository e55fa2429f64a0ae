"""The regions, instance types, images, prices and quotas of the simulated EC2.

The numbers of processors, GPUs and bytes are those of
https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html and
https://docs.aws.amazon.com/ec2/latest/instancetypes/gp.html. The prices were the Linux prices of N. Virginia
at some time, and are only examples.
"""

from enum import StrEnum

from gridmill.domain.frozen import dataclass

ACCOUNT = "123456789012"
"""The account of the simulation: the example account of the documentation of AWS."""

REGIONS = {
    "us-east-1": ("US East (N. Virginia)", "abcd", 100),
    "us-east-2": ("US East (Ohio)", "abc", 100),
    "us-west-2": ("US West (Oregon)", "abcd", 100),
    "eu-west-1": ("EU (Ireland)", "abc", 112),
    "eu-central-1": ("EU (Frankfurt)", "abc", 125),
}
"""For each region: its name in the price list, the letters of its zones, and its prices in percent of
those of us-east-1."""

DISK_MICROS_PER_GB_MONTH = 80_000
"""The price of a gp3 volume. Source: https://aws.amazon.com/ebs/pricing/"""
SNAPSHOT_MICROS_PER_GB_MONTH = 50_000
"""The price of the data of a snapshot. Source: https://aws.amazon.com/ebs/pricing/"""
ADDRESS_MICROS_PER_HOUR = 5_000
"""The price of a public IPv4 address. Source: https://aws.amazon.com/vpc/pricing/"""
EGRESS_MICROS_PER_GB = 90_000
"""The price of traffic to the internet. Source: https://aws.amazon.com/ec2/pricing/on-demand/"""


class Family(StrEnum):
    """The groups of instance types that have a common quota.

    Source: https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
    """

    STANDARD = "Standard (A, C, D, H, I, M, R, T, Z)"
    G = "G and VT"
    P = "P"
    P5 = "P5"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A quota of Service Quotas in virtual processors."""

    code: str
    name: str
    families: tuple[Family, ...]
    spot: bool
    default: int


QUOTAS = (
    Quota(
        code="L-1216C47A",
        name="Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
        families=(Family.STANDARD,),
        spot=False,
        default=640,
    ),
    Quota(
        code="L-DB2E81BA",
        name="Running On-Demand G and VT instances",
        families=(Family.G,),
        spot=False,
        default=640,
    ),
    Quota(
        code="L-417A185B",
        name="Running On-Demand P instances",
        families=(Family.P, Family.P5),
        spot=False,
        default=640,
    ),
    Quota(
        code="L-34B43A08",
        name="All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
        families=(Family.STANDARD,),
        spot=True,
        default=640,
    ),
    Quota(
        code="L-3819A6DF",
        name="All G and VT Spot Instance Requests",
        families=(Family.G,),
        spot=True,
        default=640,
    ),
    Quota(
        code="L-7212CCBC",
        name="All P4, P3 and P2 Spot Instance Requests",
        families=(Family.P,),
        spot=True,
        default=640,
    ),
    Quota(
        code="L-C4BD4855",
        name="All P5 Spot Instance Requests",
        families=(Family.P5,),
        spot=True,
        default=640,
    ),
)
"""A new account has lower quotas, often 0 for GPUs. `CloudFaults.quotas` lowers them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """An instance type. `gpus` is the number of GPUs, `gpu_mib` the memory of each GPU, `price_micros` and
    `spot_micros` are micro-USD per hour in us-east-1."""

    name: str
    vcpus: int
    memory_mib: int
    price_micros: int
    spot_micros: int
    family: Family = Family.STANDARD
    architecture: str = "x86_64"
    gpu: str = ""
    gpu_maker: str = "NVIDIA"
    gpus: int = 0
    gpu_mib: int = 0
    missing_in: tuple[str, ...] = ()
    """Regions and zones that do not offer the instance type."""


def _of(
    name: str, vcpus: int, gib: float, price: float, spot: float, *, missing_in: tuple[str, ...] = ()
) -> InstanceType:
    return InstanceType(
        name=name,
        vcpus=vcpus,
        memory_mib=int(gib * 1024),
        price_micros=round(price * 1_000_000),
        spot_micros=round(spot * 1_000_000),
        missing_in=missing_in,
    )


def _gpu(
    name: str,
    vcpus: int,
    gib: float,
    price: float,
    spot: float,
    gpu: tuple[str, int, int],
    *,
    family: Family = Family.G,
    maker: str = "NVIDIA",
    architecture: str = "x86_64",
    missing_in: tuple[str, ...] = (),
) -> InstanceType:
    return InstanceType(
        name=name,
        vcpus=vcpus,
        memory_mib=int(gib * 1024),
        price_micros=round(price * 1_000_000),
        spot_micros=round(spot * 1_000_000),
        family=family,
        architecture=architecture,
        gpu=gpu[0],
        gpus=gpu[1],
        gpu_mib=gpu[2],
        gpu_maker=maker,
        missing_in=missing_in,
    )


_OUTSIDE_US_EAST_1 = tuple(name for name in REGIONS if name != "us-east-1")

INSTANCE_TYPES = {
    one.name: one
    for one in (
        _of("t3.micro", 2, 1, 0.0104, 0.0031),
        _of("t3.small", 2, 2, 0.0208, 0.0062),
        _of("t3.medium", 2, 4, 0.0416, 0.0125),
        _of("m5.large", 2, 8, 0.096, 0.035),
        _of("m5.xlarge", 4, 16, 0.192, 0.07),
        _of("c5.xlarge", 4, 8, 0.17, 0.068),
        _of("c5.4xlarge", 16, 32, 0.68, 0.272),
        _of("r5.2xlarge", 8, 64, 0.504, 0.18),
        _gpu("g3s.xlarge", 4, 30.5, 0.75, 0.23, ("M60", 1, 8192), missing_in=("us-east-1d",)),
        _gpu("g3.4xlarge", 16, 122, 1.14, 0.35, ("M60", 1, 8192)),
        _gpu("g4dn.xlarge", 4, 16, 0.526, 0.2, ("T4", 1, 16384)),
        _gpu("g4dn.2xlarge", 8, 32, 0.752, 0.29, ("T4", 1, 16384)),
        _gpu("g4dn.12xlarge", 48, 192, 3.912, 1.4, ("T4", 4, 16384)),
        _gpu("g4ad.xlarge", 4, 16, 0.37853, 0.12, ("Radeon Pro V520", 1, 8192), maker="AMD"),
        _gpu("g5.xlarge", 4, 16, 1.006, 0.42, ("A10G", 1, 24576)),
        _gpu("g5.2xlarge", 8, 32, 1.212, 0.5, ("A10G", 1, 24576)),
        _gpu("g5.12xlarge", 48, 192, 5.672, 2.3, ("A10G", 4, 24576)),
        _gpu("g5g.xlarge", 4, 8, 0.42, 0.15, ("T4g", 1, 16384), architecture="arm64"),
        _gpu("g6.xlarge", 4, 16, 0.8048, 0.31, ("L4", 1, 24576), missing_in=("eu-west-1",)),
        _gpu("g6.12xlarge", 48, 192, 4.6016, 1.8, ("L4", 4, 24576), missing_in=("eu-west-1",)),
        _gpu(
            "g6e.xlarge",
            4,
            32,
            1.861,
            0.75,
            ("L40S", 1, 49152),
            missing_in=("eu-west-1", "eu-central-1", "us-east-1d"),
        ),
        _gpu(
            "p3.2xlarge", 8, 61, 3.06, 0.92, ("V100", 1, 16384), family=Family.P, missing_in=("us-east-1c",)
        ),
        _gpu("p3.8xlarge", 32, 244, 12.24, 3.67, ("V100", 4, 16384), family=Family.P),
        _gpu(
            "p4d.24xlarge",
            96,
            1152,
            32.7726,
            9.83,
            ("A100", 8, 40960),
            family=Family.P,
            missing_in=("eu-central-1", "us-east-1c"),
        ),
        _gpu(
            "p5.48xlarge",
            192,
            2048,
            98.32,
            39.3,
            ("H100", 8, 81920),
            family=Family.P5,
            missing_in=_OUTSIDE_US_EAST_1,
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A machine image. The same image has another id in each region."""

    name: str
    description: str
    owner: str
    owner_alias: str = ""
    architecture: str = "x86_64"
    root_gb: int = 8
    created: str = "2026-10-01T00:00:00.000Z"
    root_device: str = "/dev/sda1"


IMAGES = (
    Image(
        name="Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20261001",
        description="Supported EC2 instances: G4dn, G5, G6, Gr6, G6e, P4, P4de, P5, P5e, P5en. "
        "Release notes: https://docs.aws.amazon.com/dlami/latest/devguide/appendix-ami-release-notes.html",
        owner="898082745236",
        owner_alias="amazon",
        root_gb=75,
    ),
    Image(
        name="Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20260801",
        description="Supported EC2 instances: G4dn, G5, G6, Gr6, G6e, P4, P4de, P5, P5e, P5en.",
        owner="898082745236",
        owner_alias="amazon",
        root_gb=75,
        created="2026-08-01T00:00:00.000Z",
    ),
    Image(
        name="Deep Learning ARM64 Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20261001",
        description="Supported EC2 instances: G5g.",
        owner="898082745236",
        owner_alias="amazon",
        architecture="arm64",
        root_gb=75,
    ),
    Image(
        name="ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-20261001",
        description="Canonical, Ubuntu, 22.04 LTS, amd64 jammy image build on 2026-10-01",
        owner="099720109477",
    ),
    Image(
        name="ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-arm64-server-20261001",
        description="Canonical, Ubuntu, 22.04 LTS, arm64 jammy image build on 2026-10-01",
        owner="099720109477",
        architecture="arm64",
    ),
    Image(
        name="al2023-ami-2023.9.20261001.0-kernel-6.1-x86_64",
        description="Amazon Linux 2023 AMI 2023.9.20261001.0 x86_64 HVM kernel-6.1",
        owner="137112412989",
        owner_alias="amazon",
        root_device="/dev/xvda",
    ),
    Image(
        name="DCV-Windows-free-NVIDIA-gaming-22.04-20261001",
        description="NVIDIA Gaming PC driver 550 for G4dn, G5, G6 and G6e.",
        owner="679593333241",
        owner_alias="aws-marketplace",
        root_gb=30,
    ),
)


def zones(region: str) -> tuple[str, ...]:
    """Returns the names of the zones of a region."""
    return tuple(f"{region}{letter}" for letter in REGIONS[region][1])


def offered(kind: InstanceType, region: str) -> tuple[str, ...]:
    """Returns the zones of a region that offer an instance type."""
    if region in kind.missing_in:
        return ()
    return tuple(zone for zone in zones(region) if zone not in kind.missing_in)


def hourly_micros(kind: InstanceType, region: str, *, spot: bool) -> int:
    """Returns the price of an instance type in a region in micro-USD per hour."""
    base = kind.spot_micros if spot else kind.price_micros
    return base * REGIONS[region][2] // 100


def quota_of(family: Family, *, spot: bool) -> Quota:
    """Returns the quota that counts instances of a family."""
    return next(one for one in QUOTAS if family in one.families and one.spot == spot)
