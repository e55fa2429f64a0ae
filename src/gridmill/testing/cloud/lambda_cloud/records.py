"""The resources of the simulated Lambda Cloud."""

from enum import StrEnum

from gridmill.domain.frozen import dataclass
from gridmill.testing.cloud.machine_host import Ingress


class Status(StrEnum):
    """The status of an instance.

    Source: https://docs-api.lambda.ai/api/cloud#listInstances (schema InstanceStatus)
    """

    BOOTING = "booting"
    ACTIVE = "active"
    UNHEALTHY = "unhealthy"
    TERMINATING = "terminating"
    TERMINATED = "terminated"
    PREEMPTED = "preempted"

    @property
    def is_over(self) -> bool:
        """Returns whether an instance in this status can never be used again."""
        return self in (Status.TERMINATING, Status.TERMINATED, Status.PREEMPTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """An instance. Times are Unix times in seconds. `active_at` is the time at which it booted, from which it
    is charged, and `ended_at` the time of the request that ended it."""

    id: str
    region: str
    type: str
    image_id: str
    launched_at: float
    visible_from: float
    address: str
    public_address: str
    status: Status = Status.BOOTING
    name: str | None = None
    hostname: str = ""
    key_name: str = ""
    public_key: str = ""
    user_data: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    rulesets: tuple[str, ...] = ()
    jupyter_token: str = ""
    active_at: float | None = None
    ended_at: float | None = None

    @property
    def runs(self) -> bool:
        """Returns whether the instance exists and is not ending."""
        return not self.status.is_over


@dataclass(frozen=True, slots=True, kw_only=True)
class SshKey:
    """An SSH public key. Several keys can have the same name."""

    id: str
    name: str
    public_key: str
    visible_from: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of the firewall that allows incoming traffic. Without ports, the protocol is `icmp`."""

    protocol: str
    ports: tuple[int, int] | None
    network: str
    description: str

    @property
    def ingress(self) -> Ingress | None:
        """Returns the TCP ports that the rule opens, if it opens any."""
        if self.protocol not in ("tcp", "all"):
            return None
        first, last = self.ports or (1, 65_535)
        return Ingress(first_port=first, last_port=last, network=self.network)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruleset:
    """Rules of the firewall for some instances of one region."""

    id: str
    name: str
    region: str
    rules: tuple[Rule, ...]
    created_at: float
