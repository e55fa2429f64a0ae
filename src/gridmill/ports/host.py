"""The interface through which a command uses the functions of its program: serve, join a grid, check this
machine.

The command line imports no implementation of an interface. `bootstrap` implements these protocols, and
`__main__` passes the implementation to the command line.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from gridmill.domain.frozen import dataclass
from gridmill.domain.preflight import PreflightRequest, PreflightResult
from gridmill.domain.reaping import ReapOrder, ReapReport
from gridmill.domain.recovery import RecoveryReport
from gridmill.domain.site import NodeUtilization, Site
from gridmill.domain.views import ControlView
from gridmill.ports.grid import Grid
from gridmill.ports.store import Store
from gridmill.settings import Settings

GRID_PORT = 6379
"""The default port of the head node of a grid of loose machines."""

Check = tuple[str, bool, str]
"""The subject of a check, whether the check passed, and the result of the check as text."""


class ServedNode(Protocol):
    """A control node that runs in this process, serves its API, and answers the clients of its home."""

    @property
    def grid(self) -> Grid:
        """The use cases of the control node."""

    @property
    def control(self) -> ControlView:
        """The state of the control node when it began to serve."""

    @property
    def url(self) -> str:
        """The URL of the REST API if the control node also listens on a TCP port; empty if it listens only
        on the Unix socket."""

    @property
    def ending(self) -> bool:
        """Whether the control node has begun to shut down."""

    def check_own(self) -> None:
        """Raise StoreInUseError if another control node has taken over the store of this control node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseGrid:
    """The site of a grid of loose machines, and the file with the token that other machines need to join."""

    site: Site
    token: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmAddress:
    """The part of a join line that has the address and the description of a farm. This part of the join line
    contains no secret."""

    name: str
    address: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantView:
    """A tenant of a farm, as the command `farm tenants` shows it. All times of a tenant are Unix times in
    seconds."""

    name: str
    version: str
    added: float
    last_contact: float
    user: int | None
    deployments: int
    revoked: bool
    disk_bytes: int = 0


class TenantRecords(Protocol):
    """The records of the tenants of this home's farm."""

    @property
    def listening(self) -> FarmAddress:
        """The address that the farm stored when it last started."""

    def tenants(self) -> tuple[TenantView, ...]:
        """All tenants that have joined the farm."""

    def invite(self, name: str = "") -> str:
        """Create an invitation to the farm, and return its secret. If `name` is not set, any new tenant may
        use the invitation. If `name` is set, only that tenant may use the invitation, to replace its
        certificate and token. Raises NotFoundError, ConflictError."""

    def revoke(self, name: str) -> None:
        """Revoke the access of the tenant: the farm refuses its requests after this call. Raises
        NotFoundError."""


class ServedFarm(Protocol):
    """A farm in this process that serves its tenants."""

    @property
    def address(self) -> str:
        """The address HOST:PORT on which the farm listens."""

    @property
    def fingerprint(self) -> str:
        """The SHA-256 hash (hex) of the certificate of the farm."""

    @property
    def one_user(self) -> str:
        """The reason why the farm serves only one tenant; empty if the farm serves several tenants."""

    def announce(self, known: FarmAddress) -> None:
        """Store the address of the farm, for join lines that are printed later."""

    def count_tenants(self) -> int:
        """The number of tenants that have joined the farm, including tenants that were revoked."""

    def invite(self) -> str:
        """Create an invitation to the farm, and return its secret."""


class JoinedNode(Protocol):
    """The provider node of a grid that runs on this machine."""

    @property
    def up(self) -> bool:
        """Whether the node runs."""

    def wait_until_up(self, beat: Callable[[], None]) -> None:
        """Wait until all processes of the node are running. The method calls `beat` repeatedly while it
        waits; `beat` may raise an error. Raises InputError, UnavailableError."""

    def leave(self) -> None:
        """Notify the jobs of the node, then stop the node. May be repeated."""

    def clear(self) -> None:
        """Wait until the processes of the node have ended, and kill processes that still run after some
        seconds."""


