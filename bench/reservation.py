"""Room kept for a job that is too large for what is free now: when it comes, and who may go before it.

EASY backfilling (Lifka 1995; Mu'alem and Feitelson 2001): the first that does not fit has a reservation for
the time at which enough is expected to be free; jobs behind it may start if they do not delay it.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Reservation(NamedTuple):
    """`at`: when so much is expected to be free; `spare`: what is left over then."""

    at: float
    spare: int


def reserve(needed: int, free: int, now: float, ends: Iterable[tuple[float, int]]) -> Reservation | None:
    """The reservation for `needed`: `ends` are the running jobs' expected ends, earliest first, and what each
    gives back then. None where even all of them are not enough."""
    at = now
    for end, amount in ends:
        if free >= needed:
            break
        at, free = max(now, end), free + amount
    return Reservation(at, free - needed) if free >= needed else None


def may_pass(reservation: Reservation, needed: int, end: float) -> bool:
    """Whether a job that ends at `end` and needs so much does not delay the reserved one."""
    return end <= reservation.at or needed <= reservation.spare
