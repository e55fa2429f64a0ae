"""This module has the calls to a cloud provider as values, and decides which of them the provider's limits
allow now."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import field
from enum import StrEnum
from math import inf

from gridmill.domain.frozen import dataclass
from gridmill.domain.lease import LaunchTry, Lease
from gridmill.domain.machine import Leftover, Machine, ProviderTraits

MOST_CALLS = 16
"""The largest number of calls to one provider that run at the same time."""


class Call(StrEnum):
    """The kinds of actions for a lease. The provider's limits apply to `list`, `launch`, `terminate` and
    `delete`."""

    TERMINATE = "terminate"
    LIST = "list"
    LAUNCH = "launch"
    DELETE = "delete"
    PREPARE = "prepare"
    BUILD = "build"
    FORGET = "forget"


_ORDER = (Call.LIST, Call.TERMINATE, Call.LAUNCH)
"""The order in which calls are made if not all are allowed now. A list comes first, because it is due at most
for one of several calls (`list_interval`), and no lease is closed without it. Then machines that cost money
are ended. Everything else follows in the order in which it became due."""
OWN = frozenset({Call.PREPARE, Call.BUILD, Call.FORGET})
"""The actions that call no provider, or that need minutes for a few calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An action to execute after the commit of its decision. `key` is the token of a try, or the id of a
    machine, a leftover or a lease."""

    call: Call
    key: str
    lease: Lease | None = None
    launch_try: LaunchTry | None = None
    machine: Machine | None = None
    leftover: Leftover | None = None

    @property
    def id(self) -> str:
        """The id of the action. Two actions with the same id do not run at the same time."""
        return id_of(self.call, self.key)


def id_of(call: Call, key: str) -> str:
    """Return the id of an action."""
    return f"{call} {key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The calls of a site. `running` has the ids of the actions that run or whose results were not applied
    yet, and `not_before` the Unix time before which an action is not repeated. `failures` has the number of
    failures of each action in a row. `last_launch` and `last_call` are Unix times."""

    running: Set[str] = frozenset()
    not_before: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)
    last_launch: float = -inf
    last_call: float = -inf

    def is_running(self, call: Call, key: str) -> bool:
        """Return whether an action runs now."""
        return id_of(call, key) in self.running

    def failures_of(self, call: Call, key: str) -> int:
        """Return the number of failures of an action in a row."""
        return self.failures.get(id_of(call, key), 0)


def affordable(
    actions: Iterable[Action], calls: Calls, traits: ProviderTraits, now: float
) -> tuple[tuple[Action, ...], float]:
    """Return the actions that may start now, and the Unix time at which further actions may start. A running
    action is not started again. An action that has to wait does not delay other actions."""
    allowed: dict[str, Action] = {}
    later = inf
    next_call = calls.last_call + traits.call_gap_seconds
    next_launch = calls.last_launch + traits.launch_gap_seconds
    places = MOST_CALLS - sum(not one.startswith(tuple(f"{own} " for own in OWN)) for one in calls.running)
    for action in sorted(actions, key=lambda one: (_rank(one), calls.not_before.get(one.id, -inf))):
        if action.id in calls.running or action.id in allowed:
            continue
        earliest = calls.not_before.get(action.id, -inf)
        if action.call not in OWN:
            earliest = max(earliest, next_call)
        if action.call is Call.LAUNCH:
            earliest = max(earliest, next_launch)
        if earliest > now:
            later = min(later, earliest)
        elif action.call in OWN or places > 0:
            allowed[action.id] = action
            places -= action.call not in OWN
            next_call, next_launch = _after(action, traits, now, next_call, next_launch)
    return tuple(allowed.values()), later


def _rank(action: Action) -> int:
    """Return the place of an action in the order of calls. A machine whose end the provider has accepted is
    ended again only after other calls, because the repeated calls for many slow machines would use up the
    limit."""
    tries = action.lease.tries if action.lease is not None else ()
    is_repeat = any(one.machine_id == action.key and one.end_accepted is not None for one in tries)
    if action.call not in _ORDER or (action.call is Call.TERMINATE and is_repeat):
        return len(_ORDER)
    return _ORDER.index(action.call)


def _after(
    action: Action, traits: ProviderTraits, now: float, next_call: float, next_launch: float
) -> tuple[float, float]:
    if action.call in OWN:
        return next_call, next_launch
    if action.call is Call.LAUNCH:
        next_launch = now + traits.launch_gap_seconds
    return now + traits.call_gap_seconds, next_launch
