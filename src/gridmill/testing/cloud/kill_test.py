"""The kill test of rented machines: seeded schedules of faults, each told once and judged by the oracle.

A schedule has one fault at one step of the life of a rental, and a control node that starts again at once,
after a minute, after the machines have ended themselves, or never. `schedules` lists the schedules, and
`tell` executes one of them.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from math import inf
from random import Random

from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.machine import SelfEnd
from gridmill.ports.store import Store
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.account import SimulatedAccount
from gridmill.testing.cloud.catalog import TRAITS
from gridmill.testing.cloud.provider_faults import ProviderFaults
from gridmill.testing.cloud.rental_oracle import RELEASE_SECONDS, Verdict, judge
from gridmill.testing.cloud.rental_simulation import RentalSimulation
from gridmill.testing.faults import Fault, FaultScript, FaultyStore
from gridmill.testing.simulation import kill

DEAD_MAN_SECONDS = 900.0
JOB_SECONDS, LONG_JOB_SECONDS = 60.0, 1800.0
"""How long a job runs. A long job runs longer than a machine waits for its control node."""
LATE_SECONDS = 3600.0
"""After this time, a control node starts again when its machines have ended themselves."""
HORIZON_SECONDS = 4 * 3600.0
"""How long a story may last in simulated time."""
FAULT_SECONDS = 120.0
"""How long a fault lasts that is no single event."""
CALM_SECONDS = 400.0
"""How long a story continues after it is over, so that late machines are noticed."""


class Disaster(StrEnum):
    """The fault of a schedule."""

    NONE = "none"
    KILL_BEFORE_COMMIT = "SIGKILL before a commit"
    KILL_AFTER_COMMIT = "SIGKILL after a commit"
    KILL_BEFORE_CALL = "SIGKILL before a call to the provider"
    KILL_AFTER_CALL = "SIGKILL after a call to the provider"
    NETWORK = "network cut"
    SERVER_ERRORS = "provider answers 5xx"
    RATE = "provider answers 429"
    LOST_ANSWERS = "lost answers"
    CREDENTIALS = "credentials refused"
    DISK_FULL = "full disk"
    STOP = "run stopped"
    CLOCK = "clock set wrong"
    BY_HAND = "machine ended by hand"
    DEFECT = "machine ends or hangs"
    BAD_MACHINE = "machine defective at its start"
    SPOT = "spot machine interrupted"
    CLIENT = "Ctrl-C in `gridmill run`"
    INTERRUPT = "Ctrl-C at the control node"


KILLS = (
    Disaster.KILL_BEFORE_COMMIT,
    Disaster.KILL_AFTER_COMMIT,
    Disaster.KILL_BEFORE_CALL,
    Disaster.KILL_AFTER_CALL,
)
WINDOWS = tuple(one for one in Disaster if one not in (*KILLS, Disaster.NONE))
"""The faults that begin at a time, and not at a commit or a call."""
ENDS = (*KILLS, Disaster.INTERRUPT)
"""The faults that end the control node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One schedule of faults for `machines` jobs, each on a rented machine of its own. A kill happens at the
    commit or the call number `at`, counted from 1. Another fault begins at the time `at` in seconds.
    `restart_after` is the time after which an ended control node starts again, or infinite. A second fault
    `also`, which ends no control node, begins at the time `also_at`. With `lag`, lists of the provider are
    late. Each job runs for `job_seconds`. With `exports`, a bucket takes the results of jobs, so that a
    running job holds off the dead-man timer."""

    mode: SelfEnd
    disaster: Disaster
    at: float
    restart_after: float = 0.0
    machines: int = 1
    lag: bool = False
    seed: int = 0
    also: Disaster = Disaster.NONE
    also_at: float = 0.0
    job_seconds: float = JOB_SECONDS
    exports: bool = False

    @property
    def longest_alone_seconds(self) -> float:
        """The longest time for which a machine that works may run without contact."""
        if self.mode is SelfEnd.NONE or self.has(Disaster.DEFECT):
            return inf
        return DEAD_MAN_SECONDS + (self.job_seconds if self.exports else 0.0) + 60.0

    @property
    def faults(self) -> tuple[tuple[float, Disaster], ...]:
        """The faults that begin at a time, each with this time, in chronological order."""
        both = ((self.at, self.disaster), (self.also_at, self.also))
        return tuple(sorted((one for one in both if one[1] in WINDOWS), key=lambda one: one[0]))

    def has(self, disaster: Disaster) -> bool:
        """Returns whether this is one of the faults of the schedule."""
        return disaster in (self.disaster, self.also)

    @property
    def restarts(self) -> bool:
        """Whether the control node works at the end of the story."""
        return self.restart_after < inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a story: the judgement, what happened in it, and whether the control node considers
    everything as done. `reaped` are the resources that `gridmill reap` deleted afterwards."""

    schedule: Schedule
    verdict: Verdict
    commits: int
    calls: int
    is_over: bool
    seconds: float
    cost_micros: int

    def problems(self) -> tuple[str, ...]:
        """Returns what is wrong. A machine of a control node that never starts again must end by itself, if
        the provider permits this. Keys and groups that cost nothing may remain then."""
        schedule, verdict = self.schedule, self.verdict
        if schedule.restarts or not self._was_ended:
            # a machine that hangs is given up after the time without contact
            hangs = schedule.has(Disaster.DEFECT)
            found = verdict.problems(DEAD_MAN_SECONDS + 60.0 if hangs else RELEASE_SECONDS)
            found = found if self.is_over else (*found, "the control node never finishes")
            return (*found, *self._alone())
        most = DEAD_MAN_SECONDS + JOB_SECONDS + 60.0
        if schedule.mode is SelfEnd.NONE:
            most = inf
            verdict = replace(verdict, leaked=())
        return (*replace(verdict, resources=(), lost=()).problems(most), *self._alone())

    def _alone(self) -> Iterator[str]:
        seconds = self.verdict.alone_seconds
        if seconds > self.schedule.longest_alone_seconds:
            yield f"a machine ran {seconds:.0f} s without contact"

    @property
    def _was_ended(self) -> bool:
        return self.schedule.disaster in ENDS


