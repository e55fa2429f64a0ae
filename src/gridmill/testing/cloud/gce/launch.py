"""Launches of instances.

Sources: https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert,
https://cloud.google.com/compute/docs/instances/limit-vm-runtime,
https://cloud.google.com/compute/docs/instances/create-use-spot,
https://cloud.google.com/compute/docs/gpus/create-vm-with-gpus and
https://cloud.google.com/compute/docs/metadata/setting-custom-metadata
"""

import re
from collections.abc import Mapping
from typing import Any

from gridmill.domain.frozen import dataclass, replace
from gridmill.testing.cloud.gce import catalogue, prices
from gridmill.testing.cloud.gce.call import Call, check_fields, last_part
from gridmill.testing.cloud.gce.catalogue import MachineType
from gridmill.testing.cloud.gce.launch_disks import DiskPlan, attach, disk_plans
from gridmill.testing.cloud.gce.quotas import check_quotas, no_capacity
from gridmill.testing.cloud.gce.records import Accelerators, Action, Instance
from gridmill.testing.cloud.gce.refusal import bad_request, exists, invalid, not_found
from gridmill.testing.cloud.google_accounts import Token

_FIELDS = (
    "name",
    "description",
    "machineType",
    "labels",
    "metadata",
    "tags",
    "disks",
    "networkInterfaces",
    "guestAccelerators",
    "scheduling",
    "serviceAccounts",
    "deletionProtection",
    "canIpForward",
    "shieldedInstanceConfig",
    "zone",
)
_SCHEDULING = (
    "automaticRestart",
    "instanceTerminationAction",
    "maxRunDuration",
    "onHostMaintenance",
    "preemptible",
    "provisioningModel",
)
_METADATA_KEY = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_LARGEST_VALUE_BYTES, _LARGEST_METADATA_BYTES = 256 * 1024, 512 * 1024
_SHORTEST_SECONDS, _LONGEST_SECONDS = 30, 120 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schedule:
    """The fields of `scheduling`, with their defaults."""

    is_spot: bool
    is_legacy: bool
    restarts: bool
    on_maintenance: str
    action: Action | None
    max_seconds: int | None


def insert_instance(call: Call) -> dict[str, Any]:
    """Begins to create an instance. A repeated request id returns the operation of the first request. If the
    zone has no free machine or a quota of the region is exceeded, the operation ends with an error."""
    name, zone = call.new_name(), call.zone
    target = f"zones/{zone}/instances/{name}"
    call.require("compute.instances.create", target)
    call.allow_only(*_FIELDS)
    kind, gpus = _kind(call, zone), _accelerators(call)
    schedule = _schedule(call, has_gpus=bool(gpus))
    plans = disk_plans(call, kind)
    instance = _instance(call, kind, gpus, schedule)
    if any(one.key == instance.key for one in call.world.instances.all()):
        raise exists(f"projects/{call.world.project}/{target}")
    pending = call.world.faults.pending_seconds
    error = check_quotas(call, instance, kind, [one for one in plans if not one.is_existing])
    details: tuple[dict[str, Any], ...] = ()
    if error is None:
        error, details = no_capacity(call, instance)
    if error is not None:
        return call.begin(
            "insert", f"zones/{zone}", target, instance.id, seconds=pending, error=error, details=details
        )
    return _create(call, instance, plans, target)


def _create(call: Call, instance: Instance, plans: list[DiskPlan], target: str) -> dict[str, Any]:
    made = replace(instance, disks=attach(call, instance, plans))
    if made.service_account:
        call.world.accounts.tokens[made.token] = Token(
            email=made.service_account, scopes=made.scopes, expires_at=float("inf")
        )
    call.world.add(made, call.now)
    pending = call.world.faults.pending_seconds
    return call.begin("insert", f"zones/{made.zone}", target, made.id, seconds=pending)


def _kind(call: Call, zone: str) -> MachineType:
    url = call.body.get("machineType")
    name = last_part(url, "resource.machineType")
    if f"zones/{zone}/machineTypes/" not in str(url):
        raise invalid("resource.machineType", url, f"The machine type must be in the zone {zone}.")
    kind = catalogue.MACHINE_TYPES.get(name)
    if kind is None or zone not in kind.family.zones:
        text = f"Machine type with name '{name}' does not exist in zone '{zone}'."
        raise invalid("resource.machineType", url, text)
    return kind


