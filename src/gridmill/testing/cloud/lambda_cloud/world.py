"""The state of the simulated Lambda Cloud, and how it changes with time."""

from collections.abc import Iterator

from gridmill.domain.frozen import replace
from gridmill.errors import NotFoundError
from gridmill.ports.clock import Clock
from gridmill.testing.cloud.cloud_faults import CloudFaults
from gridmill.testing.cloud.history import History
from gridmill.testing.cloud.lambda_cloud import catalogue
from gridmill.testing.cloud.lambda_cloud.records import Instance, Rule, Ruleset, SshKey, Status
from gridmill.testing.cloud.machine_host import Ingress, MachineHost, MachineSpec, MetadataKind
from gridmill.testing.cloud.wire_simulation import CloudWorld

_KNOWN_AFTER_END_SECONDS = 3600.0
"""How long an instance that has ended is found by its id. Lambda does not document this time."""
_DEFAULT_RULES = (
    Rule(protocol="tcp", ports=(22, 22), network="0.0.0.0/0", description="Allow SSH from anywhere"),
    Rule(protocol="icmp", ports=None, network="0.0.0.0/0", description="Allow ICMP from anywhere"),
)
"""The rules of a new account. Source: https://docs.lambda.ai/public-cloud/firewalls/"""


class LambdaWorld(CloudWorld):
    """All resources of one account. Its methods must be called with `lock`."""

    def __init__(self, clock: Clock, faults: CloudFaults, host: MachineHost, seed: int) -> None:
        super().__init__(clock, faults, host, seed)
        self.api_keys: dict[str, bool] = {}
        """Each API key, and whether it is valid."""
        self.is_active = True
        self.instances: History[Instance] = History()
        self.keys: History[SshKey] = History()
        self.rulesets: History[Ruleset] = History()
        self.rules: tuple[Rule, ...] = _DEFAULT_RULES

    def new_id(self) -> str:
        """Returns a new id: 32 hexadecimal digits."""
        return f"{self.random.getrandbits(128):032x}"

    def find(self, instance_id: str) -> Instance:
        """Returns an instance. Raises NotFoundError."""
        instance = self.instances.get(instance_id)
        if instance is None:
            raise NotFoundError(f"there is no instance {instance_id}")
        return instance

    def known(self, instance_id: str, now: float, as_of: float) -> Instance | None:
        """Returns an instance as a request for its id shows it, or None if it is not found."""
        instance = self.instances.get(instance_id, as_of)
        if instance is None or instance.visible_from > now:
            return None
        ended = instance.ended_at
        is_old = ended is not None and now > ended + _KNOWN_AFTER_END_SECONDS
        return None if instance.status == Status.TERMINATED and is_old else instance

    def listed(self, now: float, as_of: float) -> Iterator[Instance]:
        """Yields the instances that the list of instances shows.

        Source: https://docs-api.lambda.ai/api/cloud#listInstances ("a list of your running instances")
        """
        for one in self.instances.all(as_of):
            if one.visible_from <= now and one.status not in (Status.TERMINATED, Status.PREEMPTED):
                yield one

    # launch

    def add(self, instance: Instance, now: float) -> None:
        """Stores a new instance, and plans its boot and its random end."""
        self.instances.put(instance.id, instance, now)
        self.agenda.at(now + self.faults.pending_seconds, lambda at: self._boot(instance.id, at))
        death = self.faults.death_after(self.faults.lifetime_seconds)
        if death is not None:
            self.agenda.at(now + death, lambda at: self.die(instance.id, at))

    def _boot(self, instance_id: str, at: float) -> None:
        instance = self.find(instance_id)
        if instance.status != Status.BOOTING:
            return
        self.instances.put(instance_id, replace(instance, status=Status.ACTIVE, active_at=at), at)
        self.host.start(self._spec(instance), self._shut_down_by_guest)

    def _spec(self, instance: Instance) -> MachineSpec:
        return MachineSpec(
            id=instance.id,
            host_name=instance.hostname,
            address=instance.address,
            public_address=instance.public_address,
            user_data=instance.user_data.encode(),
            public_keys=((instance.key_name, instance.public_key),),
            metadata=(),
            metadata_kind=MetadataKind.NONE,
            ingress=self._ingress(instance),
            boot_seconds=self.faults.boot_seconds,
            boots=self.faults.boots(),
        )

    def _ingress(self, instance: Instance) -> tuple[Ingress, ...]:
        if instance.region in catalogue.WITHOUT_FIREWALL:
            return (Ingress(first_port=1, last_port=65_535, network="0.0.0.0/0"),)
        rulesets = [self.rulesets.get(one) for one in instance.rulesets]
        rules = [*self.rules, *(rule for one in rulesets if one is not None for rule in one.rules)]
        return tuple(one for rule in rules if (one := rule.ingress) is not None)

    def apply_rules(self) -> None:
        """Applies changed rules to all running machines."""
        for one in self.instances.all():
            if one.status == Status.ACTIVE:
                self.host.set_ingress(one.id, self._ingress(one))

    # end

    def terminate(self, instance: Instance, at: float) -> Instance:
        """Begins to end an instance. The call can be repeated: an instance that is ending stays as it is."""
        if instance.status.is_over:
            return instance
        ending = replace(instance, status=Status.TERMINATING, ended_at=at)
        self.instances.put(instance.id, ending, at)
        self.host.end(instance.id)
        self.agenda.at(at + self.faults.shutting_down_seconds, lambda then: self._ended(instance.id, then))
        return ending

    def _ended(self, instance_id: str, at: float) -> None:
        self.instances.put(instance_id, replace(self.find(instance_id), status=Status.TERMINATED), at)

    # what happens to machines

    def _shut_down_by_guest(self, instance_id: str) -> None:
        with self.lock:
            self.die(instance_id, self.settle())

    def die(self, instance_id: str, at: float) -> None:
        """The machine of an instance answers no more, because it died or shut itself down. The instance still
        exists and is charged: an instance cannot be stopped.

        Source: https://docs.lambda.ai/public-cloud/on-demand/billing/
        """
        instance = self.find(instance_id)
        if instance.status == Status.ACTIVE:
            self.instances.put(instance_id, replace(instance, status=Status.UNHEALTHY), at)
            self.host.end(instance_id)
