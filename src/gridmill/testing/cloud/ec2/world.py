"""The state of the simulated EC2, and how it changes with time.

Sources: the states of an instance and their billing,
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-lifecycle.html; interrupted spot instances,
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html; the reasons of a
change, https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html
"""

import base64
from collections.abc import Iterator

from gridmill.domain.frozen import replace
from gridmill.errors import NotFoundError
from gridmill.ports.clock import Clock
from gridmill.testing.cloud.cloud_faults import CloudFaults
from gridmill.testing.cloud.ec2 import catalogue
from gridmill.testing.cloud.ec2.records import (
    Address,
    Instance,
    InstanceProfile,
    KeyPair,
    OwnImage,
    Role,
    Rule,
    SecurityGroup,
    Snapshot,
    State,
    Volume,
)
from gridmill.testing.cloud.ec2.users import Users
from gridmill.testing.cloud.ec2.wire import moment
from gridmill.testing.cloud.history import History
from gridmill.testing.cloud.machine_host import Ingress, MachineHost, MachineSpec
from gridmill.testing.cloud.wire_simulation import CloudWorld

_LISTED_AFTER_END_SECONDS = 3600.0
"""A terminated instance stays in lists for about an hour.

Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/terminating-instances.html
"""


class Region:
    """The resources of the account in one region."""

    def __init__(self, name: str, vpc_id: str, default_group: str) -> None:
        self.name = name
        self.vpc_id = vpc_id
        self.default_group = default_group
        self.instances: History[Instance] = History()
        self.volumes: History[Volume] = History()
        self.groups: History[SecurityGroup] = History()
        self.keys: History[KeyPair] = History()
        self.addresses: History[Address] = History()
        self.images: History[OwnImage] = History()
        self.snapshots: History[Snapshot] = History()
        self.tokens: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {}
        """For each client token and zone (empty for none): the request as text, and its instances."""