def _accelerators(call: Call) -> tuple[Accelerators, ...]:
    """Returns the GPUs of a request, with those that the machine type always has."""
    kind = catalogue.MACHINE_TYPES[last_part(call.body.get("machineType"), "resource.machineType")]
    given = [_accelerator(call, one) for one in call.body.get("guestAccelerators") or ()]
    if kind.accelerators is not None:
        if given and given != [kind.accelerators]:
            raise bad_request(f"[{given[0].type}] is not available with the machine type {kind.name}.")
        return (kind.accelerators,)
    if given and kind.family.name != "n1":
        raise bad_request(f"[{given[0].type}] features are not compatible with the machine type {kind.name}.")
    for one in given:
        if not catalogue.ACCELERATORS[one.type].is_attachable:
            raise bad_request(f"[{one.type}] features are not compatible with the machine type {kind.name}.")
    return tuple(given)


def _accelerator(call: Call, given: object) -> Accelerators:
    field = "resource.guestAccelerators"
    check_fields(given, field, ("acceleratorType", "acceleratorCount"))
    entry = given if isinstance(given, dict) else {}
    name, count = last_part(entry.get("acceleratorType"), field), entry.get("acceleratorCount", 1)
    kind = catalogue.ACCELERATORS.get(name)
    if kind is None or call.zone not in kind.zones:
        raise not_found(f"projects/{call.world.project}/zones/{call.zone}/acceleratorTypes/{name}")
    if not isinstance(count, int) or not 1 <= count <= kind.most_cards:
        raise invalid(f"{field}.acceleratorCount", count, f"At most {kind.most_cards} are possible.")
    return Accelerators(type=name, count=count)


def _schedule(call: Call, *, has_gpus: bool) -> _Schedule:
    given = call.body.get("scheduling") or {}
    check_fields(given, "resource.scheduling", _SCHEDULING)
    is_legacy = bool(given.get("preemptible", False))
    is_spot = given.get("provisioningModel") == "SPOT"
    cannot_migrate = has_gpus or is_spot or is_legacy
    schedule = _Schedule(
        is_spot=is_spot or is_legacy,
        is_legacy=is_legacy and not is_spot,
        restarts=bool(given.get("automaticRestart", not (is_spot or is_legacy))),
        on_maintenance=given.get("onHostMaintenance", "TERMINATE" if is_spot or is_legacy else "MIGRATE"),
        action=_action(given.get("instanceTerminationAction")),
        max_seconds=_max_seconds(given.get("maxRunDuration")),
    )
    if schedule.is_spot and schedule.restarts:
        raise bad_request("Scheduling must have automaticRestart be false when it is preemptible or Spot.")
    if cannot_migrate and schedule.on_maintenance != "TERMINATE":
        reason = "Instances with guest accelerators" if has_gpus else "Preemptible instances"
        raise bad_request(f"{reason} do not support live migration.")
    _check_action(schedule)
    return schedule


def _check_action(schedule: _Schedule) -> None:
    if schedule.max_seconds is not None and schedule.is_legacy:
        raise bad_request("maxRunDuration is not supported for preemptible instances. Use Spot instances.")
    if schedule.max_seconds is not None and schedule.action is None:
        raise bad_request("instanceTerminationAction must be specified when maxRunDuration is specified.")
    if schedule.action is not None and not schedule.is_spot and schedule.max_seconds is None:
        raise bad_request("instanceTerminationAction needs a Spot instance or a limited run time.")


def _action(given: object) -> Action | None:
    if given is None:
        return None
    if given not in ("STOP", "DELETE"):
        raise invalid("resource.scheduling.instanceTerminationAction", given, "Use STOP or DELETE.")
    return Action(str(given))


def _max_seconds(given: object) -> int | None:
    if given is None:
        return None
    field = "resource.scheduling.maxRunDuration"
    check_fields(given, field, ("seconds", "nanos"))
    text = str(given.get("seconds", "")) if isinstance(given, dict) else ""
    if not text.isdecimal() or not _SHORTEST_SECONDS <= int(text) <= _LONGEST_SECONDS:
        raise invalid(field, given, "Must be between 30 seconds and 120 days.")
    return int(text)


