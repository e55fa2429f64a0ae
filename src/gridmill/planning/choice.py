"""Which of several resources a job goes to: where it is expected to be done first, data and all."""

from collections.abc import Mapping, Sequence

from gridmill.model.choice import Alternative, Choice, told
from gridmill.model.resource import Resource
from gridmill.model.site import LOCAL

GAIN_SHARE = 0.2
GAIN_SECONDS = 30.0
"""A job keeps its place in line, unless elsewhere it is done sooner by a fifth, and by this; by twice as much
after each move."""


def choose(alternatives: Sequence[Alternative], current: str = "", moves: int = 0) -> Choice:
    """The one with the least seconds until its result is here, the first named of equals. One where nobody
    knows how long it takes is chosen where it is named first: nobody knows better than who wrote the list.
    One where only the wait is not known comes behind those where all is: there is a line. `current` is where
    the job stands in line, having moved so often: it moves only for a gain that is worth it."""
    possible = [one for one in alternatives if not one.problem]
    present = [one for one in possible if not one.away] or possible or list(alternatives)
    known = [one for one in present if one.quickest_seconds is not None]
    best = min(known, key=_rank) if present[0].quickest_seconds is not None else present[0]
    stays = next((one for one in present if one.resource == current), None)
    if stays is not None and stays is not best and not _is_worth_it(stays, best, moves):
        best = stays
        return _choice(best, alternatives, "it stands in line there, and elsewhere gains too little")
    return _choice(best, alternatives, _reason(best, present, alternatives))


def _rank(one: Alternative) -> tuple[bool, float]:
    return one.wait_seconds is None, (one.quickest_seconds or 0.0) + (one.wait_seconds or 0.0)


def _is_worth_it(stays: Alternative, best: Alternative, moves: int) -> bool:
    if stays.seconds is None or best.seconds is None:
        return False
    gain = stays.seconds - best.seconds
    return gain >= GAIN_SECONDS * 2.0**moves and gain >= GAIN_SHARE * stays.seconds


def _choice(best: Alternative, alternatives: Sequence[Alternative], reason: str) -> Choice:
    listed = "; ".join(told(one) for one in alternatives)
    why = f"{listed}: {best.label}, {reason}" if len(alternatives) > 1 else listed
    return Choice(resource=best.resource, alternatives=tuple(alternatives), why=why)


def _reason(best: Alternative, present: Sequence[Alternative], alternatives: Sequence[Alternative]) -> str:
    if best.problem:
        return "named first"
    if len(present) == 1 and len(alternatives) > 1:
        return "the only one that can be used now"
    if best.quickest_seconds is None:
        return "named first, and not known yet how long it takes there"
    if best.seconds is None:
        return "the quickest once it has its turn, and no wait is known"
    return "done first" if all(one.seconds is not None for one in present) else "done first of those known"


def labels(resources: Sequence[Resource]) -> Mapping[str, str]:
    """What to call each: its site, where that tells them apart, else its name."""
    sites = {one.name: _place(one) for one in resources}
    alone = len(set(sites.values())) == len(sites)
    return sites if alone else {one.name: one.name for one in resources}


def _place(resource: Resource) -> str:
    return f"{LOCAL} {'GPU' if resource.gpus else 'CPU'}" if resource.site == LOCAL else resource.site