class World(CloudWorld):
    """All resources of one account. Its methods must be called with `lock`."""

    def __init__(self, clock: Clock, faults: CloudFaults, host: MachineHost, seed: int) -> None:
        super().__init__(clock, faults, host, seed)
        self.users = Users(self.random)
        self.roles: dict[str, Role] = {}
        self.profiles: dict[str, InstanceProfile] = {}
        self.released_addresses: list[tuple[Address, float]] = []
        self.deleted_volumes: dict[str, float] = {}
        self.deleted_snapshots: dict[str, float] = {}
        self.regions: dict[str, Region] = {}
        for name in catalogue.REGIONS:
            self.regions[name] = self._new_region(name)

    def _new_region(self, name: str) -> Region:
        region = Region(name, self.new_id("vpc"), self.new_id("sg"))
        group = SecurityGroup(
            id=region.default_group,
            name="default",
            description="default VPC security group",
            vpc_id=region.vpc_id,
            visible_from=0.0,
        )
        region.groups.put(group.id, group, 0.0)
        return region

    def new_id(self, kind: str) -> str:
        """Returns a new id, such as `i-` and 17 hexadecimal digits."""
        return f"{kind}-{self.random.getrandbits(68):017x}"

    def instances(self) -> Iterator[Instance]:
        """Yields all instances of all regions, also those that have left the lists."""
        for region in self.regions.values():
            yield from region.instances.all()

    def find(self, instance_id: str) -> Instance:
        """Returns an instance of any region. Raises NotFoundError."""
        for region in self.regions.values():
            instance = region.instances.get(instance_id)
            if instance is not None:
                return instance
        raise NotFoundError(f"there is no instance {instance_id}")

    def update(self, instance: Instance, now: float) -> None:
        """Stores a changed instance."""
        self.regions[instance.region].instances.put(instance.id, instance, now)

    def is_listed(self, instance: Instance, now: float) -> bool:
        """Returns whether an instance is still in lists."""
        ended = instance.runs[-1][1] if instance.runs else instance.launched_at
        is_old = ended is not None and now > ended + _LISTED_AFTER_END_SECONDS
        return not (instance.state == State.TERMINATED and is_old)

    # launch

    def add(self, instance: Instance, now: float) -> None:
        """Stores a new instance, and plans its start and its random end."""
        self.update(instance, now)
        self.agenda.at(now + self.faults.pending_seconds, lambda at: self._run(instance.id, at))
        death = self.faults.death_after(self.faults.lifetime_seconds)
        if death is not None:
            self.agenda.at(now + death, lambda at: self.die(instance.id, at))
        notice = self.faults.death_after(self.faults.spot_lifetime_seconds) if instance.is_spot else None
        if notice is not None:
            self.agenda.at(now + notice, lambda at: self.interrupt(instance.id, at))

    def _run(self, instance_id: str, at: float) -> None:
        instance = self.find(instance_id)
        if instance.state != State.PENDING:
            return
        self.update(replace(instance, state=State.RUNNING, runs=(*instance.runs, (at, None))), at)
        self.host.start(self._spec(instance), self._shut_down_by_guest)
        self._open_to(instance)

    def _spec(self, instance: Instance) -> MachineSpec:
        key = self.regions[instance.region].keys.get(instance.key_name)
        keys = ((key.name, key.public_key),) if key is not None else ()
        return MachineSpec(
            id=instance.id,
            image_id=instance.image_id,
            host_name=f"ip-{instance.address.replace('.', '-')}",
            address=instance.address,
            public_address=instance.public_address,
            user_data=base64.b64decode(instance.user_data),
            public_keys=keys,
            metadata=_metadata(instance),
            ingress=self._ingress(instance),
            tokens_required=instance.tokens_required,
            boot_seconds=self.faults.boot_seconds,
            boots=self.faults.boots(),
        )

    def _ingress(self, instance: Instance) -> tuple[Ingress, ...]:
        """Returns the TCP ports that the security groups of an instance open.

        Source: https://docs.aws.amazon.com/vpc/latest/userguide/vpc-security-groups.html
        """
        found = []
        for group_id in instance.groups:
            group = self.regions[instance.region].groups.get(group_id)
            for rule in group.rules if group is not None else ():
                ports = (rule.first_port, rule.last_port) if rule.protocol in ("tcp", "6") else (0, 65_535)
                if rule.protocol in ("tcp", "6", "-1") and ":" not in rule.network:
                    first, last = ports[0] or 0, ports[1] or 0
                    for network in self._networks(rule):
                        found.append(Ingress(first_port=first, last_port=last, network=network))
        return tuple(found)

    def _networks(self, rule: Rule) -> list[str]:
        """Returns the networks from which a rule allows traffic: one for each member of a source group."""
        if not rule.source_group:
            return [rule.network]
        members = [one for one in self.instances() if rule.source_group in one.groups]
        return [f"{one.address}/32" for one in members if one.state == State.RUNNING]

    def _open_to(self, instance: Instance) -> None:
        """Opens the machines whose groups allow traffic from the groups of a new instance."""
        for group in self.regions[instance.region].groups.all():
            if any(rule.source_group in instance.groups for rule in group.rules):
                self.apply_group(group.id)

    def apply_group(self, group_id: str) -> None:
        """Applies the changed rules of a security group to the running machines that have it."""
        for instance in self.instances():
            if group_id in instance.groups and instance.state == State.RUNNING:
                self.host.set_ingress(instance.id, self._ingress(instance))

    # end

    def terminate(self, instance: Instance, code: str, message: str, at: float) -> Instance:
        """Begins to end an instance. The call can be repeated: an instance that is ending stays as it is."""
        if instance.state.is_over:
            return instance
        ending = self._stopped(instance, State.SHUTTING_DOWN, code, message, at)
        self.agenda.at(at + self.faults.shutting_down_seconds, lambda then: self._ended(instance.id, then))
        return ending

    def _stopped(self, instance: Instance, state: State, code: str, message: str, at: float) -> Instance:
        runs = tuple((since, at if until is None else until) for since, until in instance.runs)
        initiator = "User initiated" if code.startswith("Client.User") else code
        changed = replace(
            instance,
            state=state,
            runs=runs,
            reason_code=code,
            reason_message=f"{code}: {message}",
            transition=f"{initiator} ({moment(at):%Y-%m-%d %H:%M:%S} GMT)",
        )
        self.update(changed, at)
        self.host.end(instance.id)
        return changed

    def _ended(self, instance_id: str, at: float) -> None:
        instance = self.find(instance_id)
        if instance.state != State.SHUTTING_DOWN:
            return
        region = self.regions[instance.region]
        for _, volume_id, is_deleted in instance.volumes:
            volume = region.volumes.get(volume_id)
            if volume is not None and is_deleted:
                self.delete_volume(volume, at)
            elif volume is not None:
                region.volumes.put(volume_id, replace(volume, instance_id="", device=""), at)
        self.update(replace(instance, state=State.TERMINATED, public_address="", volumes=()), at)

    def delete_volume(self, volume: Volume, at: float) -> None:
        """Deletes a disk, which is charged until then."""
        self.regions[volume.region].volumes.put(volume.id, None, at)
        self.deleted_volumes[volume.id] = at

    def _shut_down_by_guest(self, instance_id: str) -> None:
        with self.lock:
            self.shut_down(instance_id, self.settle())

    def shut_down(self, instance_id: str, at: float) -> None:
        """The machine of an instance has shut itself down. The instance is terminated if its shutdown
        behavior is `terminate`, else stopped.

        Source:
        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_ChangingInstanceInitiatedShutdownBehavior.html
        """
        instance = self.find(instance_id)
        code, message = "Client.InstanceInitiatedShutdown", "Instance initiated shutdown"
        if instance.state not in (State.PENDING, State.RUNNING):
            return
        if instance.shutdown_behavior == "terminate" and self.faults.shutdown_terminates:
            self.terminate(instance, code, message, at)
            return
        self._stopped(instance, State.STOPPING, code, message, at)
        self.agenda.at(at + self.faults.shutting_down_seconds, lambda then: self._halted(instance_id, then))

    def _halted(self, instance_id: str, at: float) -> None:
        instance = self.find(instance_id)
        if instance.state == State.STOPPING:
            self.update(replace(instance, state=State.STOPPED, public_address=""), at)

    # what happens to machines

    def interrupt(self, instance_id: str, at: float) -> None:
        """Gives a spot instance its notice. EC2 terminates the instance two minutes later."""
        instance = self.find(instance_id)
        if not instance.is_spot or not instance.state.uses_quota:
            return
        end = at + self.faults.notice_seconds
        self.update(replace(instance, interrupted_at=end), at)
        stamp = f"{moment(end):%Y-%m-%dT%H:%M:%SZ}"
        notice = f'{{"action": "terminate", "time": "{stamp}"}}'
        self.host.set_metadata(instance_id, "spot/instance-action", notice)
        self.host.set_metadata(instance_id, "spot/termination-time", stamp)
        self.agenda.at(end, lambda then: self._interrupted(instance_id, then))

    def end_notice(self, instance_id: str, at: float) -> None:
        """Terminates a spot instance that has got its notice."""
        if self.find(instance_id).interrupted_at is not None:
            self._interrupted(instance_id, at)

    def _interrupted(self, instance_id: str, at: float) -> None:
        self.terminate(
            self.find(instance_id), "Server.SpotInstanceTermination", "Spot instance termination", at
        )

    def die(self, instance_id: str, at: float) -> None:
        """Breaks the machine of an instance: EC2 still says `running` and charges for it, but its status
        checks fail and nothing answers."""
        instance = self.find(instance_id)
        if instance.state == State.RUNNING:
            self.update(replace(instance, is_broken=True), at)
            self.host.end(instance_id)

    def fail_hardware(self, instance_id: str, at: float) -> None:
        """Terminates an instance because of an internal error of EC2."""
        self.terminate(self.find(instance_id), "Server.InternalError", "Internal error on launch", at)


def _metadata(instance: Instance) -> tuple[tuple[str, str], ...]:
    """Returns the instance metadata by path.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-metadata.html
    """
    items = {
        "ami-id": instance.image_id,
        "ami-launch-index": str(instance.launch_index),
        "hostname": f"ip-{instance.address.replace('.', '-')}.ec2.internal",
        "instance-action": "none",
        "instance-id": instance.id,
        "instance-life-cycle": "spot" if instance.is_spot else "on-demand",
        "instance-type": instance.type,
        "local-hostname": f"ip-{instance.address.replace('.', '-')}.ec2.internal",
        "local-ipv4": instance.address,
        "placement/availability-zone": instance.zone,
        "placement/region": instance.region,
        "reservation-id": instance.reservation_id,
        "security-groups": "\n".join(instance.groups),
        "services/domain": "amazonaws.com",
    }
    if instance.public_address:
        items["public-ipv4"] = instance.public_address
    if instance.shows_tags:
        items |= {f"tags/instance/{key}": value for key, value in instance.tags}
    return tuple(items.items())
