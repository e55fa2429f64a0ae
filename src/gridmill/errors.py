"""The error tree: every class has a code, `retryable` and a hint.

The tree shows which class is the base of which other class::

    GridmillError
    ├── InputError               The value that the user gave is wrong.
    │   ├── PipelineError        A pipeline file has an error, with file, line and field.
    │   ├── DataError            The data has an error, with file, row and column.
    │   └── UnsafePathError      A path leads out of the storage root.
    ├── NotFoundError            There is no such record.
    ├── ConflictError            The record changed, or its state does not allow the transition.
    │   ├── StaleVersionError    Somebody else changed the record (compare-and-set).
    │   ├── HomeInUseError       Another control node owns this home.
    │   └── StoreInUseError      Another control node owns this record store.
    ├── CapacityError            No site is large enough.
    │   ├── NoMachineError       The cloud provider has no free machine of this type now.
    │   └── QuotaError           The quota of the account does not allow the machine.
    ├── RefusedError             The cloud provider refuses a request for ever.
    ├── MachineFaultError        A rented machine is defective and must be replaced.
    │   └── UnfitMachineError    No machine with this image and these settings can be used.
    ├── JobError                 A job ended without success.
    │   ├── MemoryExceededError  A job exceeded its memory limit.
    │   ├── TimeLimitError       A job exceeded its timeout.
    │   └── InterruptedRunError  A run was stopped before its end.
    ├── UnavailableError         A part of Gridmill does not answer now.
    │   ├── CredentialsError     The cloud provider refuses the credentials.
    │   ├── UnreachedError       Nothing listens at the address, and no request was sent.
    │   ├── HungNodeError        The process of the control node exists but does not answer.
    │   ├── AwayError            Nothing answers at the address.
    │   ├── InstallError         Packages could not be installed, for example without a package index.
    │   └── StorageError         A disk is full, a file cannot be read, or a similar problem.
    │       └── StoreLostError   The database server of the record store does not answer.
    └── InternalError            Gridmill itself has a defect.

`TABLE` maps the code of an error to its HTTP status and its exit code. The API uses it to convert an error
into a status and a body, and the SDK uses it to convert the body back into the same class.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, TypeVar

E = TypeVar("E", bound="InputError")


class GridmillError(Exception):
    """This class is the base class of all errors. The attribute `message` states what failed, `place` states
    where it failed, and `hint` states what to do next."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "", place: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint
        self.place = place

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


def explained(error: GridmillError) -> str:
    """Returns the error and its hint as sentences on one line."""
    text = str(error).removesuffix(".")
    end = "" if text.endswith(("?", "!")) else "."
    return f"{text}{end} {error.hint}" if error.hint else str(error)


class InputError(GridmillError):
    """A value that the user gave is wrong. If several values are wrong, `problems` has the place, the message
    and the hint of each error."""

    code = "invalid-input"
    problems: tuple[tuple[str, str, str], ...] = ()


class PipelineError(InputError):
    """A pipeline file has an error, and `place` has the file, the line and the field of the error."""

    code = "invalid-pipeline"


class DataError(InputError):
    """Data does not match its declaration, and `place` names the file and the row of the data."""

    code = "invalid-data"


class UnsafePathError(InputError):
    """A path leads out of the storage root."""

    code = "unsafe-path"
    default_hint = "Use a path below the storage root, without '..' and without links that lead out of it."


class NotFoundError(GridmillError):
    """No object of this type has this name."""

    code = "not-found"
    default_hint = "`gridmill list` shows the types of objects; `gridmill list runs` shows the runs."


class ConflictError(GridmillError):
    """The state of the object does not allow the operation."""

    code = "conflict"


class StaleVersionError(ConflictError):
    """A record was changed by somebody else after it was read."""

    code = "stale-version"
    retryable = True
    default_hint = "Read the record again and repeat the change."


class HomeInUseError(ConflictError):
    """Another control node uses this home."""

    code = "home-in-use"
    default_hint = (
        "Use that control node, stop it with `gridmill down`, or set GRIDMILL_HOME to another folder."
    )


