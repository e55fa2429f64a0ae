"""Pods that their site ends at a certain time, a batch system say: no job gets there to be cut short."""

from gridmill.planning.draft import Draft
from gridmill.planning.lane import Lane, find_pod
from gridmill.planning.queue import Ticket
from gridmill.planning.room import Key

_MOST_SHARE = 0.9
"""A job that is expected to take longer than this share of a pod's whole time gets a fresh one: no pod would
be long enough, and a forecast may be wrong."""


def find_lasting(draft: Draft, lane: Lane, ticket: Ticket) -> Key | None:
    """A pod that is up, has room, and is there for as long as the job is expected to take."""
    demand = ticket[5].demand
    found = lane.find(demand)
    if found is None or not draft.snapshot.places.terms:
        return found
    expected = draft.snapshot.job_runs[ticket[4]].sizing.expected_seconds
    too_short = []
    while found is not None and expected is not None and not _lasts(draft, found[2], expected):
        too_short.append(lane.open.slot(found[2]))
        lane.open.drop(found[2])
        found = find_pod(lane.open, demand)
    for slot in too_short:
        lane.open.set(slot)
    return found


def _lasts(draft: Draft, pod_id: str, expected_seconds: float) -> bool:
    term = draft.snapshot.places.terms.get(pod_id)
    if term is None:
        return True
    began, ends = term
    return ends - draft.now >= min(expected_seconds, _MOST_SHARE * (ends - began))
