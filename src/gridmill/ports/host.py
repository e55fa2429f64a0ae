"""The port through which commands use the program that runs them: serve, join a grid, check this machine.

The command line imports no adapter. `bootstrap` implements these protocols, and `__main__` passes the
implementation to the command line.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from gridmill.domain.frozen import dataclass
from gridmill.domain.preflight import PreflightRequest, PreflightResult
from gridmill.domain.recovery import RecoveryReport
from gridmill.domain.site import NodeUtilization, Site
from gridmill.domain.views import ControlView
from gridmill.ports.grid import Grid
from gridmill.ports.store import Store
from gridmill.settings import Settings

GRID_PORT = 6379
"""The default port of the head of a grid of loose machines."""

Check = tuple[str, bool, str]
"""The subject of a check, whether the check passed, and the result as text."""


class ServedNode(Protocol):
    """A control node in this process that serves its API and the clients of its home."""

    @property
    def grid(self) -> Grid:
        """The use cases of the control node."""

    @property
    def control(self) -> ControlView:
        """The control node as it was when it began to serve."""

    @property
    def url(self) -> str:
        """The URL of the REST API if it also listens on a TCP port; empty if it listens only on the Unix
        socket."""

    @property
    def ending(self) -> bool:
        """Whether the control node is shutting down by itself."""

    def check_own(self) -> None:
        """Raise StoreInUseError if another control node has taken over the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseGrid:
    """The site of a grid of loose machines, and the file with the token that other machines need."""

    site: Site
    token: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmAddress:
    """The part of a join line that describes a farm. It contains no secret."""

    name: str
    address: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantView:
    """A tenant as `farm tenants` shows it. Times are Unix times in seconds."""

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
        """The address that the farm announced at its last start."""

    def tenants(self) -> tuple[TenantView, ...]:
        """All tenants that joined the farm."""

    def invite(self, name: str = "") -> str:
        """The secret of a new invitation. Without `name`, any new tenant may use it. With `name`, only that
        tenant may use it, to replace its certificate and token. Raises NotFoundError, ConflictError."""

    def revoke(self, name: str) -> None:
        """Refuse the tenant from now on. Raises NotFoundError."""


class ServedFarm(Protocol):
    """A farm in this process that serves its tenants."""

    @property
    def address(self) -> str:
        """The address HOST:PORT on which the farm listens."""

    @property
    def fingerprint(self) -> str:
        """The SHA-256 hash (hex) of the farm's certificate."""

    @property
    def one_user(self) -> str:
        """The reason why the farm serves only one tenant; empty if it serves several tenants."""

    def announce(self, known: FarmAddress) -> None:
        """Store the address for later join lines."""

    def count_tenants(self) -> int:
        """The number of tenants that joined, including revoked ones."""

    def invite(self) -> str:
        """The secret of a new invitation."""


class JoinedNode(Protocol):
    """This machine as a node of a grid."""

    @property
    def up(self) -> bool:
        """Whether the node runs."""

    def wait_until_up(self, beat: Callable[[], None]) -> None:
        """Wait until the node runs. `beat` is called repeatedly during the wait and may raise. Raises
        InputError, UnavailableError."""

    def leave(self) -> None:
        """Stop the node after notice to its jobs. May be repeated."""

    def clear(self) -> None:
        """Wait until the processes of the node have ended, and kill the remaining processes after some
        seconds."""


class Provider(Protocol):
    """This machine as a machine that a grid may use."""

    def memory_bytes(self) -> int:
        """The memory of this machine, or the memory limit of this process's control group."""

    def used_bytes(self) -> int:
        """The memory in use now."""

    def look(self, seconds: float) -> NodeUtilization:
        """Measure for that time how busy the machine is, and which part of the use is the owner's."""

    def seconds_since_input(self) -> float:
        """The time since the last input at this machine; very long if there was none."""

    def last_sign(self) -> str:
        """The kind of the last input; empty if there was none."""

    def why_blind(self) -> str:
        """The reason why the last check could not observe every keyboard; empty if it could."""

    def claim(self, folder: Path) -> AbstractContextManager[None]:
        """A context in which this machine cannot join another grid. Raises InputError, UnavailableError."""

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
        """Start a node of the grid at HOST:PORT. With `behind`, the node has a lower priority than all other
        programs on this machine. Raises InputError, UnavailableError."""


class Host(Protocol):
    """All functions that commands need from the program that runs them."""

    def preflight(self, question: PreflightRequest) -> PreflightResult:
        """Check a pipeline against its data. Problems in the data are part of the result and are never
        raised."""

    def check_site(self, site: Site) -> None:
        """Raise InputError for settings that the site's kind does not have."""

    def records(self, settings: Settings) -> Store:
        """The store with the records of a home, opened from its file."""

    def serve(
        self,
        settings: Settings,
        address: tuple[str, int] | None,
        *,
        take_over: bool,
        say: Callable[[str], None],
    ) -> AbstractContextManager[ServedNode]:
        """A control node for the home. If `address` is set, the control node also serves at this address.
        Raises HomeInUseError, StoreInUseError, StorageError, UnavailableError, InputError."""

    def check_head(self, host: str) -> None:
        """Raise InputError if `host` is not an address of this machine, UnavailableError if Ray is not
        installed."""

    def gather(self, grid: Grid, settings: Settings, host: str, port: int) -> LooseGrid:
        """Start the head of a grid of loose machines, and add its site. Raises UnavailableError."""

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
        """A farm in this process. `limits` are the largest total size in bytes and the largest number of
        inodes of a tenant's files (None: half of the disk's; 0: no limit). Raises InputError,
        UnavailableError, HomeInUseError, StorageError."""

    def farm_desk(self, settings: Settings) -> AbstractContextManager[TenantRecords]:
        """The records of the farm of this home. Raises NotFoundError if there is none."""

    def join_farm(self, settings: Settings, name: str, controller: str, line: str) -> None:
        """Use a join line to become a tenant of the farm at `controller`. Raises InputError, ConflictError,
        UnavailableError, StorageError."""

    def provider(self) -> Provider:
        """This machine as a machine that a grid may use."""

    def recover(self, settings: Settings, *, dry_run: bool) -> RecoveryReport:
        """Restore lost records from the storage root. Raises HomeInUseError, StorageError,
        InputError."""

    def checks(self, settings: Settings) -> Iterator[Check]:
        """All checks of this machine and of the farms that this home joined."""
