"""Launches of instances.

Source: https://docs-api.lambda.ai/api/cloud#launchInstance. The field `quantity` is missing in version 1.8.3
of the description, but examples of the documentation still have it with the value 1.
"""

import re
from typing import Any

from gridmill.testing.cloud.lambda_cloud import catalogue
from gridmill.testing.cloud.lambda_cloud.call import Call
from gridmill.testing.cloud.lambda_cloud.catalogue import Image, InstanceType
from gridmill.testing.cloud.lambda_cloud.records import Instance, SshKey
from gridmill.testing.cloud.lambda_cloud.refusal import (
    invalid,
    no_capacity,
    not_found,
    not_simulated,
    over_quota,
    unavailable,
    unknown,
)
from gridmill.testing.cloud.lambda_cloud.world import LambdaWorld

_FIELDS = (
    "region_name",
    "instance_type_name",
    "ssh_key_names",
    "file_system_names",
    "file_system_mounts",
    "hostname",
    "name",
    "image",
    "user_data",
    "tags",
    "firewall_rulesets",
    "quantity",
)
_LARGEST_USER_DATA_BYTES = 1_000_000
_TAG_KEY = re.compile(r"[a-z][a-z0-9\-:]+")
_LONGEST_TAG_KEY, _LONGEST_TAG_VALUE = 55, 128


def launch_instance(call: Call) -> dict[str, Any]:
    """Launches one instance. There is no idempotency: each request launches an instance."""
    call.allow_only(*_FIELDS)
    _check_unsupported(call)
    kind, key = _kind(call), _key(call)
    region = _region(call)
    image = _image(call, kind, region)
    instance = _instance(call, kind, key, region, image)
    if region in call.world.faults.regions_down:
        raise unavailable()
    _check_room(call.world, kind, region)
    call.world.add(instance, call.now)
    return {"instance_ids": [instance.id]}


def _check_unsupported(call: Call) -> None:
    if call.body.get("quantity", 1) != 1:
        raise invalid("quantity must be 1.")
    if call.items("file_system_names") or call.items("file_system_mounts"):
        raise not_simulated("filesystems")


def _kind(call: Call) -> InstanceType:
    name = call.text("instance_type_name", longest=64)
    if name not in catalogue.TYPES:
        raise not_found(f"The instance type {name} does not exist.")
    return catalogue.TYPES[name]


def _region(call: Call) -> str:
    region = call.text("region_name", longest=64)
    if region not in catalogue.REGIONS or region in call.world.faults.regions_gone:
        raise invalid(f"{region} is not a region.")
    return region


def _key(call: Call) -> SshKey:
    """Returns the SSH key of the request.

    Two keys of the same name are accepted, but then launches with the name fail. Source:
    https://github.com/skypilot-org/skypilot/issues/8221
    """
    names = call.items("ssh_key_names")
    if len(names) != 1:
        raise invalid("Exactly one SSH key must be specified.")
    keys = [one for one in call.world.keys.all() if one.name == names[0]]
    if not keys:
        raise not_found(f"The SSH key {names[0]} does not exist.")
    if len(keys) > 1:
        raise unknown()
    return keys[0]


def _image(call: Call, kind: InstanceType, region: str) -> Image:
    given = call.body.get("image") or {"family": catalogue.DEFAULT_FAMILY}
    if not isinstance(given, dict) or set(given) not in ({"id"}, {"family"}):
        raise invalid("image must have either an id or a family.")
    fitting = [
        one
        for one in catalogue.IMAGES
        if one.region == region and given in ({"id": one.id}, {"family": one.family})
    ]
    if not fitting:
        raise not_found(f"The image {next(iter(given.values()))} does not exist in {region}.")
    image = next((one for one in fitting if one.architecture == kind.architecture), None)
    if image is None:
        raise invalid(f"The image has another architecture than {kind.name}, which is {kind.architecture}.")
    return image


def _instance(call: Call, kind: InstanceType, key: SshKey, region: str, image: Image) -> Instance:
    world = call.world
    address, public = world.new_address(), world.new_public_address()
    default_host = public.replace(".", "-")
    user_data = call.text("user_data", longest=_LARGEST_USER_DATA_BYTES, default="")
    if len(user_data.encode()) > _LARGEST_USER_DATA_BYTES:
        raise invalid("user_data cannot exceed 1MB.")
    return Instance(
        id=world.new_id(),
        region=region,
        type=kind.name,
        image_id=image.id,
        launched_at=call.now,
        visible_from=call.now + world.faults.invisible(),
        address=address,
        public_address=public,
        name=call.text("name", longest=64) if call.body.get("name") is not None else None,
        hostname=call.text("hostname", longest=63, pattern=r"[a-z0-9][0-9a-z-]{0,62}", default=default_host),
        key_name=key.name,
        public_key=key.public_key,
        user_data=user_data,
        tags=_tags(call),
        rulesets=_rulesets(call, region),
        jupyter_token=world.new_id(),
    )


def _tags(call: Call) -> tuple[tuple[str, str], ...]:
    found = []
    for entry in call.items("tags"):
        key = entry.get("key") if isinstance(entry, dict) else None
        value = entry.get("value") if isinstance(entry, dict) else None
        if not isinstance(key, str) or not isinstance(value, str):
            raise invalid("A tag has a key and a value.")
        if len(key) > _LONGEST_TAG_KEY or not _TAG_KEY.fullmatch(key):
            raise invalid(f"The tag key {key[:60]} does not match {_TAG_KEY.pattern} or is too long.")
        if len(value) > _LONGEST_TAG_VALUE:
            raise invalid(f"The value of the tag {key} has more than {_LONGEST_TAG_VALUE} characters.")
        found.append((key, value))
    return tuple(found)


def _rulesets(call: Call, region: str) -> tuple[str, ...]:
    ids = []
    for entry in call.items("firewall_rulesets"):
        ruleset = call.world.rulesets.get(str(entry.get("id"))) if isinstance(entry, dict) else None
        if ruleset is None or ruleset.region != region:
            raise not_found(f"The firewall ruleset does not exist in {region}.")
        ids.append(ruleset.id)
    return tuple(ids)


def _check_room(world: LambdaWorld, kind: InstanceType, region: str) -> None:
    running = [one for one in world.instances.all() if one.runs]
    limit = world.faults.quota("instances", region, catalogue.DEFAULT_INSTANCES)
    if len(running) >= limit:
        raise over_quota()
    if not has_room(world, kind, region, world.now()):
        raise no_capacity()


def has_room(world: LambdaWorld, kind: InstanceType, region: str, as_of: float) -> bool:
    """Returns whether an instance of a type can be launched in a region."""
    if region not in kind.regions or region in world.faults.regions_gone:
        return False
    capacity = world.faults.capacity_of(kind.name, region, spot=False)
    if capacity is None:
        return True
    same = [
        one
        for one in world.instances.all(as_of)
        if (one.type, one.region) == (kind.name, region) and one.runs
    ]
    return len(same) < capacity
