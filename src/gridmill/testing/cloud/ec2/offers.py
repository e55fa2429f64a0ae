"""Regions, zones, instance types and spot prices of the simulated EC2.

Sources: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceTypes.html,
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceTypeOfferings.html and
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gridmill.testing.cloud.ec2 import catalogue
from gridmill.testing.cloud.ec2.call import Call
from gridmill.testing.cloud.ec2.catalogue import InstanceType
from gridmill.testing.cloud.ec2.filters import page, select
from gridmill.testing.cloud.ec2.refusal import RefusalError, invalid, not_simulated
from gridmill.testing.cloud.ec2.wire import moment

_SPOT_PRICE_EVERY_SECONDS = 3600.0


def describe_regions(call: Call) -> dict[str, Any]:
    """Lists the regions of the account."""
    call.allow_only("RegionNames", "Filters", "AllRegions")
    names = call.get("RegionNames", ())
    for name in names:
        if name not in catalogue.REGIONS:
            raise invalid(name, "RegionName")
    faults = call.world.faults
    known = [
        one
        for one in catalogue.REGIONS
        if one not in faults.regions_gone and one in (names or catalogue.REGIONS)
    ]

    def attributes(region: str) -> Mapping[str, Sequence[str]]:
        return {
            "region-name": [region],
            "endpoint": [f"ec2.{region}.amazonaws.com"],
            "opt-in-status": ["opt-in-not-required"],
        }

    found = select(known, call.get("Filters", ()), attributes, lambda _: ())
    return {
        "Regions": [
            {
                "RegionName": one,
                "Endpoint": f"ec2.{one}.amazonaws.com",
                "OptInStatus": "opt-in-not-required",
            }
            for one in found
        ]
    }


def describe_zones(call: Call) -> dict[str, Any]:
    """Lists the zones of the region."""
    call.allow_only("ZoneNames", "ZoneIds", "Filters", "AllAvailabilityZones")
    known = catalogue.zones(call.region.name)
    names = call.get("ZoneNames", ())
    for name in names:
        if name not in known:
            raise RefusalError("InvalidParameterValue", f"Invalid availability zone: [{name}]")

    def attributes(zone: str) -> Mapping[str, Sequence[str]]:
        return {
            "region-name": [call.region.name],
            "state": ["available"],
            "zone-name": [zone],
            "zone-type": ["availability-zone"],
            "opt-in-status": ["opt-in-not-required"],
        }

    found = select(names or known, call.get("Filters", ()), attributes, lambda _: ())
    return {
        "AvailabilityZones": [
            {
                "ZoneName": one,
                "ZoneId": f"{call.region.name}-az{known.index(one) + 1}",
                "ZoneType": "availability-zone",
                "RegionName": call.region.name,
                "State": "available",
                "OptInStatus": "opt-in-not-required",
            }
            for one in found
        ]
    }


def _kinds(call: Call) -> list[InstanceType]:
    names = call.get("InstanceTypes", ())
    for name in names:
        kind = catalogue.INSTANCE_TYPES.get(name)
        if kind is None or not catalogue.offered(kind, call.region.name):
            raise RefusalError(
                "InvalidInstanceType", f"The following supplied instance types do not exist: [{name[:60]}]"
            )
    offered = [one for one in catalogue.INSTANCE_TYPES.values() if catalogue.offered(one, call.region.name)]
    return [one for one in offered if not names or one.name in names]


def describe_instance_types(call: Call) -> dict[str, Any]:
    """Lists the instance types that the region offers."""
    call.allow_only("InstanceTypes", "Filters", "MaxResults", "NextToken")
    names = call.get("InstanceTypes", ())
    found = select(_kinds(call), call.get("Filters", ()), _attributes, lambda _: ())
    listed, token = page(found, call.parameters, fewest=5, most=100, ids=names)
    return {"InstanceTypes": [_shape(one) for one in listed], "NextToken": token}


def _attributes(kind: InstanceType) -> Mapping[str, Sequence[str]]:
    return {
        "bare-metal": ["false"],
        "current-generation": ["true"],
        "instance-type": [kind.name],
        "memory-info.size-in-mib": [str(kind.memory_mib)],
        "processor-info.supported-architecture": [kind.architecture],
        "supported-usage-class": ["on-demand", "spot"],
        "vcpu-info.default-vcpus": [str(kind.vcpus)],
        "supported-virtualization-type": ["hvm"],
    }


def _shape(kind: InstanceType) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "InstanceType": kind.name,
        "CurrentGeneration": True,
        "FreeTierEligible": kind.name == "t3.micro",
        "SupportedUsageClasses": ["on-demand", "spot"],
        "SupportedRootDeviceTypes": ["ebs"],
        "SupportedVirtualizationTypes": ["hvm"],
        "BareMetal": False,
        "Hypervisor": "nitro",
        "ProcessorInfo": {"SupportedArchitectures": [kind.architecture]},
        "VCpuInfo": {"DefaultVCpus": kind.vcpus, "DefaultCores": kind.vcpus // 2, "DefaultThreadsPerCore": 2},
        "MemoryInfo": {"SizeInMiB": kind.memory_mib},
        "InstanceStorageSupported": False,
    }
    if kind.gpus:
        gpu = {
            "Name": kind.gpu,
            "Manufacturer": kind.gpu_maker,
            "Count": kind.gpus,
            "MemoryInfo": {"SizeInMiB": kind.gpu_mib},
        }
        shape["GpuInfo"] = {"Gpus": [gpu], "TotalGpuMemoryInMiB": kind.gpus * kind.gpu_mib}
    return shape


def describe_offerings(call: Call) -> dict[str, Any]:
    """Lists where the region offers instance types: in the region or in its zones."""
    call.allow_only("LocationType", "Filters", "MaxResults", "NextToken")
    by = call.get("LocationType", "region")
    if by not in ("region", "availability-zone"):
        raise not_simulated(f"the location type {by}")
    offers = [
        (kind, place)
        for kind in catalogue.INSTANCE_TYPES.values()
        for place in _places(kind, call.region.name, by)
    ]

    def attributes(offer: tuple[str, str]) -> Mapping[str, Sequence[str]]:
        return {"instance-type": [offer[0]], "location": [offer[1]]}

    named = [(kind.name, place) for kind, place in offers]
    found = select(named, call.get("Filters", ()), attributes, lambda _: ())
    listed, token = page(found, call.parameters, fewest=5, most=1000)
    return {
        "InstanceTypeOfferings": [
            {"InstanceType": name, "LocationType": by, "Location": place} for name, place in listed
        ],
        "NextToken": token,
    }


def _places(kind: InstanceType, region: str, by: str) -> Sequence[str]:
    zones = catalogue.offered(kind, region)
    return zones if by == "availability-zone" else [region] if zones else []


def describe_spot_prices(call: Call) -> dict[str, Any]:
    """Lists spot prices. The newest price of a type and a zone comes first; the price has not changed in the
    hour before."""
    call.allow_only(
        "InstanceTypes",
        "AvailabilityZone",
        "ProductDescriptions",
        "Filters",
        "StartTime",
        "EndTime",
        "MaxResults",
        "NextToken",
    )
    names, zone = call.get("InstanceTypes", ()), call.get("AvailabilityZone")
    wanted = call.get("ProductDescriptions", ("Linux/UNIX",))
    rows = [
        (kind, place)
        for kind in catalogue.INSTANCE_TYPES.values()
        for place in catalogue.offered(kind, call.region.name)
        if (not names or kind.name in names)
        and zone in (None, place)
        and {"Linux/UNIX", "Linux/UNIX (Amazon VPC)"} & set(wanted)
    ]

    def attributes(row: tuple[InstanceType, str]) -> Mapping[str, Sequence[str]]:
        return {
            "instance-type": [row[0].name],
            "availability-zone": [row[1]],
            "product-description": ["Linux/UNIX"],
        }

    found = select(rows, call.get("Filters", ()), attributes, lambda _: ())
    listed, token = page(found, call.parameters, fewest=1, most=1000)
    at = moment(call.now - call.now % _SPOT_PRICE_EVERY_SECONDS)
    return {
        "SpotPriceHistory": [
            {
                "InstanceType": kind.name,
                "AvailabilityZone": place,
                "ProductDescription": "Linux/UNIX",
                "SpotPrice": f"{catalogue.hourly_micros(kind, call.region.name, spot=True) / 1_000_000:.6f}",
                "Timestamp": at,
            }
            for kind, place in listed
        ],
        "NextToken": token or "",
    }
