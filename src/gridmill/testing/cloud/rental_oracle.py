"""Judges a simulated story of rented machines by what truly happened at the provider, independent of the
records of the control node."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from math import inf

from gridmill.domain.frozen import dataclass
from gridmill.testing.cloud.account import RecordedCall, SimulatedAccount
from gridmill.testing.cloud.machine import SimulatedMachine

RELEASE_SECONDS = 30.0
"""How long a machine may be billed after it is not needed any more, and after the control node and the
provider can be reached again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What is known about a story that is over. All times are seconds on the monotonic clock.

    `needed_until` has the time of the end of the last job on each machine that ran a job, and `over` the time
    at which the last job ended or was stopped. `reachable_since` is the last time at which the control node
    and the provider became reachable for each other; infinite if that never happened. `died` is the time at
    which the control node died for ever. `accepted` has the jobs whose results were accepted, once for each
    acceptance. `unfinished` are the jobs without a result that nobody has stopped. `clients` are the names of
    the clients that belong to the owner.
    """

    account: SimulatedAccount
    owner: str
    needed_until: Mapping[str, float]
    over: float
    reachable_since: float
    died: float = inf
    accepted: Sequence[str] = ()
    unfinished: Sequence[str] = ()
    clients: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement of a story. `beyond_seconds` is the longest time for which a machine was billed although
    it was not needed, and although it could have been ended. `unneeded_micros` is the cost of these times of
    all machines. `alone_seconds` is the longest time for which a machine that had booted was billed without
    contact to the control node."""

    leaked: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    beyond_seconds: float = 0.0
    unneeded_micros: int = 0
    alone_seconds: float = 0.0
    lost: tuple[str, ...] = ()
    twice: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    machines: int = 0

    def problems(self, most_seconds: float = RELEASE_SECONDS) -> tuple[str, ...]:
        """Returns what is wrong, in sentences."""
        found = [f"machine {one} still exists" for one in self.leaked]
        found += [f"{one} still exists" for one in self.resources]
        found += [f"job {one} has no result" for one in self.lost]
        found += [f"the result of job {one} was accepted twice" for one in self.twice]
        found += [f"a call changed something of another grid: {one}" for one in self.foreign]
        if self.beyond_seconds > most_seconds:
            found.append(f"a machine was billed {self.beyond_seconds:.1f} s longer than needed")
        return tuple(found)


def judge(story: Story) -> Verdict:
    """Returns the judgement of a story, at the present time of its account."""
    account = story.account
    alive = account.machines_alive(story.owner)
    machines = [one for one in account.every.values() if one.request.owner == story.owner]
    beyond = [_beyond(one, story) for one in machines]
    costs = [
        seconds * (one.price_micros or 0) / 3600.0 for one, seconds in zip(machines, beyond, strict=True)
    ]
    return Verdict(
        leaked=tuple(one.id for one in alive),
        resources=tuple(f"{one.kind} {one.id}" for one in account.resources_alive(story.owner)),
        beyond_seconds=max(beyond, default=0.0),
        unneeded_micros=round(sum(costs)),
        alone_seconds=max((_alone(one, story) for one in machines), default=0.0),
        lost=tuple(story.unfinished),
        twice=tuple(job for job, count in Counter(story.accepted).items() if count > 1),
        foreign=tuple(_foreign(account.calls, story)),
        machines=len(machines),
    )


def _beyond(one: SimulatedMachine, story: Story) -> float:
    """Returns how long a machine was billed after it could have been ended. If the control node never came
    back, this time is counted from its death, or from the end of the machine's last job."""
    needed = story.needed_until.get(one.id, min(story.over, story.died))
    since = max(needed, story.died if story.died < inf else story.reachable_since)
    end = min(one.ended, story.account.clock.monotonic())
    return max(0.0, end - max(since, one.started))


def _alone(one: SimulatedMachine, story: Story) -> float:
    """Returns how long a machine was billed after its last contact, or after its boot if it had none."""
    return max(0.0, min(one.ended, story.account.clock.monotonic()) - max(one.boots_at, one.last_contact))


def _foreign(calls: Iterable[RecordedCall], story: Story) -> Iterable[str]:
    for call in calls:
        ours, theirs = call.client in story.clients, call.owner not in ("", story.owner)
        if call.effect and ours and theirs:
            yield f"{call.method} {call.subject} of {call.owner} by {call.client}"


@dataclass(slots=True, kw_only=True)
class Watch:
    """Follows a story while it happens: since when the control node and the provider can reach each other,
    and which machines run jobs."""

    reachable_since: float = 0.0
    is_reachable: bool = True
    needed_until: dict[str, float] = field(default_factory=dict)

    def note(self, now: float, *, reachable: bool) -> None:
        """Notes whether the control node and the provider can reach each other now."""
        if reachable and not self.is_reachable:
            self.reachable_since = now
        self.is_reachable = reachable

    def note_job(self, machine: str, ended: float) -> None:
        """Notes the end of a job on a machine."""
        self.needed_until[machine] = max(ended, self.needed_until.get(machine, 0.0))
