"""The route to a site in another place: the staging of inputs, and the bytes and rates of its transfers.

It records what attempts transferred in each direction, the rate of the route, and the versions that the site
already has.
"""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from gridmill.domain.frozen import dataclass


class Staging(StrEnum):
    """How data is transferred. `direct`: through the connection to the farm. `export`: by objects of a bucket
    that both sides can access; each object is deleted after its use. `shared`: by a bucket that keeps the
    objects for other jobs and other farms."""

    DIRECT = "direct"
    EXPORT = "export"
    SHARED = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A transfer in one direction: `transferred_bytes` were sent in `seconds`. `reused_bytes` were not sent
    because the receiver had them."""

    transferred_bytes: int = 0
    reused_bytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Transfer") -> "Transfer":
        return Transfer(
            transferred_bytes=self.transferred_bytes + other.transferred_bytes,
            reused_bytes=self.reused_bytes + other.reused_bytes,
            seconds=self.seconds + other.seconds,
        )

    @property
    def bytes_per_second(self) -> float | None:
        """The rate of the transfer; None if nothing was sent."""
        return self.transferred_bytes / self.seconds if self.transferred_bytes and self.seconds > 0 else None

    @property
    def reused_share(self) -> float | None:
        """The reused part of all bytes, from 0 to 1; None if there were no bytes."""
        whole = self.transferred_bytes + self.reused_bytes
        return self.reused_bytes / whole if whole else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTransfers:
    """The transfers of an attempt to the site (`upload`) and back (`download`), and the way of staging.
    `round_trip_seconds` is None if it is unknown."""

    upload: Transfer = Transfer()
    download: Transfer = Transfer()
    staging: Staging = Staging.DIRECT
    round_trip_seconds: float | None = None

    def __add__(self, other: "AttemptTransfers") -> "AttemptTransfers":
        trips = [one.round_trip_seconds for one in (self, other) if one.round_trip_seconds is not None]
        return AttemptTransfers(
            upload=self.upload + other.upload,
            download=self.download + other.download,
            staging=self.staging,
            round_trip_seconds=min(trips, default=None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRate:
    """The rate of one direction: `transferred_bytes` took `seconds`, with a lower weight of older transfers.
    `transfers` is the number of attempts whose transfers were measured; 0 means that only the probe was
    measured when the site was added."""

    transferred_bytes: float
    seconds: float
    transfers: int = 0

    @property
    def bytes_per_second(self) -> float:
        """The expected rate of the next transfer."""
        return self.transferred_bytes / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRates:
    """The rates of both directions; None: not measured yet."""

    upload: TransferRate | None = None
    download: TransferRate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The measured route to a site; None: not measured yet. `upload` and `download` are rates through the
    farm itself, and `others` are rates of other ways of staging. `staged` are ids of versions that were sent
    to the site or made there, the newest last; an evicted version is sent again."""

    upload: TransferRate | None = None
    download: TransferRate | None = None
    others: Mapping[str, TransferRates] = field(default_factory=dict)
    round_trip_seconds: float | None = None
    staged: tuple[str, ...] = ()

    def rates(self, staging: Staging | None) -> TransferRates:
        """The rates of that way of staging."""
        if staging in (None, Staging.DIRECT):
            return TransferRates(upload=self.upload, download=self.download)
        return self.others.get(str(staging), TransferRates())
