"""The interface between a simulated cloud and the machines that it starts."""

from collections.abc import Callable
from enum import StrEnum
from ipaddress import IPv4Network
from typing import Protocol

from gridmill.domain.frozen import dataclass


class MetadataKind(StrEnum):
    """Which instance metadata service a machine has."""

    NONE = "none"
    EC2 = "ec2"
    GCE = "gce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingress:
    """TCP ports that computers of a network can reach. All other ports cannot be reached from outside."""

    first_port: int
    last_port: int
    network: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """A machine to start. `address` is its private and `public_address` its public IPv4 address (empty if it
    has none). `user_data` are the bytes that cloud-init gets. `public_keys` are OpenSSH public keys by name.
    `metadata` are the contents of the instance metadata by path, such as `placement/region`. `logins` are
    pairs of a user, who is created with the right to use sudo, and an OpenSSH public key. `startup_script` is
    run as root after cloud-init. `image_id` is an id of `MachineHost.save`, whose content the disk of the
    machine has; empty: the disk is new."""

    id: str
    host_name: str
    address: str
    public_address: str
    user_data: bytes
    public_keys: tuple[tuple[str, str], ...]
    metadata: tuple[tuple[str, str], ...]
    ingress: tuple[Ingress, ...] = ()
    tokens_required: bool = True
    metadata_kind: MetadataKind = MetadataKind.EC2
    logins: tuple[tuple[str, str], ...] = ()
    startup_script: bytes = b""
    boot_seconds: float = 0.0
    boots: bool = True
    image_id: str = ""


class MachineHost(Protocol):
    """Starts and ends the machines of a simulated cloud."""

    private_network: IPv4Network
    """The addresses of all simulated private networks."""
    public_network: IPv4Network
    """The addresses that the simulation uses as public addresses."""
    address: str
    """The address of this computer for the machines. It is empty if the machines are not real."""

    def start(self, spec: MachineSpec, ended: Callable[[str], None]) -> None:
        """Starts a machine. `ended` is called with the id of the machine if the machine shuts itself down."""

    def end(self, machine_id: str) -> None:
        """Ends a machine and all its processes. The call can be repeated."""

    def set_metadata(self, machine_id: str, path: str, text: str) -> None:
        """Sets an item of the instance metadata of a machine, such as `spot/instance-action`."""

    def set_ingress(self, machine_id: str, ingress: tuple[Ingress, ...]) -> None:
        """Replaces what computers outside can reach of a machine."""

    def console(self, machine_id: str) -> bytes:
        """Returns the console output of a machine. It is empty if nothing was written."""

    def egress_bytes(self, machine_id: str) -> int:
        """Returns the bytes that a machine has sent to other networks since it was started."""

    def save(self, machine_id: str, image_id: str) -> None:
        """Stores the present content of a machine's disk as an image. If the machine does not run, the image
        has no content, and machines that boot from it have a new disk."""

    def close(self) -> None:
        """Ends all machines. The call can be repeated."""


class NoMachines:
    """A host whose machines are only states. `add_egress` and `shut_down` replace what real machines do."""

    def __init__(self) -> None:
        # 198.18.0.0/15 is reserved for benchmarks (RFC 2544): nothing real has such an address.
        self.private_network = IPv4Network("10.0.0.0/13")
        self.public_network = IPv4Network("198.18.0.0/15")
        self.address = ""
        self.metadata: dict[str, dict[str, str]] = {}
        self.ingress: dict[str, tuple[Ingress, ...]] = {}
        self._ended: dict[str, Callable[[str], None]] = {}
        self._egress: dict[str, int] = {}
        self.saved: dict[str, str] = {}
        """For each image, the machine whose disk it contains."""

    def start(self, spec: MachineSpec, ended: Callable[[str], None]) -> None:
        """See MachineHost."""
        self.metadata[spec.id] = dict(spec.metadata)
        self.ingress[spec.id] = spec.ingress
        self._ended[spec.id] = ended

    def end(self, machine_id: str) -> None:
        """See MachineHost."""
        self._ended.pop(machine_id, None)

    def shut_down(self, machine_id: str) -> None:
        """Does what the command `shutdown -h now` does on a real machine."""
        ended = self._ended.get(machine_id)
        if ended is not None:
            ended(machine_id)

    def set_metadata(self, machine_id: str, path: str, text: str) -> None:
        """See MachineHost."""
        self.metadata.setdefault(machine_id, {})[path] = text

    def set_ingress(self, machine_id: str, ingress: tuple[Ingress, ...]) -> None:
        """See MachineHost."""
        self.ingress[machine_id] = ingress

    def console(self, machine_id: str) -> bytes:
        """See MachineHost."""
        return b""

    def add_egress(self, machine_id: str, size_bytes: int) -> None:
        """Counts bytes that a machine sends to other networks."""
        self._egress[machine_id] = self._egress.get(machine_id, 0) + size_bytes

    def egress_bytes(self, machine_id: str) -> int:
        """See MachineHost."""
        return self._egress.get(machine_id, 0)

    def save(self, machine_id: str, image_id: str) -> None:
        """See MachineHost."""
        if machine_id in self._ended:
            self.saved[image_id] = machine_id

    def close(self) -> None:
        """See MachineHost."""
        self._ended.clear()
