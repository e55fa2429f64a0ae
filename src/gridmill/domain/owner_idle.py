"""Decides from observations when a machine is in use by its owner and when it is idle: pure functions."""

from gridmill.domain.amounts import MIB, show_seconds
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.site import NodeUtilization

BUSY_CPUS = 0.5
"""CPUs used by the owner's own processes from which on the owner is at work; an idle desktop uses less."""
RESERVE_SHARE = 0.1
"""Share of the memory that stays free: with less available, the machine would soon swap."""
NODE_BYTES = 384 * MIB
"""Memory of a Ray node's own processes and of the pods beside the jobs (a node without jobs: 190 MiB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRules:
    """After `after_seconds` without its owner the machine is given; `hours` (from, to) of the local day, past
    midnight when from is later; None: all day."""

    after_seconds: float = 300.0
    hours: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerPresence:
    """Monotonic times: when the owner was last seen; `why` is how."""

    seen: float
    why: str = "it started to watch the machine only now"


def note(
    presence: OwnerPresence,
    look: NodeUtilization,
    *,
    memory_bytes: int,
    input_seconds: float,
    now: float,
    sign: str = "",
) -> OwnerPresence:
    """What is known of the owner after one more look. `input_seconds` is the time since the last sign of
    somebody at the machine, `sign` what it was, `memory_bytes` what the machine has."""
    if look.owner_cpus > BUSY_CPUS:
        return replace(presence, seen=now, why=f"the owner's processes use {look.owner_cpus:.1f} CPUs")
    if memory_bytes - look.used_bytes < RESERVE_SHARE * memory_bytes:
        return replace(presence, seen=now, why="the memory is nearly full")
    if now - input_seconds > presence.seen:
        return replace(presence, seen=now - input_seconds, why=sign or "the keyboard or mouse is in use")
    return presence


def spare_bytes(wanted: int, *, memory_bytes: int, used_bytes: int) -> int:
    """How much of the wanted memory can be given beside what is used now, without the reserve and what the
    node itself needs: jobs that fill it neither drive the machine into swap nor look like its owner."""
    return max(MIB, min(wanted, int(memory_bytes * (1.0 - RESERVE_SHARE)) - NODE_BYTES - used_bytes))


def is_idle(
    presence: OwnerPresence, rules: IdleRules, *, lent_at: float | None, now: float, hour: int
) -> tuple[bool, str]:
    """Whether the machine is to be given, and why not. One that was lent at the look of `lent_at` (None: it
    is not lent) is taken back at the first sign of its owner after that look."""
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
    """Whether the hour (0 to 23) lies between, the second excluded; from an hour to the same is all day."""
    begin, end = hours
    if begin == end:
        return True
    return begin <= hour < end if begin <= end else hour >= begin or hour < end