class Provider(Protocol):
    """The interface to this machine for commands that let a grid use it for jobs."""

    def memory_bytes(self) -> int:
        """The memory size of this machine, or the memory limit of the control group of this process."""

    def used_bytes(self) -> int:
        """The memory of this machine that is in use now."""

    def look(self, seconds: float) -> NodeUtilization:
        """Measure for `seconds` how busy the machine is, and how much of the use is caused by the machine's
        owner."""

    def seconds_since_input(self) -> float:
        """Return the number of seconds since a person last used this machine, or a very large number if
        nobody has used the machine yet."""

    def last_sign(self) -> str:
        """The kind of input by which a person last used this machine, or an empty text if nobody has used
        the machine yet."""

    def why_blind(self) -> str:
        """The reason why the last check could not observe every keyboard of this machine, or an empty text
        if the check observed all keyboards."""

    def claim(self, folder: Path) -> AbstractContextManager[None]:
        """Return a context manager; while it is active, this machine cannot join another grid. Raises
        InputError, UnavailableError."""

    def join(
        self,
        folder: Path,
        address: str,
        token: str,
        *,
        cpus: int | None,
        memory_bytes: int,
        behind: bool,
    ) -> JoinedNode:
        """Start a provider node of the grid at HOST:PORT on this machine. With `behind`, the node has a
        lower priority than all other programs on this machine. Raises InputError, UnavailableError."""


class Host(Protocol):
    """All functions that commands need from the program that runs them."""

    def preflight(self, question: PreflightRequest) -> PreflightResult:
        """Check a pipeline against its data. Problems in the data are part of the result; the method never
        raises them as errors."""

    def check_site(self, site: Site) -> None:
        """Raise InputError if a setting of the site does not belong to its kind."""

    def records(self, settings: Settings) -> Store:
        """Open the file of a home's store, and return the store with its records."""

    def serve(
        self,
        settings: Settings,
        address: tuple[str, int] | None,
        *,
        take_over: bool,
        say: Callable[[str], None],
    ) -> AbstractContextManager[ServedNode]:
        """Start a control node for the home, and return it. If `address` is set, the control node also
        listens on this address. Raises HomeInUseError, StoreInUseError, StorageError, UnavailableError,
        InputError."""

    def check_head(self, host: str) -> None:
        """Raise InputError if `host` is not an address of this machine, UnavailableError if Ray is not
        installed."""

    def gather(self, grid: Grid, settings: Settings, host: str, port: int) -> LooseGrid:
        """Start the head node of a grid of loose machines, and add its site. Raises UnavailableError."""

    def serve_farm(
        self,
        settings: Settings,
        place: Site,
        address: tuple[str, int],
        *,
        quota_bytes: int,
        retain_seconds: float,
        limits: tuple[int | None, int | None] = (None, None),
    ) -> AbstractContextManager[ServedFarm]:
        """Start a farm in this process, and return it. `limits` are the largest total size in bytes and the
        largest number of inodes of one tenant's files. A limit of None means half of the disk's bytes or
        inodes, and a limit of 0 means that there is no limit. Raises InputError, UnavailableError,
        HomeInUseError, StorageError."""

    def farm_desk(self, settings: Settings) -> AbstractContextManager[TenantRecords]:
        """Return the records of the farm of this home. Raises NotFoundError if this home has no farm."""

    def join_farm(self, settings: Settings, name: str, controller: str, line: str) -> None:
        """Use a join line to become a tenant of the farm at `controller`. Raises InputError, ConflictError,
        UnavailableError, StorageError."""

    def provider(self) -> Provider:
        """Return the `Provider`, with which commands let a grid use this machine for jobs."""

    def recover(self, settings: Settings, *, dry_run: bool) -> RecoveryReport:
        """Restore lost records of the home from the manifests in the storage root. Raises HomeInUseError,
        StorageError, InputError."""

    def reap(self, order: ReapOrder) -> ReapReport:
        """List the machines and other resources of Gridmill at a provider, and end them if the order says
        so. Raises NotFoundError, InputError, CredentialsError, UnavailableError."""

    def ssh_words(self, settings: Settings, lease: str) -> tuple[str, ...]:
        """Return the command line of `ssh` for the machine of a lease; its last word is the destination.
        Raises NotFoundError if this home has no keys for such a machine."""

    def checks(self, settings: Settings) -> Iterator[Check]:
        """Return all checks of this machine and of the farms that this home joined."""
