"""The machine of a simulated provider: when it boots, when its timers end it, and what it costs."""

import re
from math import inf

from gridmill.domain.frozen import dataclass
from gridmill.domain.lease import HOUR_SECONDS
from gridmill.ports.cloud import LaunchRequest, MachineState, SelfEnd

SHUTDOWN_SECONDS = 10.0
"""How long a machine needs to shut down."""
TIMER_LATE_SECONDS = 30.0
"""How late the provider's own timer ends a machine at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineTimers:
    """The timers that the first script of a machine starts. The machine ends itself after `dead_man_seconds`
    without contact to the control node. With `job_holds`, a running job counts as contact. The machine ends
    itself at `max_seconds` after its boot in any case. None means that there is no such timer."""

    dead_man_seconds: float | None = None
    job_holds: bool = False
    max_seconds: float | None = None


def write_timers(timers: MachineTimers) -> str:
    """Returns the user data with which a simulated machine starts these timers."""
    lines = [] if timers.dead_man_seconds is None else [f"dead_man_seconds={timers.dead_man_seconds:g}"]
    lines += [] if timers.max_seconds is None else [f"max_seconds={timers.max_seconds:g}"]
    lines += ["job_holds=yes"] if timers.job_holds else []
    return "\n".join(lines)


def read_timers(user_data: str) -> MachineTimers:
    """Returns the timers that the user data of a machine starts. Text without lines of `write_timers` starts
    no timer."""

    def seconds(name: str) -> float | None:
        match = re.search(rf"\b{name}=([0-9.e+]+)", user_data)
        return float(match[1]) if match else None

    return MachineTimers(
        dead_man_seconds=seconds("dead_man_seconds"),
        job_holds="job_holds=yes" in user_data,
        max_seconds=seconds("max_seconds"),
    )


@dataclass(slots=True, kw_only=True)
class SimulatedMachine:
    """The true state of a machine, which tests compare with the records of the control node. All times are
    seconds on the monotonic clock of the simulation, and infinite if they never come.

    `started` is the time of the launch. `boots_at` is the time at which the first script starts the timers,
    and `ssh_at` the time at which the SSH server answers. `ended` is the time at which the provider stops
    the bill, and `gone` the time at which the provider reports the end. A machine that is stopped, but
    not ended, has the time `stopped`. `hangs_at`, `dies_at` and `interrupted_at` are the times of faults.
    `last_contact` is the time of the last contact to the control node, and `busy` shows whether a job runs.
    `own_call_at` is the time of the machine's next attempt to end itself by a call.
    """

    id: str
    request: LaunchRequest
    price_micros: int | None
    self_end: SelfEnd
    started: float
    boots_at: float
    ssh_at: float
    timers: MachineTimers
    shutdown_ends: bool = True
    keeps_volume: bool = False
    bills_stopped: bool = True
    hangs_at: float = inf
    dies_at: float = inf
    interrupted_at: float = inf
    ended: float = inf
    gone: float = inf
    stopped: float = inf
    reason: str = ""
    last_contact: float = -inf
    busy: bool = False
    idle_since: float = -inf
    own_call_at: float = -inf
    egress_bytes: int = 0
    address: str = ""

    def alive(self, now: float) -> bool:
        """Whether the provider still bills the machine."""
        return now < self.ended

    def works(self, now: float) -> bool:
        """Whether the programs of the machine run, so that its SSH server answers."""
        return self.ssh_at <= now < min(self.hangs_at, self.ended, self.stopped)

    def timer_due(self) -> float:
        """Returns the time at which the timers that run inside the machine end it, if no contact and no new
        job changes this time. A machine that never boots, or that hangs, has no working timer."""
        if self.boots_at == inf:
            return inf
        hard = inf if self.timers.max_seconds is None else self.boots_at + self.timers.max_seconds
        due = min(hard, self._dead_man_due())
        return due if due < self.hangs_at else inf

    def _dead_man_due(self) -> float:
        seconds = self.timers.dead_man_seconds
        if seconds is None or (self.busy and self.timers.job_holds):
            return inf
        since = max(self.boots_at, self.last_contact)
        return (max(since, self.idle_since) if self.timers.job_holds else since) + seconds

    def provider_due(self) -> float:
        """Returns the time at which the provider's own timer ends the machine."""
        if self.self_end is not SelfEnd.PROVIDER_TIMER:
            return inf
        return self.started + self.request.max_seconds + TIMER_LATE_SECONDS

    def self_end_due(self) -> float:
        """Returns the time at which the machine begins to end itself by its timers."""
        if self.self_end is SelfEnd.NONE or self.stopped < inf:
            return inf
        due = self.timer_due()
        return due if self.self_end is SelfEnd.SHUTDOWN else max(due, self.own_call_at)

    def fault_due(self) -> float:
        """Returns the time at which the provider ends the machine because of a defect or an
        interruption."""
        return min(self.dies_at, self.interrupted_at)

    def state(self, at: float) -> tuple[MachineState, str]:
        """Returns the state and the provider's word for the state at a time."""
        if at >= self.gone:
            return MachineState.ENDED, "terminated"
        if at >= self.ended:
            return MachineState.STOPPING, "shutting-down"
        if at >= self.stopped:
            return MachineState.STOPPED, "stopped"
        starting = at < min(self.boots_at, self.started + 30.0)
        return (MachineState.PENDING, "pending") if starting else (MachineState.RUNNING, "running")

    def end(self, at: float, reason: str, *, gone: float) -> None:
        """Ends the rental at a time. The provider reports the end at the time `gone`."""
        if at < self.ended:
            self.ended, self.gone, self.reason, self.busy = at, gone, reason, False

    def shut_down(self, at: float, reason: str) -> None:
        """Shuts the machine down from the inside, which ends the rental or only stops the machine."""
        if self.shutdown_ends:
            self.end(at + SHUTDOWN_SECONDS, reason, gone=at + SHUTDOWN_SECONDS)
        else:
            self.stopped, self.reason, self.busy = at, reason, False

    def billed_seconds(self, now: float, least_seconds: float) -> float:
        """Returns the seconds for which the machine is billed until `now`."""
        end = min(now, self.ended, inf if self.bills_stopped else self.stopped)
        return max(least_seconds, end - self.started)

    def cost_micros(self, now: float, least_seconds: float) -> int:
        """Returns the cost of the machine in micro-units, without its disk. A machine whose price is unknown
        to the clients costs one unit per hour."""
        price = 1_000_000 if self.price_micros is None else self.price_micros
        return -int(-self.billed_seconds(now, least_seconds) * price // HOUR_SECONDS)
