"""Networks, subnets and public addresses of the simulated EC2. Each region has a default VPC with a default
subnet in each zone.

Source: https://docs.aws.amazon.com/vpc/latest/userguide/default-vpc.html
"""

import hashlib
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.testing.cloud.ec2 import catalogue
from gridmill.testing.cloud.ec2.call import Call
from gridmill.testing.cloud.ec2.filters import page, select, tag_set
from gridmill.testing.cloud.ec2.records import Address, State
from gridmill.testing.cloud.ec2.refusal import RefusalError

_RESERVED_ADDRESSES = 4
"""AWS reserves the first four addresses of a subnet.

Source: https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet:
    """The default subnet of a zone."""

    id: str
    zone: str
    vpc_id: str
    network: IPv4Network


def _subnets(call: Call) -> list[Subnet]:
    networks = list(_network_of(call).subnets(prefixlen_diff=2))
    return [
        Subnet(
            id=f"subnet-{hashlib.sha256(zone.encode()).hexdigest()[:17]}",
            zone=zone,
            vpc_id=call.region.vpc_id,
            network=networks[index],
        )
        for index, zone in enumerate(catalogue.zones(call.region.name))
    ]


def _network_of(call: Call) -> IPv4Network:
    """Returns the addresses of a region, which no other region has, because all share one network."""
    index = list(catalogue.REGIONS).index(call.region.name)
    return list(call.world.host.private_network.subnets(prefixlen_diff=3))[index]


def subnet_named(call: Call, subnet_id: str) -> Subnet:
    """Returns the subnet with an id. Raises RefusalError."""
    for one in _subnets(call):
        if one.id == subnet_id:
            return one
    raise RefusalError("InvalidSubnetID.NotFound", f"The subnet ID '{subnet_id[:60]}' does not exist")


def subnet_of(call: Call, zone: str) -> Subnet:
    """Returns the default subnet of a zone."""
    return next(one for one in _subnets(call) if one.zone == zone)


def new_addresses(call: Call, subnet: Subnet) -> tuple[str, str]:
    """Returns a free private address of a subnet, and a free public address. Raises RefusalError if the
    subnet is full."""
    living = [one for one in call.world.instances() if one.state != State.TERMINATED]
    private = {one.address for one in living}
    first = int(subnet.network.network_address)
    hosts = range(first + _RESERVED_ADDRESSES, first + subnet.network.num_addresses - 1)
    free = next((one for one in hosts if _text(one) not in private), None)
    if free is None:
        raise RefusalError(
            "InsufficientFreeAddressesInSubnet", f"The subnet {subnet.id} has no free addresses."
        )
    return _text(free), _free_public(call)


def _free_public(call: Call) -> str:
    taken = {one.public_address for one in call.world.instances() if one.state != State.TERMINATED}
    taken |= {one.address for region in call.world.regions.values() for one in region.addresses.all()}
    network = call.world.host.public_network
    first = int(network.network_address)
    return next(
        _text(one) for one in range(first + 1, first + network.num_addresses - 1) if _text(one) not in taken
    )


def _text(number: int) -> str:
    return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))


def describe_vpcs(call: Call) -> dict[str, Any]:
    """Lists the default VPC of the region."""
    call.allow_only("VpcIds", "Filters", "MaxResults", "NextToken")
    for one in call.get("VpcIds", ()):
        if one != call.region.vpc_id:
            raise RefusalError("InvalidVpcID.NotFound", f"The vpc ID '{one[:60]}' does not exist")
    network = str(_network_of(call))

    def attributes(vpc_id: str) -> Mapping[str, Sequence[str]]:
        default = ["true"]
        return {
            "vpc-id": [vpc_id],
            "is-default": default,
            "isDefault": default,
            "state": ["available"],
            "cidr": [network],
        }

    found = select([call.region.vpc_id], call.get("Filters", ()), attributes, lambda _: ())
    return {
        "Vpcs": [
            {
                "VpcId": one,
                "CidrBlock": network,
                "IsDefault": True,
                "State": "available",
                "OwnerId": catalogue.ACCOUNT,
                "InstanceTenancy": "default",
            }
            for one in found
        ]
    }


def describe_vpc_attribute(call: Call) -> dict[str, Any]:
    """Returns whether the default VPC uses the name server of AWS. Source:
    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeVpcAttribute.html"""
    call.allow_only("VpcId", "Attribute")
    if call.get("VpcId") != call.region.vpc_id:
        raise RefusalError(
            "InvalidVpcID.NotFound", f"The vpc ID '{call.get('VpcId', '')[:60]}' does not exist"
        )
    if call.get("Attribute") != "enableDnsSupport":
        raise RefusalError("InvalidParameterValue", "The simulation has only the attribute enableDnsSupport.")
    value = {"Value": call.world.faults.dns_support}
    return {"VpcId": call.region.vpc_id, "EnableDnsSupport": value}


def describe_subnets(call: Call) -> dict[str, Any]:
    """Lists the default subnets of the region."""
    call.allow_only("SubnetIds", "Filters", "MaxResults", "NextToken")
    ids = call.get("SubnetIds", ())
    subnets = [subnet_named(call, one) for one in ids] or _subnets(call)
    found = select(subnets, call.get("Filters", ()), _attributes, lambda _: ())
    listed, token = page(found, call.parameters, fewest=5, most=1000, ids=ids)
    return {"Subnets": [_shape(one, call) for one in listed], "NextToken": token}


def _attributes(subnet: Subnet) -> Mapping[str, Sequence[str]]:
    return {
        "availability-zone": [subnet.zone],
        "availabilityZone": [subnet.zone],
        "default-for-az": ["true"],
        "defaultForAz": ["true"],
        "state": ["available"],
        "subnet-id": [subnet.id],
        "vpc-id": [subnet.vpc_id],
        "map-public-ip-on-launch": ["true"],
    }


def _shape(subnet: Subnet, call: Call) -> dict[str, Any]:
    used = sum(
        one.subnet_id == subnet.id and one.state != State.TERMINATED for one in call.region.instances.all()
    )
    return {
        "SubnetId": subnet.id,
        "VpcId": subnet.vpc_id,
        "AvailabilityZone": subnet.zone,
        "CidrBlock": str(subnet.network),
        "DefaultForAz": True,
        "MapPublicIpOnLaunch": True,
        "State": "available",
        "OwnerId": catalogue.ACCOUNT,
        "AvailableIpAddressCount": subnet.network.num_addresses - _RESERVED_ADDRESSES - 1 - used,
    }


def describe_route_tables(call: Call) -> dict[str, Any]:
    """Lists the main route table of the default VPC, which has a route to the internet gateway.

    Source: https://docs.aws.amazon.com/vpc/latest/userguide/default-vpc-components.html
    """
    call.allow_only("RouteTableIds", "Filters", "MaxResults", "NextToken")
    vpc_id = call.region.vpc_id
    table = f"rtb-{vpc_id.removeprefix('vpc-')}"
    gateway = f"igw-{vpc_id.removeprefix('vpc-')}"
    for one in call.get("RouteTableIds", ()):
        if one != table:
            raise RefusalError(
                "InvalidRouteTableID.NotFound", f"The routeTable ID '{one[:60]}' does not exist"
            )

    def attributes(one: str) -> Mapping[str, Sequence[str]]:
        return {
            "association.main": ["true"],
            "route-table-id": [one],
            "route.gateway-id": ["local", gateway],
            "vpc-id": [vpc_id],
        }

    found = select([table], call.get("Filters", ()), attributes, lambda _: ())
    association = {
        "Main": True,
        "RouteTableAssociationId": f"rtbassoc-{vpc_id.removeprefix('vpc-')}",
        "RouteTableId": table,
        "AssociationState": {"State": "associated"},
    }
    routes = [
        _route(str(_network_of(call)), "local", "CreateRouteTable"),
        _route("0.0.0.0/0", gateway, "CreateRoute"),
    ]
    shape = {
        "RouteTableId": table,
        "VpcId": vpc_id,
        "OwnerId": catalogue.ACCOUNT,
        "Associations": [association],
        "Routes": routes,
    }
    return {"RouteTables": [shape for _ in found]}


def _route(network: str, gateway: str, origin: str) -> dict[str, str]:
    return {"DestinationCidrBlock": network, "GatewayId": gateway, "Origin": origin, "State": "active"}


def allocate_address(call: Call) -> dict[str, Any]:
    """Allocates an Elastic IP address, which is charged until it is released."""
    call.allow_only("Domain", "TagSpecifications")
    from_tags = [
        each for each in call.get("TagSpecifications", ()) if each.get("ResourceType") == "elastic-ip"
    ]
    tags = tuple((tag["Key"], tag.get("Value", "")) for each in from_tags for tag in each.get("Tags", ()))
    address = Address(
        allocation_id=call.world.new_id("eipalloc"),
        address=_free_public(call),
        allocated_at=call.now,
        tags=tags,
    )
    call.region.addresses.put(address.allocation_id, address, call.now)
    return {"PublicIp": address.address, "AllocationId": address.allocation_id, "Domain": "vpc"}


def describe_addresses(call: Call) -> dict[str, Any]:
    """Lists the Elastic IP addresses of the region."""
    call.allow_only("AllocationIds", "Filters", "PublicIps")
    ids = call.get("AllocationIds", ())
    known = {one.allocation_id: one for one in call.region.addresses.all(call.as_of)}
    for one in ids:
        if one not in known:
            raise _no_address(one)
    chosen = [known[one] for one in ids] or list(known.values())

    def attributes(address: Address) -> Mapping[str, Sequence[str]]:
        return {"allocation-id": [address.allocation_id], "public-ip": [address.address], "domain": ["vpc"]}

    found = select(chosen, call.get("Filters", ()), attributes, lambda one: one.tags)
    return {
        "Addresses": [
            {
                "AllocationId": one.allocation_id,
                "PublicIp": one.address,
                "Domain": "vpc",
                "Tags": tag_set(one.tags),
            }
            for one in found
        ]
    }


def release_address(call: Call) -> dict[str, Any]:
    """Releases an Elastic IP address."""
    call.allow_only("AllocationId", "PublicIp")
    wanted = call.get("AllocationId") or call.get("PublicIp", "")
    for one in call.region.addresses.all():
        if wanted in (one.allocation_id, one.address):
            call.region.addresses.put(one.allocation_id, None, call.now)
            call.world.released_addresses.append((one, call.now))
            return {}
    raise _no_address(wanted)


def _no_address(allocation_id: str) -> RefusalError:
    return RefusalError(
        "InvalidAllocationID.NotFound", f"The allocation ID '{allocation_id[:60]}' does not exist"
    )
