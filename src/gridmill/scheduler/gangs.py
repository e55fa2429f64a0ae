"""Places gangs: all ranks get a place, or none does."""

from gridmill.scheduler.capacity import POD_ID, Key, Slot
from gridmill.scheduler.draft import Draft, find_lasting
from gridmill.scheduler.lane import Lane
from gridmill.scheduler.provisioning import bring_up
from gridmill.scheduler.queue import JOB_CLASS, Demand, Ticket


def start_gang(draft: Draft, lane: Lane, ticket: Ticket) -> bool:
    """Start every rank, the least loaded pods first; False, and nothing is taken, where not all fit now."""
    found = _find_places(draft, lane, ticket)
    if found is None:
        return False
    for slot in sorted(found, key=_by_node):
        pod_id = slot.key[POD_ID]
        draft.fill(ticket, pod_id, (slot.whole, lane.open.slot(pod_id).jobs))
    return True


def _find_places(draft: Draft, lane: Lane, ticket: Ticket) -> list[Slot] | None:
    """The pods as each rank found them; taken in the lane. None, and all is as it was, where not all fit."""
    demand, found = ticket[JOB_CLASS].demand, list[Slot]()
    while len(found) < demand.workers:
        key = _next_place(draft, lane, ticket)
        if key is None:
            for slot in reversed(found):
                lane.open.set(slot)
            return None
        found.append(lane.open.slot(key[POD_ID]))
        lane.open.take(key, demand.memory_bytes, demand.gpus)
    return found


def _next_place(draft: Draft, lane: Lane, ticket: Ticket) -> Key | None:
    """As for any job; that a rank finds none says nothing of jobs that need one place."""
    demand = ticket[JOB_CLASS].demand
    found = lane.open.find(demand.memory_bytes, demand.gpus)
    return found if found is None or not draft.snapshot.places.terms else find_lasting(draft, lane, ticket)


def _by_node(slot: Slot) -> tuple[str, str]:
    """Ranks of one host come one after the other."""
    return slot.whole.node, slot.key[POD_ID]


def brings_up_gang(draft: Draft, lane: Lane, demand: Demand) -> bool:
    """Whether all ranks will have a place: counting what is free and what is coming, and bringing up the
    rest. All of it or nothing: half a gang's room would only keep others out."""
    mark = draft.mark(lane)
    missing = demand.workers - lane.places(demand)
    while missing > 0 and bring_up(draft, lane, demand, urgent=True, pods=missing):
        missing = demand.workers - lane.places(demand)
    if missing > 0:
        draft.undo(lane, mark)
        return False
    lane.claim(demand)
    return True