class StoreInUseError(ConflictError):
    """Another control node, perhaps on another machine, uses the database of the records."""

    code = "store-in-use"
    default_hint = "Stop that control node with `gridmill down`, or set GRIDMILL_STORE to another database."


class CapacityError(GridmillError):
    """No site is large enough for the requested amounts."""

    code = "no-capacity"
    default_hint = "Request less, or add a larger site; `gridmill list sites` shows the sizes."


class NoMachineError(CapacityError):
    """The provider has no free machine of this type in this zone now. The request may succeed in another
    zone or later. No machine was started."""

    code = "no-machine"
    default_hint = "Allow other instance types or regions, or try again later."


class QuotaError(CapacityError):
    """The quota of the account does not allow this machine in this region. No machine was started."""

    code = "quota"
    default_hint = "Ask the provider for a higher quota, or allow other regions or instance types."


class RefusedError(GridmillError):
    """The provider has refused a request for a reason that does not change by itself, such as an unknown
    image or missing rights. No machine was started."""

    code = "refused-by-provider"


class MachineFaultError(GridmillError):
    """A rented machine is defective or differs from the request: a GPU is missing, the driver does not
    match, or the machine never answers. Another machine may work."""

    code = "machine-fault"


class UnfitMachineError(MachineFaultError):
    """A rented machine works, but its image or the settings of the site do not fit, so that another machine
    would not fit either."""

    code = "machine-unfit"


class JobError(GridmillError):
    """A job ended without success. For a job of a run, the error has the `run`, the `job`, its `exit_code`
    (None if there is none) and the last lines of its `log`."""

    code = "job-failed"
    default_hint = "`gridmill logs RUN JOB` shows the log of the job."

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        place: str = "",
        run: str = "",
        job: str = "",
        exit_code: int | None = None,
        log: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, hint=hint, place=place)
        self.run = run
        self.job = job
        self.exit_code = exit_code
        self.log = log


class MemoryExceededError(JobError):
    """A job exceeded its memory limit."""

    code = "memory-exceeded"


class TimeLimitError(JobError):
    """A job exceeded its `timeout`."""

    code = "time-limit"


class InterruptedRunError(JobError):
    """A run was stopped before its end."""

    code = "interrupted"
    default_hint = "`gridmill resume RUN` continues the run."


class UnavailableError(GridmillError):
    """A server or process that the operation needs does not answer now."""

    code = "unavailable"
    retryable = True


class CredentialsError(UnavailableError):
    """The provider refuses the credentials. Calls are repeated, because somebody can renew the
    credentials."""

    code = "credentials"
    default_hint = "Renew the credentials of the provider; Gridmill then continues."


class UnreachedError(UnavailableError):
    """No server listens at the address. No request was sent, so the client can try another server."""

    code = "unreached"


class HungNodeError(UnavailableError):
    """The process of the control node exists but does not answer, so it is unknown whether the control node
    executed the request."""

    code = "hung"


class AwayError(UnavailableError):
    """No server answers at the address, or the address cannot be reached."""

    code = "away"


class InstallError(UnavailableError):
    """Packages could not be installed because the package index did not answer or the installer was killed.
    The requirements of the job may nevertheless be correct."""

    code = "install"


class StorageError(UnavailableError):
    """Storage cannot be read or written, for example because the disk is full or a permission is missing."""

    code = "storage"


class StoreLostError(StorageError):
    """The database server of the records does not answer or closed the connection. It is unknown whether the
    last write was stored."""

    code = "store-lost"
    default_hint = "No record is incomplete. Start the database server again; Gridmill then continues."


class InternalError(GridmillError):
    """A defect of Gridmill itself."""

    code = "internal"
    default_hint = "Please report this and attach HOME/gridmill-errors.log."


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    """One row of the error table."""

    error: type[GridmillError]
    http_status: int
    exit_code: int


