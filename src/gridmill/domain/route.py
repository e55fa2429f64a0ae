"""The route to a site elsewhere: the staging of inputs, and the bytes and rates of its transfers.

It records what attempts transferred in each direction, how fast the route is, and what the site holds
already.
"""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from gridmill.domain.frozen import dataclass


class Staging(StrEnum):
    """`direct`: through the connection to the farm. `export`: by objects of a bucket that both sides reach,
    each of them removed once it was used. `shared`: by a bucket in which what went there is kept, for other
    jobs and other farms."""

    DIRECT = "direct"
    EXPORT = "export"
    SHARED = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """What was carried in one direction: `carried_bytes` travelled, in `seconds`, `reused_bytes` did not have
    to, as they were there."""

    carried_bytes: int = 0
    reused_bytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Crossing") -> "Crossing":
        return Crossing(
            carried_bytes=self.carried_bytes + other.carried_bytes,
            reused_bytes=self.reused_bytes + other.reused_bytes,
            seconds=self.seconds + other.seconds,
        )

    @property
    def bytes_per_second(self) -> float | None:
        """None where nothing travelled."""
        return self.carried_bytes / self.seconds if self.carried_bytes and self.seconds > 0 else None

    @property
    def reused_share(self) -> float | None:
        """Of all bytes, from 0 to 1; None where there were none."""
        whole = self.carried_bytes + self.reused_bytes
        return self.reused_bytes / whole if whole else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Carriage:
    """What was carried for an attempt, `there` and `back`, and how. `round_trip_seconds`: None where it is
    not known."""

    there: Crossing = Crossing()
    back: Crossing = Crossing()
    staging: Staging = Staging.DIRECT
    round_trip_seconds: float | None = None

    def __add__(self, other: "Carriage") -> "Carriage":
        trips = [one.round_trip_seconds for one in (self, other) if one.round_trip_seconds is not None]
        return Carriage(
            there=self.there + other.there,
            back=self.back + other.back,
            staging=self.staging,
            round_trip_seconds=min(trips, default=None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How quick a direction is: `carried_bytes` took `seconds`, older ones counted less. `transfers` of
    attempts taught it; 0: only the probe when the site was added did."""

    carried_bytes: float
    seconds: float
    transfers: int = 0

    @property
    def bytes_per_second(self) -> float:
        """As it is expected of the next transfer."""
        return self.carried_bytes / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Paces:
    """Of both directions; None: not measured yet."""

    there: Pace | None = None
    back: Pace | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What is known of the way to a site; None: not measured yet. `there` and `back` are of what goes through
    the farm itself, `others` of other ways of staging. `staged` are ids of versions that were carried there
    or made there, the newest last: what of them is evicted there is carried again."""

    there: Pace | None = None
    back: Pace | None = None
    others: Mapping[str, Paces] = field(default_factory=dict)
    round_trip_seconds: float | None = None
    staged: tuple[str, ...] = ()

    def paces(self, staging: Staging | None) -> Paces:
        """Of that way of staging."""
        if staging in (None, Staging.DIRECT):
            return Paces(there=self.there, back=self.back)
        return self.others.get(str(staging), Paces())
