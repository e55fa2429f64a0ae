"""What ends by itself: deployments of sources that have gone silent, and what they left (pure over `now`)."""

from collections.abc import Iterable, Mapping

from gridmill.farm.lodging import HAS_ROOM, Lodging, LodgingState

SILENT_SECONDS = 20.0
"""A source that is not cut off says something every few seconds."""
REMEMBERED_SECONDS = 86400.0
"""For so long a late, repeated wish for a deployment that has ended is known as such, and what its pods said
last is there."""


def expired(lodgings: Iterable[Lodging], heard: Mapping[str, float], now: float) -> tuple[Lodging, ...]:
    """Those whose source has not been heard of for their lease. `heard`: when each was heard of last; when
    the controller comes up all are, for until then they could not be."""
    live = (one for one in lodgings if one.state in HAS_ROOM or one.state == LodgingState.WAITING)
    return tuple(one for one in live if heard.get(one.source, now) + one.deploy.lease_seconds <= now)


def silent(heard: Mapping[str, float], now: float) -> tuple[str, ...]:
    """Sources that have said nothing for so long that they may be cut off. Their pods are to count their
    leases themselves from now on: who passes their words on may be gone before these end. Others may add to
    `heard` meanwhile."""
    return tuple(source for source, time in tuple(heard.items()) if time + SILENT_SECONDS <= now)


def spoiled(lodgings: Iterable[Lodging], retain_seconds: float, now: float) -> tuple[Lodging, ...]:
    """Those whose results nobody has taken home in time."""
    gone = (one for one in lodgings if one.state == LodgingState.GONE)
    return tuple(one for one in gone if one.since + retain_seconds <= now)


def forgotten(lodgings: Iterable[Lodging], now: float) -> tuple[Lodging, ...]:
    """Those whose id need not be remembered any longer."""
    ended = (one for one in lodgings if one.state == LodgingState.ENDED)
    return tuple(one for one in ended if one.since + REMEMBERED_SECONDS <= now)
