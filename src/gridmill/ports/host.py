"""The port through which commands use the program that runs them: serve, join a grid, check this machine.

The command line imports no adapter. `bootstrap` implements these protocols; `__main__` passes them to it.
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
"""The port of the head of a grid of loose machines, if its address has none."""

Check = tuple[str, bool, str]
"""The subject of a check, whether it passed, and what was found."""


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
        """Where the REST API listens beside the Unix socket; empty if it does not."""

    @property
    def ending(self) -> bool:
        """Whether the control node ends by itself."""

    def check_own(self) -> None:
        """Raise StoreInUseError if another control node took the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseGrid:
    """The site of a grid of loose machines, and the file with the token that other machines need."""

    site: Site
    token: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmAddress:
    """What a join line contains of a farm; nothing of it is secret."""

    name: str
    address: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantView:
    """A tenant as `farm tenants` shows it; times are Unix times."""

    name: str
    version: str
    added: float
    last_contact: float
    user: int | None
    deployments: int
    revoked: bool
    disk_bytes: int = 0


class TenantRecords(Protocol):
    """The records of the farm of this home: who may use it."""

    @property
    def listening(self) -> FarmAddress:
        """What the farm announced when it was started last."""

    def tenants(self) -> tuple[TenantView, ...]:
        """All tenants that joined."""

    def invite(self, name: str = "") -> str:
        """The secret of a new invitation: for anybody, or for the tenant of that name, to replace its
        certificate and token. Raises NotFoundError, ConflictError."""

    def revoke(self, name: str) -> None:
        """Refuse the tenant from now on. Raises NotFoundError."""


class ServedFarm(Protocol):
    """A farm in this process that serves its tenants."""

    @property
    def address(self) -> str:
        """HOST:PORT where it listens."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the certificate that it shows."""

    @property
    def one_user(self) -> str:
        """Why it serves one tenant only; empty: it serves several."""

    def announce(self, known: FarmAddress) -> None:
        """Keep what later join lines contain."""

    def count_tenants(self) -> int:
        """How many tenants joined, revoked ones included."""

    def invite(self) -> str:
        """The secret of a new invitation."""


class JoinedNode(Protocol):
    """This machine as a node of a grid."""

    @property
    def up(self) -> bool:
        """Whether the node runs."""

    def wait_until_up(self, beat: Callable[[], None]) -> None:
        """Wait; `beat` is called meanwhile and may raise. Raises InputError, UnavailableError."""

    def leave(self) -> None:
        """End the node: its jobs are given notice. May be repeated."""

    def clear(self) -> None:
        """Wait for the end of what ran on the node, and kill what is left after some seconds."""


class Provider(Protocol):
    """This machine as one that a grid may use."""

    def memory_bytes(self) -> int:
        """The memory of this machine, or the limit of this process's control group."""

    def used_bytes(self) -> int:
        """The memory that is used now."""

    def look(self, seconds: float) -> NodeUtilization:
        """Watch what is busy for that time, and what of it is the owner's."""

    def seconds_since_input(self) -> float:
        """The time since the last input at this machine; very long if there was none."""

    def last_sign(self) -> str:
        """The kind of that input; empty if there was none."""

    def why_blind(self) -> str:
        """Why the last look could not see every keyboard; empty if it could."""

    def claim(self, folder: Path) -> AbstractContextManager[None]:
        """While the context is open, this machine cannot join another grid. Raises InputError,
        UnavailableError."""

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
        """Start a node of the grid at HOST:PORT, `behind` everything else that runs here. Raises InputError,
        UnavailableError."""


class Host(Protocol):
    """All functions that commands need from the program that runs them."""

    def preflight(self, question: PreflightRequest) -> PreflightResult:
        """Check a pipeline against its data. Problems in the data are in the result and are never
        raised."""

    def check_site(self, site: Site) -> None:
        """Raise InputError for settings that the site's kind does not have."""

    def records(self, settings: Settings) -> Store:
        """The records of a home, from its file."""

    def serve(
        self,
        settings: Settings,
        address: tuple[str, int] | None,
        *,
        take_over: bool,
        say: Callable[[str], None],
    ) -> AbstractContextManager[ServedNode]:
        """A control node for the home, which serves at `address` too. Raises HomeInUseError, StoreInUseError,
        StorageError, UnavailableError, InputError."""

    def check_head(self, host: str) -> None:
        """Raise InputError if that is no address of this machine, UnavailableError without Ray."""

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
        """A farm in this process. `limits` are the bytes and the inodes that the files of a tenant may use
        (None: half of the disk's; 0: no limit). Raises InputError, UnavailableError, HomeInUseError,
        StorageError."""

    def farm_desk(self, settings: Settings) -> AbstractContextManager[TenantRecords]:
        """The records of the farm of this home. Raises NotFoundError if there is none."""

    def join_farm(self, settings: Settings, name: str, controller: str, line: str) -> None:
        """Become a tenant of the farm at `controller` by a join line. Raises InputError, ConflictError,
        UnavailableError, StorageError."""

    def provider(self) -> Provider:
        """This machine as one that a grid may use."""

    def recover(self, settings: Settings, *, dry_run: bool) -> RecoveryReport:
        """Restore lost records from the storage root. Raises HomeInUseError, StorageError,
        InputError."""

    def checks(self, settings: Settings) -> Iterator[Check]:
        """All checks of this machine and of the farms that this home joined."""
