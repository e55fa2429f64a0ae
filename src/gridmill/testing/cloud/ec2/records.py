"""The resources of the simulated EC2."""

from enum import StrEnum

from gridmill.domain.frozen import dataclass
from gridmill.testing.cloud.ec2.catalogue import ACCOUNT, Image

Tags = tuple[tuple[str, str], ...]


class State(StrEnum):
    """The state of an instance.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceState.html
    """

    PENDING = "pending"
    RUNNING = "running"
    SHUTTING_DOWN = "shutting-down"
    TERMINATED = "terminated"
    STOPPING = "stopping"
    STOPPED = "stopped"

    @property
    def number(self) -> int:
        """Returns the code of the state in answers."""
        return _NUMBERS[self]

    @property
    def uses_quota(self) -> bool:
        """Returns whether an instance in this state counts towards the quotas."""
        return self in (State.PENDING, State.RUNNING)

    @property
    def is_over(self) -> bool:
        """Returns whether an instance in this state can never run again."""
        return self in (State.SHUTTING_DOWN, State.TERMINATED)


_NUMBERS = {
    State.PENDING: 0,
    State.RUNNING: 16,
    State.SHUTTING_DOWN: 32,
    State.TERMINATED: 48,
    State.STOPPING: 64,
    State.STOPPED: 80,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """An instance. Times are Unix times in seconds. `runs` are its times in the state `running`; the last of
    them has no end while the instance runs. `user_data` is the base64 text of the request."""

    id: str
    reservation_id: str
    launch_index: int
    region: str
    zone: str
    type: str
    image_id: str
    architecture: str
    launched_at: float
    visible_from: float
    vpc_id: str
    subnet_id: str
    address: str
    interface_id: str
    state: State = State.PENDING
    public_address: str = ""
    has_public_address: bool = False
    """Whether the instance got a public address, which it has only while it runs."""
    runs: tuple[tuple[float, float | None], ...] = ()
    reason_code: str = ""
    reason_message: str = ""
    transition: str = ""
    tags: Tags = ()
    client_token: str = ""
    key_name: str = ""
    groups: tuple[str, ...] = ()
    user_data: str = ""
    profile: str = ""
    is_spot: bool = False
    spot_request_id: str = ""
    hourly_micros: int = 0
    shutdown_behavior: str = "stop"
    is_protected: bool = False
    tokens_required: bool = True
    shows_tags: bool = False
    """Whether the tags are in the instance metadata."""
    volumes: tuple[tuple[str, str, bool], ...] = ()
    """Device name, id, and whether the volume is deleted when the instance is terminated."""
    interrupted_at: float | None = None
    is_broken: bool = False
    """The machine is dead, and only status checks show it."""

    def tag(self, name: str) -> str | None:
        """Returns the value of a tag, or None."""
        return dict(self.tags).get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A disk. `instance_id` is empty if the disk is not attached."""

    id: str
    region: str
    zone: str
    size_gb: int
    kind: str
    created_at: float
    visible_from: float
    instance_id: str = ""
    device: str = ""
    tags: Tags = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot of a disk, which is charged until it is deleted. It is `pending` until `completed_at`.
    `image_id` is the image that was made together with it."""

    id: str
    volume_id: str
    size_gb: int
    created_at: float
    completed_at: float
    visible_from: float
    image_id: str
    description: str
    tags: Tags = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnImage:
    """An image that the account has made of one of its instances. It is `pending` until `available_at`, and
    then `available`, or `failed` if `is_failing`. `disks` has the device name, the id of the snapshot, the
    size in GB and the type of each disk, and whether the disk is deleted together with its instance."""

    id: str
    shape: Image
    instance_id: str
    created_at: float
    available_at: float
    visible_from: float
    disks: tuple[tuple[str, str, int, str, bool], ...]
    is_failing: bool = False
    tags: Tags = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of a security group that allows incoming traffic."""

    id: str
    protocol: str
    first_port: int | None
    last_port: int | None
    network: str = ""
    source_group: str = ""
    """The id of the group whose members may send. A rule has a network or a source group."""
    description: str = ""

    @property
    def place(self) -> tuple[object, ...]:
        """Returns what makes two rules the same rule."""
        return (self.protocol, self.first_port, self.last_port, self.network, self.source_group)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityGroup:
    """A security group."""

    id: str
    name: str
    description: str
    vpc_id: str
    visible_from: float
    rules: tuple[Rule, ...] = ()
    tags: Tags = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """An SSH public key."""

    id: str
    name: str
    public_key: str
    kind: str
    fingerprint: str
    created_at: float
    tags: Tags = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """An Elastic IP address, which is charged until it is released."""

    allocation_id: str
    address: str
    allocated_at: float
    tags: Tags = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who a request is from. `denied` are patterns of actions that the policies of the user do not allow,
    such as `ec2:Terminate*`."""

    access_key: str
    secret_key: str
    user: str
    denied: tuple[str, ...] = ()
    is_revoked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A role. `trust` is the JSON document that says who may use it, `attached` the ARNs of its managed
    policies, and `inline` the names and the JSON documents of its other policies."""

    name: str
    id: str
    trust: str
    created_at: float
    attached: tuple[str, ...] = ()
    inline: tuple[tuple[str, str], ...] = ()

    @property
    def arn(self) -> str:
        """Returns the name of the role in policies."""
        return f"arn:aws:iam::{ACCOUNT}:role/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceProfile:
    """A container of at most one role, which a launch names. `role` is the name of the role, or empty."""

    name: str
    id: str
    created_at: float
    role: str = ""

    @property
    def arn(self) -> str:
        """Returns the name of the instance profile in policies and launches."""
        return f"arn:aws:iam::{ACCOUNT}:instance-profile/{self.name}"
