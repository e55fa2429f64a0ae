"""Security groups and key pairs of the simulated EC2.

Sources: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateSecurityGroup.html and
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ImportKeyPair.html
"""

import base64
import binascii
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_network
from typing import Any

from gridmill.domain.frozen import replace
from gridmill.testing.cloud.ec2 import catalogue
from gridmill.testing.cloud.ec2.call import Call
from gridmill.testing.cloud.ec2.filters import page, select, tag_set, tags_for
from gridmill.testing.cloud.ec2.records import KeyPair, Rule, SecurityGroup, State
from gridmill.testing.cloud.ec2.refusal import RefusalError, invalid, missing, not_simulated
from gridmill.testing.cloud.ec2.wire import moment

_LONGEST_NAME = 255


def create_security_group(call: Call) -> dict[str, Any]:
    """Creates a security group. Its name is unique in a VPC."""
    call.allow_only("GroupName", "Description", "VpcId", "TagSpecifications")
    name, vpc_id = call.get("GroupName"), call.get("VpcId", call.region.vpc_id)
    if vpc_id != call.region.vpc_id:
        raise RefusalError("InvalidVpcID.NotFound", f"The vpc ID '{vpc_id[:60]}' does not exist")
    if not 1 <= len(name) <= _LONGEST_NAME or name.startswith("sg-"):
        raise invalid(name[:60], "GroupName")
    if any(one.name == name for one in call.region.groups.all()):
        raise RefusalError(
            "InvalidGroup.Duplicate", f"The security group '{name}' already exists for VPC '{vpc_id}'"
        )
    group = SecurityGroup(
        id=call.world.new_id("sg"),
        name=name,
        description=call.get("Description"),
        vpc_id=vpc_id,
        visible_from=call.now + call.world.faults.invisible(),
        tags=tags_for("security-group", call.get("TagSpecifications", ()), ("security-group",)),
    )
    call.region.groups.put(group.id, group, call.now)
    return {"GroupId": group.id, "Tags": tag_set(group.tags)}


def describe_security_groups(call: Call) -> dict[str, Any]:
    """Lists security groups by id, name or filter."""
    call.allow_only("GroupIds", "GroupNames", "Filters", "MaxResults", "NextToken")
    wanted = [*call.get("GroupIds", ()), *call.get("GroupNames", ())]
    groups = [one for one in call.region.groups.all(call.as_of) if call.visible(one)]
    named = {one.id: one for one in groups} | {one.name: one for one in groups}
    for each in wanted:
        if each not in named:
            raise _no_group(each)
    chosen = [named[each] for each in wanted] or groups
    found = select(chosen, call.get("Filters", ()), _group_attributes, lambda one: one.tags)
    listed, token = page(found, call.parameters, fewest=5, most=1000, ids=wanted)
    return {"SecurityGroups": [_group_shape(one) for one in listed], "NextToken": token}


def _group_attributes(group: SecurityGroup) -> Mapping[str, Sequence[str]]:
    return {
        "description": [group.description],
        "group-id": [group.id],
        "group-name": [group.name],
        "owner-id": [catalogue.ACCOUNT],
        "vpc-id": [group.vpc_id],
    }


def _group_shape(group: SecurityGroup) -> dict[str, Any]:
    return {
        "GroupId": group.id,
        "GroupName": group.name,
        "Description": group.description,
        "VpcId": group.vpc_id,
        "OwnerId": catalogue.ACCOUNT,
        "IpPermissions": [_rule_shape(one) for one in group.rules],
        "IpPermissionsEgress": [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}],
        "Tags": tag_set(group.tags),
    }


def _rule_shape(rule: Rule) -> dict[str, Any]:
    shape: dict[str, Any] = {"IpProtocol": rule.protocol}
    if rule.first_port is not None:
        shape |= {"FromPort": rule.first_port, "ToPort": rule.last_port}
    if rule.source_group:
        pair = {
            "GroupId": rule.source_group,
            "UserId": catalogue.ACCOUNT,
            "Description": rule.description or None,
        }
        return shape | {"UserIdGroupPairs": [pair]}
    if ":" in rule.network:
        return shape | {"Ipv6Ranges": [{"CidrIpv6": rule.network, "Description": rule.description or None}]}
    return shape | {"IpRanges": [{"CidrIp": rule.network, "Description": rule.description or None}]}