class _Counter:
    """Counts commits and calls, and kills the control node at one of them."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.commits = self.calls = 0

    def next(self) -> Fault:
        """Returns the fault of the next commit."""
        self.commits += 1
        if self.commits != self._schedule.at:
            return Fault.NONE
        kinds = {
            Disaster.KILL_BEFORE_COMMIT: Fault.KILL_BEFORE,
            Disaster.KILL_AFTER_COMMIT: Fault.KILL_AFTER,
        }
        return kinds.get(self._schedule.disaster, Fault.NONE)

    def at_call(self, moment: str) -> None:
        """Kills the control node before or after the chosen call."""
        is_before = moment.endswith(":before")
        self.calls += is_before
        kinds = (Disaster.KILL_AFTER_CALL, Disaster.KILL_BEFORE_CALL)
        if self.calls == self._schedule.at and self._schedule.disaster is kinds[is_before]:
            kill()


class _FullDisk:
    """Lets each commit fail, before or after it was made."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def next(self) -> Fault:
        """Returns the fault of the next commit."""
        return self._random.choice((Fault.FAIL_BEFORE, Fault.FAIL_BEFORE, Fault.FAIL_AFTER))


def simulation_of(schedule: Schedule, store: Store, counter: _Counter) -> RentalSimulation:
    """Returns the simulation of a schedule, before its run starts."""
    clock = FakeClock()
    faults = ProviderFaults(lag_seconds=60.0 if schedule.lag else 0.0, detach_seconds=10.0)
    account = SimulatedAccount(clock, seed=schedule.seed, traits=TRAITS[schedule.mode], faults=faults)
    return RentalSimulation(
        account=account,
        clock=clock,
        store=FaultyStore(store, counter, kill=kill),
        seed=schedule.seed,
        restart_after=schedule.restart_after,
        job_seconds=schedule.job_seconds,
        bad_machines=1 + schedule.seed % 2 if schedule.has(Disaster.BAD_MACHINE) else 0,
        machines=schedule.machines + 2,
        settings={
            "dead_man": f"{DEAD_MAN_SECONDS:g}s",
            "max_hours": "1",
            "max_machines": str(schedule.machines + 2),
            "accept_no_self_end": "true",
            **({"export": "s3://simulated/results"} if schedule.exports else {}),
            **({"spot": "true"} if schedule.has(Disaster.SPOT) else {}),
        },
        at_call=counter.at_call,
    )


