"""The state of the simulated Compute Engine, and how it changes with time.

Sources: https://cloud.google.com/compute/docs/instances/instance-lifecycle (status),
https://cloud.google.com/compute/docs/instances/limit-vm-runtime (`maxRunDuration`, up to 30 s late),
https://cloud.google.com/compute/docs/instances/spot (preemption),
https://cloud.google.com/compute/docs/instances/host-maintenance-overview (`automaticRestart`) and
https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys
"""

from collections.abc import Sequence
from typing import Any

from gridmill.domain.frozen import replace
from gridmill.errors import NotFoundError
from gridmill.ports.clock import Clock
from gridmill.testing.cloud.cloud_faults import CloudFaults
from gridmill.testing.cloud.gce.guest_metadata import machine_metadata
from gridmill.testing.cloud.gce.records import (
    Action,
    Address,
    Disk,
    Firewall,
    Instance,
    Operation,
    OwnImage,
    Status,
)
from gridmill.testing.cloud.google_accounts import Accounts
from gridmill.testing.cloud.history import History
from gridmill.testing.cloud.machine_host import Ingress, MachineHost, MachineSpec, MetadataKind
from gridmill.testing.cloud.wire_simulation import CloudWorld

_LATEST_TIMER_SECONDS = 30.0
"""How late the end by `maxRunDuration` can be."""
_LONGEST_NOTICE_SECONDS = 30.0
"""How long a preempted machine still runs, at most."""
_SYSTEM = "system"
DEFAULT_FIREWALLS = (
    ("default-allow-ssh", (("tcp", ("22",)),), "0.0.0.0/0"),
    ("default-allow-rdp", (("tcp", ("3389",)),), "0.0.0.0/0"),
    ("default-allow-icmp", (("icmp", ()),), "0.0.0.0/0"),
    ("default-allow-internal", (("tcp", ("0-65535",)), ("udp", ("0-65535",)), ("icmp", ())), "10.128.0.0/9"),
)
"""The rules of the network `default`.

Source: https://cloud.google.com/firewall/docs/firewalls#more_rules_default_vpc
"""


