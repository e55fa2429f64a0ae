"""Work: what was placed here for an attempt, and where it writes, until its home says that it has it all."""

from collections.abc import Iterable

from gridmill.farm.lodging import HAS_ROOM, Lodging, LodgingState
from gridmill.model.noun import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """`uri` and `checkpoints` are the folders below the source's root that the attempt writes (empty before
    it starts), `pod_id` where it runs. `time`: when it was heard of last (Unix)."""

    attempt_id: str
    source: str
    time: float
    pod_id: str = ""
    uri: str = ""
    checkpoints: str = ""


def left_by(works: Iterable[Work], lodging: Lodging) -> tuple[Work, ...]:
    """What its pods ran, and nobody has said that it is home."""
    pods = frozenset(lodging.pods)
    return tuple(one for one in works if one.source == lodging.source and one.pod_id in pods)


def left_behind(
    works: Iterable[Work], lodgings: Iterable[Lodging], retain_seconds: float, now: float
) -> tuple[Work, ...]:
    """Those whose pod does not live any more, and that nobody has asked for in all the time that results are
    kept. What is carried here before it starts may take longer than that: it stays while its source has a
    deployment here."""
    since = {(one.source, pod): one.since for one in lodgings for pod in one.pods}
    live = {(one.source, pod) for one in lodgings if one.state in HAS_ROOM for pod in one.pods}
    at_work = {one.source for one in lodgings if one.state in HAS_ROOM or one.state == LodgingState.WAITING}
    return tuple(
        work
        for work in works
        if (work.pod_id or work.source not in at_work)
        and (work.source, work.pod_id) not in live
        and max(work.time, since.get((work.source, work.pod_id), 0.0)) + retain_seconds <= now
    )
