"""This module decides from observations when a machine is in use by its owner and when it is idle; all its
functions are pure."""

from gridmill.domain.amounts import MIB, show_seconds
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.site import NodeUtilization

BUSY_CPUS = 0.5
"""If the processes of the owner use more CPUs than this, Gridmill assumes that the owner is working at the
machine. An idle desktop uses fewer CPUs than this limit."""
RESERVE_SHARE = 0.1
"""The fraction of the memory that stays free, because with less available memory the machine would soon
swap."""
NODE_BYTES = 384 * MIB
"""The memory of the processes of a Ray node and of the pods, without the jobs (a node without jobs: 190
MiB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRules:
    """The rules that decide when jobs may use the machine: after `after_seconds` without activity of its
    owner, and during the `hours` (from, to) of the local day. If `from` is later than `to`, the hours
    continue past midnight; if `hours` is None, jobs may use the machine all day."""

    after_seconds: float = 300.0
    hours: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerPresence:
    """The last activity of the owner of the machine. `seen` is the monotonic time of this activity, and
    `why` describes the activity."""

    seen: float
    why: str = "`gridmill join` has only now started to watch the machine"


def note(
    presence: OwnerPresence,
    utilization: NodeUtilization,
    *,
    memory_bytes: int,
    input_seconds: float,
    now: float,
    sign: str = "",
) -> OwnerPresence:
    """Return the last activity of the owner after one more observation. `input_seconds` is the time since
    the last activity of a person at the machine, `sign` describes this activity, and `memory_bytes` is the
    memory of the machine."""
    if utilization.owner_cpus > BUSY_CPUS:
        return replace(presence, seen=now, why=f"the owner's processes use {utilization.owner_cpus:.1f} CPUs")
    if memory_bytes - utilization.used_bytes < RESERVE_SHARE * memory_bytes:
        return replace(presence, seen=now, why="the memory is nearly full")
    if now - input_seconds > presence.seen:
        return replace(presence, seen=now - input_seconds, why=sign or "the keyboard or mouse is in use")
    return presence


def spare_bytes(wanted: int, *, memory_bytes: int, used_bytes: int) -> int:
    """Return the part of the wanted memory that jobs can get, given the present memory use, the reserve and
    the memory of the node itself. Even if jobs use all of this memory, the machine does not swap, and the
    memory use of the jobs is not mistaken for activity of the owner.
    """
    return max(MIB, min(wanted, int(memory_bytes * (1.0 - RESERVE_SHARE)) - NODE_BYTES - used_bytes))


def is_idle(
    presence: OwnerPresence, rules: IdleRules, *, lent_at: float | None, now: float, hour: int
) -> tuple[bool, str]:
    """Return whether jobs may use the machine. If jobs may not use it, the result also has the reason.
    `lent_at` is the time of the observation at which the machine was first available to jobs, or None if
    jobs do not use the machine. If the owner of the machine becomes active after the time `lent_at`, all
    jobs on the machine must end."""
    if rules.hours is not None and not within(rules.hours, hour):
        return False, f"jobs may use it from {rules.hours[0]}:00 to {rules.hours[1]}:00"
    if lent_at is not None:
        return (False, presence.why) if presence.seen > lent_at else (True, "")
    alone = now - presence.seen
    if alone <= 0.0 or alone < rules.after_seconds:
        return (
            False,
            f"{presence.why}; jobs may use it after {show_seconds(rules.after_seconds)} of idle time",
        )
    return True, ""


def within(hours: tuple[int, int], hour: int) -> bool:
    """Return whether the hour (0 to 23) is within the hours (from, to), where `to` itself is excluded. If
    the two hours are equal, jobs may use the machine all day."""
    begin, end = hours
    if begin == end:
        return True
    return begin <= hour < end if begin <= end else hour >= begin or hour < end