TABLE: dict[str, ErrorRow] = {
    row.error.code: row
    for row in (
        ErrorRow(error=GridmillError, http_status=500, exit_code=1),
        ErrorRow(error=JobError, http_status=409, exit_code=1),
        ErrorRow(error=MemoryExceededError, http_status=409, exit_code=1),
        ErrorRow(error=TimeLimitError, http_status=409, exit_code=1),
        ErrorRow(error=InputError, http_status=422, exit_code=2),
        ErrorRow(error=PipelineError, http_status=422, exit_code=2),
        ErrorRow(error=DataError, http_status=422, exit_code=2),
        ErrorRow(error=UnsafePathError, http_status=422, exit_code=2),
        ErrorRow(error=NotFoundError, http_status=404, exit_code=4),
        ErrorRow(error=ConflictError, http_status=409, exit_code=5),
        ErrorRow(error=StaleVersionError, http_status=409, exit_code=5),
        ErrorRow(error=HomeInUseError, http_status=409, exit_code=6),
        ErrorRow(error=StoreInUseError, http_status=409, exit_code=6),
        ErrorRow(error=CapacityError, http_status=409, exit_code=7),
        ErrorRow(error=NoMachineError, http_status=409, exit_code=7),
        ErrorRow(error=QuotaError, http_status=409, exit_code=7),
        ErrorRow(error=RefusedError, http_status=502, exit_code=7),
        ErrorRow(error=MachineFaultError, http_status=502, exit_code=7),
        ErrorRow(error=UnfitMachineError, http_status=502, exit_code=7),
        ErrorRow(error=UnavailableError, http_status=503, exit_code=8),
        ErrorRow(error=CredentialsError, http_status=503, exit_code=8),
        ErrorRow(error=UnreachedError, http_status=503, exit_code=8),
        ErrorRow(error=HungNodeError, http_status=503, exit_code=8),
        ErrorRow(error=AwayError, http_status=503, exit_code=8),
        ErrorRow(error=InstallError, http_status=503, exit_code=8),
        ErrorRow(error=StorageError, http_status=507, exit_code=8),
        ErrorRow(error=StoreLostError, http_status=503, exit_code=8),
        ErrorRow(error=InternalError, http_status=500, exit_code=70),
        ErrorRow(error=InterruptedRunError, http_status=409, exit_code=130),
    )
}


MOST_PROBLEMS = 10
"""The number of problems that one error lists."""


@contextmanager
def collected(errors: list[InputError]) -> Iterator[None]:
    """A context that adds an InputError to the list, so that further checks run before `raise_all` is
    called."""
    try:
        yield
    except InputError as error:
        errors.append(error)


def raise_all(errors: Sequence[InputError], place: str) -> None:
    """Raises one error for all errors (see `combined`). Without errors, the function does nothing."""
    if errors:
        raise combined(errors, place)


def combined(errors: Sequence[E], place: str) -> E:
    """Returns one error for several errors of the same class at `place`. It lists at most MOST_PROBLEMS of
    them. A single error is returned unchanged."""
    if len(errors) == 1:
        return errors[0]
    shown, more = errors[:MOST_PROBLEMS], len(errors) - MOST_PROBLEMS
    lines = [f"{len(errors)} problems", *map(str, shown), *([f"and {more} more"] if more > 0 else [])]
    hints = dict.fromkeys(error.hint for error in shown if error.hint)
    whole = type(errors[0])("\n  ".join(lines), place=place, hint=" ".join(hints))
    whole.problems = tuple((error.place, error.message, error.hint) for error in errors)
    return whole


def to_body(error: GridmillError) -> dict[str, object]:
    """Returns the error in the form in which the API sends it and `--json` prints it."""
    return {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "place": error.place,
        "retryable": error.retryable,
    }


def from_body(body: dict[str, object]) -> GridmillError:
    """Returns the error that `to_body` has written. If the code of the error is unknown, the function
    returns a GridmillError."""
    row = TABLE.get(str(body.get("code")), TABLE["error"])
    return row.error(
        str(body.get("message", "")), hint=str(body.get("hint", "")), place=str(body.get("place", ""))
    )