def _group_of(call: Call) -> SecurityGroup:
    wanted = call.get("GroupId") or call.get("GroupName")
    if not wanted:
        raise missing("GroupId")
    for one in call.region.groups.all():
        if wanted in (one.id, one.name) and call.visible(one):
            return one
    raise _no_group(wanted)


def _no_group(wanted: str) -> RefusalError:
    return RefusalError("InvalidGroup.NotFound", f"The security group '{wanted[:60]}' does not exist")


def delete_security_group(call: Call) -> dict[str, Any]:
    """Deletes a security group. It is refused while an instance that is not terminated has the group."""
    call.allow_only("GroupId", "GroupName")
    group = _group_of(call)
    if group.name == "default":
        raise RefusalError("CannotDelete", f"the specified group: {group.id} cannot be deleted by a user")
    for instance in call.region.instances.all():
        if group.id in instance.groups and instance.state != State.TERMINATED:
            raise RefusalError("DependencyViolation", f"resource {group.id} has a dependent object")
    call.region.groups.put(group.id, None, call.now)
    return {"Return": True, "GroupId": group.id}


def authorize_ingress(call: Call) -> dict[str, Any]:
    """Adds rules to a security group.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_AuthorizeSecurityGroupIngress.html
    """
    call.allow_only(
        "GroupId",
        "GroupName",
        "IpPermissions",
        "CidrIp",
        "IpProtocol",
        "FromPort",
        "ToPort",
        "TagSpecifications",
    )
    group = _group_of(call)
    rules = list(_rules(call))
    if not rules:
        raise missing("IpPermissions")
    for rule in rules:
        if rule.place in {one.place for one in group.rules}:
            raise RefusalError(
                "InvalidPermission.Duplicate",
                f'the specified rule "peer: {rule.network}, {rule.protocol}, from port: {rule.first_port}, '
                "to "
                f'port: {rule.last_port}, ALLOW" already exists',
            )
    call.region.groups.put(group.id, replace(group, rules=(*group.rules, *rules)), call.now)
    call.world.apply_group(group.id)
    return {"Return": True, "SecurityGroupRules": [_added_shape(group, one) for one in rules]}


def _rules(call: Call) -> Iterator[Rule]:
    single = {
        name: call.get(name) for name in ("IpProtocol", "FromPort", "ToPort") if call.get(name) is not None
    }
    if call.get("CidrIp"):
        yield _rule(call, single, call.get("CidrIp"), "")
    for permission in call.get("IpPermissions", ()):
        if permission.get("PrefixListIds"):
            raise not_simulated("rules for prefix lists")
        for one in permission.get("IpRanges", ()):
            yield _rule(call, permission, one.get("CidrIp", ""), one.get("Description", ""))
        for one in permission.get("Ipv6Ranges", ()):
            yield _rule(call, permission, one.get("CidrIpv6", ""), one.get("Description", ""))
        for one in permission.get("UserIdGroupPairs", ()):
            yield _rule(
                call, permission, "", one.get("Description", ""), source_group=_source_group(call, one)
            )


def _source_group(call: Call, pair: Mapping[str, Any]) -> str:
    """Returns the id of the group that a rule names as its source.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_UserIdGroupPair.html
    """
    if unknown := set(pair) - {"GroupId", "UserId", "Description"}:
        raise not_simulated(f"source groups with {min(unknown)}")
    wanted = pair.get("GroupId", "")
    if call.region.groups.get(wanted) is None:
        raise _no_group(wanted)
    return str(wanted)


def _rule(
    call: Call, permission: Mapping[str, Any], network: str, description: str, *, source_group: str = ""
) -> Rule:
    if not source_group:
        _check_network(network)
    protocol = permission.get("IpProtocol")
    if protocol is None:
        raise missing("IpProtocol")
    return Rule(
        id=call.world.new_id("sgr"),
        protocol=protocol,
        first_port=permission.get("FromPort"),
        last_port=permission.get("ToPort"),
        network=network,
        source_group=source_group,
        description=description,
    )


def _check_network(network: str) -> None:
    try:
        ip_network(network)
    except ValueError as error:
        raise RefusalError("InvalidParameterValue", f"CIDR block {network[:60]} is malformed") from error


