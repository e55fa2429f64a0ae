"""This module has the route to a site in another place: the staging of inputs, and the bytes and rates of
transfers.

The route records what attempts transferred in each direction, the transfer rate, and the versions that the
site already has.
"""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from gridmill.domain.frozen import dataclass


class Staging(StrEnum):
    """The way in which data is transferred to a farm and back. `direct` transfers data through the
    connection to the farm. `export` transfers data through objects of a bucket that both sides can access.
    Each object is deleted after its use. `shared` transfers data through objects of a bucket that are kept
    for other jobs and other farms."""

    DIRECT = "direct"
    EXPORT = "export"
    SHARED = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A transfer of data in one direction. `transferred_bytes` is the number of bytes that were sent, and
    `seconds` is the duration of the transfer. `reused_bytes` is the number of bytes that were not sent
    because the receiver already had them."""

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
        """The rate of the transfer in bytes per second, or None if no bytes were sent."""
        return self.transferred_bytes / self.seconds if self.transferred_bytes and self.seconds > 0 else None

    @property
    def reused_share(self) -> float | None:
        """The fraction of all bytes that were reused, from 0 to 1, or None if the transfer had no bytes."""
        whole = self.transferred_bytes + self.reused_bytes
        return self.reused_bytes / whole if whole else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTransfers:
    """The transfers of an attempt to the site (`upload`) and back (`download`), and the way of staging.
    `early` is the part of its inputs that was sent before the attempt started, while another job ran.
    `round_trip_seconds` is None if the round-trip time is unknown."""

    upload: Transfer = Transfer()
    download: Transfer = Transfer()
    staging: Staging = Staging.DIRECT
    round_trip_seconds: float | None = None
    early: Transfer = Transfer()

    def __add__(self, other: "AttemptTransfers") -> "AttemptTransfers":
        trips = [one.round_trip_seconds for one in (self, other) if one.round_trip_seconds is not None]
        return AttemptTransfers(
            upload=self.upload + other.upload,
            download=self.download + other.download,
            staging=self.staging,
            early=self.early + other.early,
            round_trip_seconds=min(trips, default=None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRate:
    """The rate of transfers in one direction. `transferred_bytes` is the sum of the transferred bytes, and
    `seconds` is the sum of the durations of the transfers. Older transfers have a lower weight in both sums.
    `transfers` is the number of attempts whose transfers were measured; 0 means that only the probe was
    measured, when the site was added."""

    transferred_bytes: float
    seconds: float
    transfers: int = 0

    @property
    def bytes_per_second(self) -> float:
        """The expected rate of the next transfer in bytes per second."""
        return self.transferred_bytes / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRates:
    """The transfer rates of both directions; a rate is None if it was not measured yet."""

    upload: TransferRate | None = None
    download: TransferRate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The measured route to a site; a field is None if it was not measured yet. `upload` and `download` are
    the rates through the farm itself, and `others` has the rates of other ways of staging. `staged` has the
    ids of versions that were sent to the site or made there, the newest last; a version that the site has
    evicted is sent again."""

    upload: TransferRate | None = None
    download: TransferRate | None = None
    others: Mapping[str, TransferRates] = field(default_factory=dict)
    round_trip_seconds: float | None = None
    staged: tuple[str, ...] = ()

    def rates(self, staging: Staging | None) -> TransferRates:
        """Return the transfer rates of that way of staging."""
        if staging in (None, Staging.DIRECT):
            return TransferRates(upload=self.upload, download=self.download)
        return self.others.get(str(staging), TransferRates())