def tell(schedule: Schedule, store: Store) -> Outcome:
    """Tells one story from the submitted run to the judgement. `store` is an empty record store."""
    counter = _Counter(schedule)
    simulation = simulation_of(schedule, store, counter)
    simulation.declare()
    simulation.submit(schedule.machines)
    _play(simulation, schedule)
    simulation.run_until(lambda: simulation.is_over() or simulation.down_until == inf, HORIZON_SECONDS)
    over = simulation.is_over()
    calm = CALM_SECONDS if simulation.down_until < inf else HORIZON_SECONDS
    simulation.run_until(lambda: False, calm)
    return Outcome(
        schedule=schedule,
        verdict=judge(simulation.story()),
        commits=counter.commits,
        calls=counter.calls,
        is_over=over and simulation.is_over(),
        seconds=simulation.clock.monotonic(),
        cost_micros=simulation.account.cost_micros(),
    )


def _play(simulation: RentalSimulation, schedule: Schedule) -> None:
    """Begins and ends the faults that begin at a time. Two faults can overlap."""
    moments: list[tuple[float, bool, Callable[[], object]]] = []
    for at, disaster in schedule.faults:
        begin, end = FAULTS[disaster](simulation, schedule)
        moments += [(at, False, begin), (at + FAULT_SECONDS, True, end)]
    for at, is_end, act in sorted(moments, key=lambda one: one[0]):
        simulation.run_until(lambda: False, at - simulation.clock.monotonic())
        act()
        if is_end:
            simulation.watch.note(simulation.clock.monotonic(), reachable=False)


Begin = tuple[Callable[[], object], Callable[[], object]]


def _network(simulation: RentalSimulation, schedule: Schedule) -> Begin:
    def cut(value: bool) -> None:
        simulation.provider.is_cut = value

    return lambda: cut(True), lambda: cut(False)


def _server_errors(simulation: RentalSimulation, schedule: Schedule) -> Begin:
    return _with_faults(simulation, lambda faults: replace(faults, server_errors=0.7))


def _rate(simulation: RentalSimulation, schedule: Schedule) -> Begin:
    return _with_faults(simulation, lambda faults: replace(faults, calls_per_second=0.2, call_burst=1))


def _lost_answers(simulation: RentalSimulation, schedule: Schedule) -> Begin:
    return _with_faults(simulation, lambda faults: replace(faults, lost_answers=0.7))


def _with_faults(simulation: RentalSimulation, during: Callable[[ProviderFaults], ProviderFaults]) -> Begin:
    """Returns the functions that change the faults of the account, and that end this change. Another fault
    may change other fields in the meantime."""
    account = simulation.account

    def end() -> None:
        usual = ProviderFaults()
        account.use_faults(
            replace(
                account.faults,
                server_errors=usual.server_errors,
                lost_answers=usual.lost_answers,
                calls_per_second=usual.calls_per_second,
                call_burst=usual.call_burst,
            )
        )

    return lambda: account.use_faults(during(account.faults)), end


def _credentials(simulation: RentalSimulation, schedule: Schedule) -> Begin:
    def end_at(time: float) -> None:
        simulation.account.credentials_end = time

    return lambda: end_at(simulation.clock.monotonic()), lambda: end_at(inf)


def _disk_full(simulation: RentalSimulation, schedule: Schedule) -> Begin:
    store = simulation.store
    assert isinstance(store, FaultyStore)

    def use(full: bool) -> None:
        store.schedule = _FullDisk(schedule.seed) if full else FaultScript()

    return lambda: use(True), lambda: use(False)


def _stop(simulation: RentalSimulation, schedule: Schedule) -> Begin:
    return simulation.stop, lambda: None


def _clock(simulation: RentalSimulation, schedule: Schedule) -> Begin:
    jump = Random(schedule.seed).choice((-86_400.0, -600.0, 600.0, 86_400.0))
    return lambda: simulation.clock.jump(jump), lambda: None