def _added_shape(group: SecurityGroup, rule: Rule) -> dict[str, Any]:
    if rule.source_group:
        source: dict[str, Any] = {"ReferencedGroupInfo": {"GroupId": rule.source_group}}
    else:
        source = {"CidrIpv6" if ":" in rule.network else "CidrIpv4": rule.network}
    return source | {
        "SecurityGroupRuleId": rule.id,
        "GroupId": group.id,
        "GroupOwnerId": catalogue.ACCOUNT,
        "IsEgress": False,
        "IpProtocol": rule.protocol,
        "FromPort": rule.first_port,
        "ToPort": rule.last_port,
    }


def import_key_pair(call: Call) -> dict[str, Any]:
    """Stores a public key. Its name is unique in a region."""
    call.allow_only("KeyName", "PublicKeyMaterial", "TagSpecifications")
    name, key = call.get("KeyName"), call.get("PublicKeyMaterial").decode(errors="replace").strip()
    if call.region.keys.get(name) is not None:
        raise RefusalError("InvalidKeyPair.Duplicate", f"The keypair already exists: {name}")
    kind, fingerprint = _fingerprint(key)
    pair = KeyPair(
        id=call.world.new_id("key"),
        name=name,
        public_key=key,
        kind=kind,
        fingerprint=fingerprint,
        created_at=call.now,
        tags=tags_for("key-pair", call.get("TagSpecifications", ()), ("key-pair",)),
    )
    call.region.keys.put(name, pair, call.now)
    return {
        "KeyName": name,
        "KeyPairId": pair.id,
        "KeyFingerprint": fingerprint,
        "Tags": tag_set(pair.tags),
    }


def _fingerprint(key: str) -> tuple[str, str]:
    """Returns the type and the fingerprint of a key. EC2 has RSA and ED25519 keys.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/verify-keys.html
    """
    words = key.split()
    kinds = {"ssh-rsa": "rsa", "ssh-ed25519": "ed25519"}
    try:
        blob = base64.b64decode(words[1], validate=True)
        kind = kinds[words[0]]
    except (IndexError, KeyError, binascii.Error) as error:
        raise RefusalError("InvalidKey.Format", "Key is not in valid OpenSSH public key format") from error
    if kind == "ed25519":
        return kind, base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    # The fingerprint of an imported RSA key is an MD5 sum, which is no secret.
    digest = hashlib.md5(blob, usedforsecurity=False).hexdigest()
    return kind, ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))


def describe_key_pairs(call: Call) -> dict[str, Any]:
    """Lists key pairs by name, id or filter."""
    call.allow_only("KeyNames", "KeyPairIds", "Filters", "IncludePublicKey")
    pairs = list(call.region.keys.all(call.as_of))
    named = {one.name: one for one in pairs} | {one.id: one for one in pairs}
    wanted = [*call.get("KeyNames", ()), *call.get("KeyPairIds", ())]
    for each in wanted:
        if each not in named:
            raise RefusalError("InvalidKeyPair.NotFound", f"The key pair '{each[:60]}' does not exist")

    def attributes(pair: KeyPair) -> Mapping[str, Sequence[str]]:
        return {"key-name": [pair.name], "key-pair-id": [pair.id], "fingerprint": [pair.fingerprint]}

    chosen = [named[each] for each in wanted] or pairs
    found = select(chosen, call.get("Filters", ()), attributes, lambda one: one.tags)
    with_key = bool(call.get("IncludePublicKey", False))
    return {"KeyPairs": [_key_shape(one, with_key) for one in found]}


def _key_shape(pair: KeyPair, with_key: bool) -> dict[str, Any]:
    return {
        "KeyPairId": pair.id,
        "KeyName": pair.name,
        "KeyType": pair.kind,
        "KeyFingerprint": pair.fingerprint,
        "CreateTime": moment(pair.created_at),
        "PublicKey": pair.public_key if with_key else None,
        "Tags": tag_set(pair.tags),
    }


def delete_key_pair(call: Call) -> dict[str, Any]:
    """Deletes a key pair. A name that does not exist is no error."""
    call.allow_only("KeyName", "KeyPairId")
    if not call.get("KeyName") and not call.get("KeyPairId"):
        raise missing("KeyName")
    for pair in list(call.region.keys.all()):
        if pair.name == call.get("KeyName") or pair.id == call.get("KeyPairId"):
            call.region.keys.put(pair.name, None, call.now)
            return {"Return": True, "KeyPairId": pair.id}
    return {"Return": True}