def _metadata(call: Call) -> tuple[tuple[str, str], ...]:
    given = call.body.get("metadata") or {}
    check_fields(given, "resource.metadata", ("items", "kind", "fingerprint"))
    pairs = [(one.get("key"), one.get("value", "")) for one in given.get("items") or ()]
    for key, value in pairs:
        if not isinstance(key, str) or not _METADATA_KEY.fullmatch(key) or not isinstance(value, str):
            raise invalid("resource.metadata.items.key", key, "The key or its value is invalid.")
        if len(value.encode()) > _LARGEST_VALUE_BYTES:
            raise invalid(
                f"resource.metadata.items[{key}]", value[:20], "Value is too large: maximum 262144."
            )
    if len({key for key, _ in pairs}) != len(pairs):
        raise invalid("resource.metadata.items", "keys", "Duplicate key.")
    if sum(len(key) + len(value.encode()) for key, value in pairs) > _LARGEST_METADATA_BYTES:
        raise invalid("resource.metadata", "items", "The total size must be less than 512 KB.")
    return tuple(pairs)


def _has_public_address(call: Call) -> bool:
    interfaces = list(call.body.get("networkInterfaces") or ())
    if len(interfaces) != 1:
        raise invalid("resource.networkInterfaces", len(interfaces), "One network interface is expected.")
    interface = interfaces[0]
    check_fields(
        interface, "resource.networkInterfaces[0]", ("network", "subnetwork", "accessConfigs", "stackType")
    )
    network = interface.get("network", "global/networks/default")
    if last_part(network, "resource.networkInterfaces[0].network") != "default":
        raise not_found(f"projects/{call.world.project}/global/networks/{last_part(network, 'network')}")
    configs = interface.get("accessConfigs") or ()
    for one in configs:
        check_fields(one, "resource.networkInterfaces[0].accessConfigs", ("name", "type", "networkTier"))
        if one.get("type", "ONE_TO_ONE_NAT") != "ONE_TO_ONE_NAT":
            raise invalid("accessConfigs.type", one.get("type"), "Use ONE_TO_ONE_NAT.")
    return bool(configs)


def _service_account(call: Call) -> tuple[str, tuple[str, ...]]:
    accounts = list(call.body.get("serviceAccounts") or ())
    if not accounts:
        return "", ()
    if len(accounts) > 1:
        raise invalid("resource.serviceAccounts", len(accounts), "At most one service account is supported.")
    check_fields(accounts[0], "resource.serviceAccounts[0]", ("email", "scopes"))
    email = accounts[0].get("email", "")
    known = call.world.accounts.principals
    if email == "default":
        email = next(iter(known))
    if email not in known:
        raise bad_request(f"The resource '{email}' of type 'serviceAccount' was not found.")
    call.require("iam.serviceAccounts.actAs", f"serviceAccounts/{email}")
    return email, tuple(accounts[0].get("scopes") or ())


def _tags(given: Mapping[str, Any]) -> tuple[str, ...]:
    check_fields(given, "resource.tags", ("items", "fingerprint"))
    return tuple(given.get("items") or ())


def _instance(call: Call, kind: MachineType, gpus: tuple[Accelerators, ...], schedule: _Schedule) -> Instance:
    world, zone = call.world, call.zone
    email, scopes = _service_account(call)
    is_public = _has_public_address(call)
    region = catalogue.region_of(zone)
    spot = schedule.is_spot
    address_price = prices.SPOT_ADDRESS_MICROS_PER_HOUR if spot else prices.ADDRESS_MICROS_PER_HOUR
    return Instance(
        id=world.new_number(),
        name=call.new_name(),
        zone=zone,
        machine_type=kind.name,
        created_at=call.now,
        visible_from=call.now + world.faults.invisible(),
        address=world.new_address(),
        public_address=world.new_public_address() if is_public else "",
        has_public_address=is_public,
        labels=call.labels(call.body.get("labels")),
        metadata=_metadata(call),
        tags=_tags(call.body.get("tags") or {}),
        accelerators=gpus,
        service_account=email,
        scopes=scopes,
        token=world.accounts.new_token() if email else "",
        is_spot=spot,
        is_legacy_preemptible=schedule.is_legacy,
        restarts=schedule.restarts,
        on_maintenance=schedule.on_maintenance,
        end_action=schedule.action,
        max_seconds=schedule.max_seconds,
        description=str(call.body.get("description", "")),
        is_protected=bool(call.body.get("deletionProtection", False)),
        hourly_micros=prices.hourly_micros(kind, gpus, region, spot=spot),
        address_hourly_micros=address_price,
    )