class GceWorld(CloudWorld):
    """All resources of one project. Its methods must be called with `lock`."""

    def __init__(self, clock: Clock, faults: CloudFaults, host: MachineHost, seed: int, project: str) -> None:
        super().__init__(clock, faults, host, seed)
        self.project = project
        self.accounts = Accounts(project, self.random)
        self.roles: dict[str, tuple[str, ...]] = {}
        """The permissions of each custom role."""
        self.policies: dict[str, list[dict[str, Any]]] = {}
        """The bindings of the policies of instances and disks, such as `zones/ZONE/instances/NAME`."""
        self.instances: History[Instance] = History()
        self.disks: History[Disk] = History()
        self.images: History[OwnImage] = History()
        self.addresses: History[Address] = History()
        self.firewalls: History[Firewall] = History()
        self.operations: dict[str, Operation] = {}
        self.request_ids: dict[str, str] = {}
        """The name of the operation of each request id."""
        for name, allowed, network in DEFAULT_FIREWALLS:
            rule = Firewall(
                id=self.new_number(),
                name=name,
                created_at=0.0,
                visible_from=0.0,
                allowed=allowed,
                ranges=(network,),
                priority=65_534,
            )
            self.firewalls.put(name, rule, 0.0)

    def new_number(self) -> str:
        """Returns a new id, which is a number of 64 bits."""
        return str(self.random.getrandbits(62) + 2**62)

    def find(self, handle: str) -> Instance:
        """Returns the last instance with a name or an id. Raises NotFoundError."""
        found = [one for one in self.instances.last_versions() if handle in (one.name, one.id)]
        if not found:
            raise NotFoundError(f"there is no instance {handle}")
        return max(found, key=lambda one: (one.exists, one.created_at))

    def instance(self, zone: str, name: str, now: float, as_of: float) -> Instance | None:
        """Returns an existing instance as a request shows it, or None if it is not found."""
        for one in self.instances.all(as_of):
            if (one.zone, one.name) == (zone, name) and one.visible_from <= now:
                return one
        return None

    def update(self, instance: Instance, now: float) -> None:
        """Stores a changed instance."""
        self.instances.put(instance.id, instance, now)

    # operations

    def begin(
        self,
        kind: str,
        scope: str,
        target: str,
        target_id: str,
        now: float,
        *,
        user: str = _SYSTEM,
        request_id: str = "",
        seconds: float = 0.0,
        error: tuple[str, str, int] | None = None,
        details: Sequence[dict[str, Any]] = (),
    ) -> Operation:
        """Stores a new operation that ends in so many seconds."""
        number = self.new_number()
        operation = Operation(
            id=number,
            name=f"operation-{int(now * 1000)}-{self.random.getrandbits(48):012x}",
            scope=scope,
            kind=kind,
            target=target,
            target_id=target_id,
            user=user,
            request_id=request_id,
            created_at=now,
            ends_at=now + seconds,
            error=error,
            details=tuple(details),
        )
        self.operations[operation.name] = operation
        if request_id:
            self.request_ids[request_id] = operation.name
        return operation

    def _note(self, kind: str, instance: Instance, at: float) -> None:
        target = f"zones/{instance.zone}/instances/{instance.name}"
        self.begin(kind, f"zones/{instance.zone}", target, instance.id, at)

    # launch

    def add(self, instance: Instance, now: float) -> None:
        """Stores a new instance, and plans its start and its random end."""
        self.update(instance, now)
        pending = self.faults.pending_seconds
        self.agenda.at(now + pending / 2, lambda at: self._stage(instance.id, at))
        self.agenda.at(now + pending, lambda at: self._run(instance.id, at))
        death = self.faults.death_after(self.faults.lifetime_seconds)
        if death is not None:
            self.agenda.at(now + death, lambda at: self.die(instance.id, at))
        notice = self.faults.death_after(self.faults.spot_lifetime_seconds) if instance.is_spot else None
        if notice is not None:
            self.agenda.at(now + notice, lambda at: self.preempt(instance.id, at))

    def _stage(self, instance_id: str, at: float) -> None:
        instance = self.instances.get(instance_id)
        if instance is not None and instance.status == Status.PROVISIONING:
            self.update(replace(instance, status=Status.STAGING), at)

    def _run(self, instance_id: str, at: float) -> None:
        instance = self.instances.get(instance_id)
        if instance is None or instance.status not in (Status.PROVISIONING, Status.STAGING):
            return
        self.update(replace(instance, status=Status.RUNNING, runs=(*instance.runs, (at, None))), at)
        self.host.start(self._spec(instance), self._shut_down_by_guest)
        if instance.max_seconds is not None:
            late = self.random.uniform(0.0, _LATEST_TIMER_SECONDS)
            due = at + instance.max_seconds + late
            self.agenda.at(due, lambda then: self._time_is_over(instance_id, then))

    def _spec(self, instance: Instance) -> MachineSpec:
        given = dict(instance.metadata)
        return MachineSpec(
            id=instance.id,
            image_id=self._image_of(instance),
            host_name=instance.name,
            address=instance.address,
            public_address=instance.public_address,
            user_data=given.get("user-data", "").encode(),
            public_keys=(),
            metadata=machine_metadata(instance, self.project),
            metadata_kind=MetadataKind.GCE,
            logins=_logins(given.get("ssh-keys", "")),
            startup_script=given.get("startup-script", "").encode(),
            ingress=self._ingress(instance),
            boot_seconds=self.faults.boot_seconds,
            boots=self.faults.boots(),
        )

    def _image_of(self, instance: Instance) -> str:
        """Returns the id of the image of the project from which an instance was launched, or nothing."""
        disks = [self.disks.get(one.disk_id) for one in instance.disks if one.is_boot]
        own = f"projects/{self.project}/global/images/"
        names = [one.image.removeprefix(own) for one in disks if one and one.image.startswith(own)]
        found = [self.images.get(name, instance.created_at) for name in names]
        return found[0].id if found and found[0] else ""

    def _ingress(self, instance: Instance) -> tuple[Ingress, ...]:
        """Returns the TCP ports that the firewall rules open for an instance.

        Source: https://cloud.google.com/firewall/docs/firewalls
        """
        return tuple(
            ingress
            for rule in self.firewalls.all()
            if not rule.is_disabled and (not rule.target_tags or set(rule.target_tags) & set(instance.tags))
            for protocol, ports in rule.allowed
            if protocol in ("tcp", "6", "all")
            for ingress in _open_ports(ports, rule.ranges)
        )

    def apply_firewalls(self) -> None:
        """Applies changed firewall rules to all running machines."""
        for one in self.instances.all():
            if one.status == Status.RUNNING:
                self.host.set_ingress(one.id, self._ingress(one))

    # end

    def delete(self, instance: Instance, at: float) -> float:
        """Begins to delete an instance, and returns the time at which it does not exist any more. The call
        can be repeated."""
        seconds = self.faults.shutting_down_seconds
        if instance.is_deleting or not instance.exists:
            return at + seconds
        self._stop(replace(instance, is_deleting=True), at)
        self.agenda.at(at + seconds, lambda then: self._deleted(instance.id, then))
        return at + seconds

    def stop(self, instance: Instance, at: float) -> float:
        """Begins to stop an instance, and returns the time at which it is stopped. The call can be
        repeated. A stopped instance still exists with its disks."""
        seconds = self.faults.shutting_down_seconds
        if instance.lives:
            self._stop(instance, at)
            self.agenda.at(at + seconds, lambda then: self._halted(instance.id, then))
        return at + seconds

    def _stop(self, instance: Instance, at: float) -> None:
        runs = tuple((since, at if until is None else until) for since, until in instance.runs)
        self.update(replace(instance, status=Status.STOPPING, runs=runs), at)
        self.host.end(instance.id)

    def _halted(self, instance_id: str, at: float) -> None:
        instance = self.instances.get(instance_id)
        if instance is not None and instance.status == Status.STOPPING and not instance.is_deleting:
            self.update(replace(instance, status=Status.TERMINATED, public_address=""), at)

    def _deleted(self, instance_id: str, at: float) -> None:
        instance = self.instances.get(instance_id)
        if instance is None:
            return
        for attached in instance.disks:
            disk = self.disks.get(attached.disk_id)
            if disk is not None and attached.is_deleted:
                self.delete_disk(disk, at)
            elif disk is not None:
                self.disks.put(disk.id, replace(disk, user=""), at)
        self.policies.pop(f"zones/{instance.zone}/instances/{instance.name}", None)
        self.update(replace(instance, deleted_at=at, status=Status.TERMINATED, public_address=""), at)
        self.instances.put(instance_id, None, at)

    def delete_disk(self, disk: Disk, at: float) -> None:
        """Deletes a disk, which is charged until then."""
        self.policies.pop(f"zones/{disk.zone}/disks/{disk.name}", None)
        self.disks.put(disk.id, replace(disk, deleted_at=at), at)
        self.disks.put(disk.id, None, at)

    def _end_as_planned(self, instance: Instance, at: float) -> None:
        if instance.end_action == Action.DELETE:
            self.delete(instance, at)
        else:
            self.stop(instance, at)

    def _time_is_over(self, instance_id: str, at: float) -> None:
        instance = self.instances.get(instance_id)
        if instance is not None and instance.lives:
            kind = "delete" if instance.end_action == Action.DELETE else "stop"
            self._note(kind, instance, at)
            self._end_as_planned(instance, at)

    # what happens to machines

    def _shut_down_by_guest(self, instance_id: str) -> None:
        with self.lock:
            self.shut_down(instance_id, self.settle())

    def shut_down(self, handle: str, at: float) -> None:
        """The machine of an instance has shut itself down. The instance is stopped, and its disks are
        charged.

        Source: https://cloud.google.com/compute/docs/instances/stop-start-instance
        """
        instance = self.find(handle)
        if instance.lives:
            self._note("compute.instances.guestTerminate", instance, at)
            self.stop(instance, at)

    def preempt(self, handle: str, at: float) -> None:
        """Gives a Spot instance its notice. It is stopped or deleted when the notice has passed."""
        instance = self.find(handle)
        if not instance.is_spot or not instance.lives or instance.is_preempted:
            return
        self.update(replace(instance, is_preempted=True), at)
        self.host.set_metadata(instance.id, "instance/preempted", "TRUE")
        self._note("compute.instances.preempted", instance, at)
        end = at + min(self.faults.notice_seconds, _LONGEST_NOTICE_SECONDS)
        self.agenda.at(end, lambda then: self._preempted(instance.id, then))

    def _preempted(self, instance_id: str, at: float) -> None:
        instance = self.instances.get(instance_id)
        if instance is not None and instance.lives:
            self._end_as_planned(instance, at)

    def die(self, handle: str, at: float) -> None:
        """Breaks the machine of an instance: Compute Engine still shows RUNNING and charges for the
        instance."""
        instance = self.find(handle)
        if instance.exists and instance.status == Status.RUNNING:
            self.update(replace(instance, is_broken=True), at)
            self.host.end(instance.id)

    def fail_hardware(self, handle: str, at: float) -> None:
        """The host of an instance fails. If the instance is restarted automatically, it runs on and is
        charged; here, its machine stays dead. Else it is stopped."""
        instance = self.find(handle)
        if instance.lives:
            self._note("compute.instances.hostError", instance, at)
            if instance.restarts:
                self._note("compute.instances.automaticRestart", instance, at)
                self.die(handle, at)
            else:
                self.stop(instance, at)


def _logins(text: str) -> tuple[tuple[str, str], ...]:
    """Returns the user names and public keys of the metadata `ssh-keys`.

    Source: https://cloud.google.com/compute/docs/connect/add-ssh-keys#metadata
    """
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return tuple((user.strip(), key.strip()) for user, _, key in pairs)


def _open_ports(ports: Sequence[str], ranges: Sequence[str]) -> list[Ingress]:
    pairs = [(first, last or first) for first, _, last in (one.partition("-") for one in ports)]
    return [
        Ingress(first_port=int(first), last_port=int(last), network=network)
        for first, last in pairs or [("0", "65535")]
        for network in ranges
        if ":" not in network
    ]