def _by_hand(simulation: RentalSimulation, schedule: Schedule) -> Begin:
    def end() -> None:
        for one in simulation.account.machines_alive():
            simulation.account.end_by_hand(one.id)

    return end, lambda: None


def _defect(simulation: RentalSimulation, schedule: Schedule) -> Begin:
    account = simulation.account
    act = account.kill_machine if schedule.seed % 2 else account.hang_machine
    return lambda: [act(one.id) for one in account.machines_alive()], lambda: None


def _spot(simulation: RentalSimulation, schedule: Schedule) -> Begin:
    account = simulation.account

    def begin() -> None:
        for one in account.machines_alive():
            account.interrupt_machine(one.id)

    return begin, lambda: None


def _client(simulation: RentalSimulation, schedule: Schedule) -> Begin:
    return simulation.disconnect, lambda: None


def _interrupt(simulation: RentalSimulation, schedule: Schedule) -> Begin:
    return simulation.interrupt, lambda: None


def _bad_machine(simulation: RentalSimulation, schedule: Schedule) -> Begin:
    return lambda: None, lambda: None  # the simulation was made with defective machines


FAULTS: dict[Disaster, Callable[[RentalSimulation, Schedule], Begin]] = {
    Disaster.NETWORK: _network,
    Disaster.SERVER_ERRORS: _server_errors,
    Disaster.RATE: _rate,
    Disaster.LOST_ANSWERS: _lost_answers,
    Disaster.CREDENTIALS: _credentials,
    Disaster.DISK_FULL: _disk_full,
    Disaster.STOP: _stop,
    Disaster.CLOCK: _clock,
    Disaster.BY_HAND: _by_hand,
    Disaster.DEFECT: _defect,
    Disaster.BAD_MACHINE: _bad_machine,
    Disaster.SPOT: _spot,
    Disaster.CLIENT: _client,
    Disaster.INTERRUPT: _interrupt,
}
"""For each fault that begins at a time, the functions that begin and end it."""


def every_step(mode: SelfEnd, restarts: Sequence[float], *, quiet: Outcome) -> Iterator[Schedule]:
    """Yields the schedules that kill the control node of one machine at each commit and each call of an
    undisturbed story, before and after it. `quiet` is the undisturbed story."""
    for disaster in KILLS:
        steps = quiet.commits if "commit" in disaster else quiet.calls
        for restart in restarts:
            for at in range(1, steps + 1):
                yield Schedule(
                    mode=mode,
                    disaster=disaster,
                    at=at,
                    restart_after=restart,
                    lag=at % 2 == 1,
                    seed=at,
                    exports=at % 4 >= 2,
                )


def random_schedules(
    mode: SelfEnd, machines: int, count: int, *, seconds: float, steps: int, seed: int = 0
) -> Iterator[Schedule]:
    """Yields seeded schedules with each kind of fault in turn: kills among the first `steps` commits or
    calls, and other faults in the first `seconds`. Every other schedule has a second fault."""
    random = Random(f"{mode} {machines} {seed}")
    disasters = tuple(one for one in Disaster if one is not Disaster.NONE)
    seconds_faults = tuple(one for one in disasters if one not in ENDS)
    for number in range(count):
        disaster = disasters[number % len(disasters)]
        restart = random.choice((0.0, 60.0, LATE_SECONDS, inf)) if disaster in ENDS else 0.0
        is_long, exports = random.random() < 0.3, random.random() < 0.5
        # a machine that hangs cannot end itself, so that only a control node can end it
        impossible = {disaster, Disaster.DEFECT} if restart == inf else {disaster}
        others = [one for one in seconds_faults if one not in impossible]
        yield Schedule(
            mode=mode,
            disaster=disaster,
            at=random.randint(1, steps) if disaster in KILLS else random.uniform(0.0, seconds),
            restart_after=restart,
            machines=machines,
            lag=random.random() < 0.5,
            also=random.choice(others) if random.random() < 0.5 else Disaster.NONE,
            also_at=random.uniform(0.0, seconds),
            seed=random.randrange(2**32),
            job_seconds=LONG_JOB_SECONDS if is_long else JOB_SECONDS,
            exports=exports,
        )
