"""The kill test of rented machines with real processes: `gridmill up` is killed while it rents a machine of
the simulated EC2, and the machine is a host in Linux namespaces with an SSH server.

`python -m bench.rental_processes [COUNT [FIRST]]` runs the schedules with the seeds FIRST and following. It
needs root, iproute2 and sshd.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from pathlib import Path
from random import Random
from typing import TypeVar

from bench.contestants import GRIDMILL
from bench.measure import Result, at_most, row, save
from gridmill.declarations import read_pipeline
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import FINISHED_RUNS, AttemptState, RunState
from gridmill.domain.views import RunView
from gridmill.errors import GridmillError
from gridmill.ports.grid import Grid
from gridmill.sdk.client import connect
from gridmill.testing.cloud.cloud_faults import CloudFaults
from gridmill.testing.cloud.ec2.records import Instance
from gridmill.testing.cloud.ec2.simulation import EC2Simulation, simulated_ec2
from gridmill.testing.cloud.namespace_machines import NamespaceMachines, why_no_machines
from gridmill.testing.cloud.rental_oracle import RELEASE_SECONDS

T = TypeVar("T")
DEAD_MAN_SECONDS = 60.0
JOB_SECONDS = 3.0
FAULT_SECONDS = 15.0
LONGEST_SECONDS = 240.0
"""The time after which a schedule that has not ended fails."""
SHUTDOWN_SECONDS = 20.0
"""The longest delay with which a machine ends itself, on a computer that also runs other programs."""
_LOOK_SECONDS = 0.02
PIPELINE = f"""
pipeline: p
resources:
  burst:
    {{type: command, site: aws, cpus: 1, memory: 256MiB, keep: 0s, settings: {{instance_type: t3.micro}}}}
jobs:
  one:
    resource: burst
    command: "sleep {JOB_SECONDS:g}; echo done > $GRIDMILL_OUTPUT/out"
"""


class Disaster(StrEnum):
    """The fault of a schedule."""

    BEFORE_COMMIT = "SIGKILL before a commit"
    AFTER_COMMIT = "SIGKILL after a commit"
    CALL = "SIGKILL after a call to the provider"
    KILL = "SIGKILL at a time"
    INTERRUPT = "Ctrl-C at the control node"
    STOP = "run stopped"
    NETWORK = "network cut"
    ERRORS = "provider answers 5xx, and answers are lost"
    RATE = "provider answers 429"
    DISK = "full disk"
    BY_HAND = "machine ended by hand"
    SPOT = "spot machine interrupted"


ENDS = (Disaster.BEFORE_COMMIT, Disaster.AFTER_COMMIT, Disaster.CALL, Disaster.KILL, Disaster.INTERRUPT)
"""The faults that end the control node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One fault. `at` is the number of the commit or call, or the seconds after the start of the run. The
    control node starts again `restart_after` seconds later, or never."""

    seed: int
    disaster: Disaster
    at: float
    restart_after: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a schedule, as the provider shows it: machines that still run, what else is left in the
    account, the longest time for which a machine was billed beyond need, the state of the run, and how many
    results were accepted."""

    schedule: Schedule
    machines: int
    leaked: int
    leftovers: tuple[str, ...]
    beyond_seconds: float
    state: str
    results: int
    seconds: float

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems of the outcome."""
        schedule, found = self.schedule, []
        restarts = schedule.restart_after < inf
        most = RELEASE_SECONDS if restarts else DEAD_MAN_SECONDS + JOB_SECONDS + SHUTDOWN_SECONDS
        if self.leaked:
            found.append(f"{self.leaked} machines still exist")
        if self.beyond_seconds > most:
            found.append(f"a machine was billed {self.beyond_seconds:.1f} s longer than needed")
        if restarts and self.leftovers:
            found.append(f"left: {', '.join(self.leftovers)}")
        stopped = schedule.disaster is Disaster.STOP
        if restarts and not stopped and self.state != RunState.SUCCEEDED:
            found.append(f"the run is {self.state}")
        if self.results > 1:
            found.append(f"{self.results} results were accepted")
        return tuple(found)


def schedule_of(seed: int) -> Schedule:
    """Returns the schedule with this seed. The seed selects the faults in turn, and the other values are
    random."""
    random = Random(seed)
    disaster = tuple(Disaster)[seed % len(Disaster)]
    at = {
        Disaster.BEFORE_COMMIT: random.randint(1, 20),
        Disaster.AFTER_COMMIT: random.randint(1, 20),
        Disaster.CALL: random.randint(1, 30),
    }.get(disaster, random.uniform(0.0, 14.0))
    never = disaster in ENDS and seed // len(Disaster) % 4 == 3
    restart = inf if never else random.choice((0.0, 10.0)) if disaster in ENDS else 0.0
    return Schedule(seed=seed, disaster=disaster, at=at, restart_after=restart)


@dataclass
class Rental:
    """A home, the account in which it rents, and the process of its control node."""

    home: Path
    folder: Path
    ec2: EC2Simulation
    host: NamespaceMachines
    spot: bool
    process: "subprocess.Popen[bytes] | None" = None
    reachable: float = 0.0

    def start(self, fault: str = "") -> None:
        """Starts the control node, without waiting for it."""
        env = {
            **os.environ,
            "GRIDMILL_HOME": str(self.home),
            "GRIDMILL_ROOT": str(self.folder / "root"),
            "GRIDMILL_FAULT": fault,
            "GRIDMILL_OBSERVE": "0.2",
            "GRIDMILL_GRACE": "1",
        }
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(GRIDMILL), "up", "--listen", "off"],
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def is_up(self) -> bool:
        """Whether the process of the control node lives."""
        return self.process is not None and self.process.poll() is None

    def end(self, number: int) -> None:
        """Ends the control node by a signal."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)
            self.process.wait()

    def ask(self, act: Callable[[Grid], T]) -> T | None:
        """The result of a use case, or None while the control node does not answer."""
        try:
            with connect(self.home, embed=False) as client:
                return act(client.grid)
        except (GridmillError, OSError):
            return None

    def prepare(self) -> None:
        """Declares the account."""
        wait(lambda: self.ask(lambda grid: grid.control()), "the control node answers")
        settings = {
            "provider": "aws",
            "regions": "us-east-1",
            "endpoint_url": self.ec2.endpoint_url,
            "access_key_id": self.ec2.access_key,
            "secret_access_key": "aws-key",
            "python": sys.executable,
            "dead_man": f"{DEAD_MAN_SECONDS:g}s",
            "spot": "true" if self.spot else "false",
        }
        site = Site(name="aws", kind=SiteKind.CLOUD, settings=settings)
        with connect(self.home, embed=False) as client:
            client.grid.add_secret("aws-key", self.ec2.secret_key)
            client.grid.add_site(site)

    def submit(self) -> None:
        """Starts the run, unless it was started."""
        pipeline = read_pipeline(self.folder / "project" / "pipeline.yaml")
        self.ask(lambda grid: grid.runs().items or (grid.start_run(pipeline),))

    def submitted(self) -> "Rental":
        """Starts the run, unless it was started."""
        self.submit()
        return self

    def view(self) -> RunView | None:
        """The run, or None."""
        return self.ask(lambda grid: next((grid.run(one.id) for one in grid.runs().items), None))

    def is_over(self) -> bool:
        """Whether the run has ended."""
        view = self.view()
        return view is not None and view.run.state in FINISHED_RUNS


def wait(condition: Callable[[], object], what: str, seconds: float = LONGEST_SECONDS) -> None:
    """Waits for a condition. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {seconds:.0f} s until {what}")
        time.sleep(_LOOK_SECONDS)


@contextmanager
def rental(schedule: Schedule) -> Iterator[Rental]:
    """A home with an account of a simulated EC2, whose machines are hosts in namespaces."""
    host = NamespaceMachines()
    faults = CloudFaults(seed=schedule.seed, notice_seconds=5.0)
    with (
        tempfile.TemporaryDirectory(prefix="gmrp", ignore_cleanup_errors=True) as name,
        simulated_ec2(host=host, faults=faults, seed=schedule.seed) as ec2,
    ):
        folder = Path(name)
        for part in ("home", "project"):
            (folder / part).mkdir()
        (folder / "project" / "pipeline.yaml").write_text(PIPELINE)
        small = schedule.disaster is Disaster.DISK
        if small:
            _run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder / "home"))
        spot = schedule.disaster is Disaster.SPOT
        one = Rental(home=folder / "home", folder=folder, ec2=ec2, host=host, spot=spot)
        try:
            yield one
        finally:
            one.end(signal.SIGKILL)
            if small:
                _run("umount", "-l", str(folder / "home"))


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


def run_schedule(seed: int) -> Outcome:
    """Runs one schedule. Raises TimeoutError if the schedule does not end."""
    schedule, begun = schedule_of(seed), time.monotonic()
    with rental(schedule) as one:
        one.start()
        one.prepare()
        _disturb(one, schedule)
        restarts = schedule.restart_after < inf
        if restarts:
            wait(one.is_over, f"the run of seed {seed} ends")
        wait(lambda: not one.ec2.running(), f"the machines of seed {seed} end", LONGEST_SECONDS)
        with suppress(TimeoutError):
            wait(lambda: not restarts or not one.ec2.leftovers(), "nothing is left", 60.0)
        return _judged(one, schedule, time.monotonic() - begun)


def _disturb(one: Rental, schedule: Schedule) -> None:
    """Starts the run, and causes the fault."""
    if schedule.disaster not in (Disaster.BEFORE_COMMIT, Disaster.AFTER_COMMIT):
        one.submit()
        began = time.monotonic()
        if schedule.disaster is Disaster.CALL:
            wait(lambda: len(one.ec2.requests) >= schedule.at or one.is_over(), "the call is made")
        else:
            wait(lambda: time.monotonic() - began >= schedule.at, "the time of the fault")
        if schedule.disaster not in ENDS:
            _window(one, schedule)
            one.reachable = time.time()
            return
        one.end(signal.SIGINT if schedule.disaster is Disaster.INTERRUPT else signal.SIGKILL)
    else:
        where = "before-commit" if schedule.disaster is Disaster.BEFORE_COMMIT else "after-commit"
        one.end(signal.SIGTERM)
        one.start(f"{where}:{schedule.at:.0f}")
        wait(lambda: not one.is_up() or one.submitted().is_over(), "the control node is killed")
        one.end(signal.SIGKILL)
    one.reachable = time.time()
    if schedule.restart_after < inf:
        time.sleep(schedule.restart_after)
        one.start()
        wait(lambda: one.ask(lambda grid: grid.control()), "the control node answers again")
        one.reachable = time.time()
        one.submit()


def _window(one: Rental, schedule: Schedule) -> None:
    """Causes a fault that ends no control node, from its start to its end."""
    match schedule.disaster:
        case Disaster.STOP:
            one.ask(lambda grid: [grid.stop_run(run.id) for run in grid.runs().items])
        case Disaster.BY_HAND:
            for machine in one.ec2.running():
                one.ec2.terminate_by_hand(machine.id)
        case Disaster.SPOT:
            for machine in one.ec2.running():
                one.ec2.interrupt(machine.id)
        case Disaster.DISK:
            with _full(one.home):
                time.sleep(FAULT_SECONDS)
        case Disaster.NETWORK:
            with _changed(one.ec2.faults, {"regions_down": ["*"]}), _without_ssh(one):
                time.sleep(FAULT_SECONDS)
        case Disaster.ERRORS:
            with _changed(one.ec2.faults, {"error_rate": 0.4, "lost_rate": 0.3}):
                time.sleep(FAULT_SECONDS)
        case _:
            with _throttled(one):
                time.sleep(FAULT_SECONDS)


@contextmanager
def _changed(faults: CloudFaults, during: Mapping[str, object]) -> Iterator[None]:
    before = {name: getattr(faults, name) for name in during}
    faults.change(**during)
    yield
    faults.change(**before)


@contextmanager
def _throttled(one: Rental) -> Iterator[None]:
    """Answers most requests with the error for too many requests."""
    for _ in range(200):
        one.ec2.faults.fail("*", "RequestLimitExceeded", status=503)
    yield
    one.ec2.faults.planned.clear()


@contextmanager
def _without_ssh(one: Rental) -> Iterator[None]:
    """Stops the answers of the machines that exist now."""
    rules = {each.id: each for each in one.ec2.running()}
    before = {name: one.host.ingress_of(name) for name in rules}
    for name in rules:
        one.host.set_ingress(name, ())
    yield
    for name, ingress in before.items():
        one.host.set_ingress(name, ingress)


@contextmanager
def _full(folder: Path) -> Iterator[None]:
    """Fills the disk of a folder."""
    filler = folder / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    yield
    filler.unlink()


def _judged(one: Rental, schedule: Schedule, seconds: float) -> Outcome:
    machines = one.ec2.machines()
    view = one.view() if schedule.restart_after < inf else None
    attempts = [each for job in view.jobs for each in job.attempts] if view is not None else []
    pods = one.ask(lambda grid: {each.lease.id: each.lease.pod_id for each in grid.leases().items}) or {}
    over = (view.run.ended if view is not None else None) or 0.0

    def beyond(machine: Instance) -> float:
        pod = pods.get(dict(machine.tags).get("gridmill-lease", ""), "")
        ends = [each.ended or 0.0 for each in attempts if each.pod_id == pod]
        ended = machine.runs[-1][1] if machine.runs else machine.launched_at
        return (ended or time.time()) - max(machine.launched_at, one.reachable, max(ends, default=over))

    return Outcome(
        schedule=schedule,
        machines=len(machines),
        leaked=len(one.ec2.running()),
        leftovers=tuple(one.ec2.leftovers()),
        beyond_seconds=max([0.0, *map(beyond, machines)]),
        state=view.run.state if view is not None else "",
        results=sum(each.state is AttemptState.SUCCEEDED for each in attempts),
        seconds=seconds,
    )


def told(seed: int) -> Outcome | str:
    """Returns the outcome of a schedule, or the reason why the schedule did not end."""
    try:
        return run_schedule(seed)
    except (TimeoutError, GridmillError, OSError) as error:
        return f"{schedule_of(seed)}: {error!r}"


def measure(seeds: Sequence[int], at_once: int) -> tuple[list[Outcome], list[str]]:
    """Runs these schedules, several at the same time. Returns the outcomes and the failures."""
    outcomes, failures = [], []
    with ProcessPoolExecutor(at_once) as pool:
        for each in pool.map(told, seeds):
            if isinstance(each, str):
                failures.append(each)
            else:
                outcomes.append(each)
                print(
                    f"{each.schedule.seed:3} {each.schedule.disaster:45} at {each.schedule.at:5.1f}"
                    f" restart {each.schedule.restart_after:4} beyond {each.beyond_seconds:5.1f} s"
                    f" {each.seconds:5.1f} s {'; '.join(each.problems)}",
                    flush=True,
                )
    return outcomes, failures


AREA = "Rented machines, real processes"
HOW = f"""
Each schedule starts `gridmill up`, and runs a job of {JOB_SECONDS:g} s on a machine of the simulated EC2,
which is a host in Linux namespaces with an SSH server. In most schedules the control node is ended by
SIGKILL or SIGINT, and starts again after 0 s, after 10 s or never. The time without contact after which a
machine ends itself is {DEAD_MAN_SECONDS:g} s.
"""


def rows(outcomes: Sequence[Outcome], failures: Sequence[str]) -> list[Result]:
    """The lines of docs/benchmarks.md."""
    back = [one for one in outcomes if one.schedule.restart_after < inf]
    never = [one for one in outcomes if one.schedule.restart_after == inf]
    lost = sum("the run is" in text for one in back for text in one.problems) + len(failures)
    longest = max((one.beyond_seconds for one in back), default=0.0)
    results = [
        row(AREA, "schedules", len(outcomes) + len(failures), ""),
        row(AREA, "schedules without a restart", len(never), ""),
        row(AREA, "machines", sum(one.machines for one in outcomes), ""),
        at_most(0, AREA, "machines leaked", sum(one.leaked for one in outcomes), ""),
        at_most(0, AREA, "other resources left, with a restart", sum(len(one.leftovers) for one in back), ""),
        at_most(RELEASE_SECONDS, AREA, "billed beyond need, most, with a restart", longest, "s"),
        at_most(0, AREA, "runs that did not succeed", lost, ""),
        at_most(0, AREA, "results accepted twice", sum(one.results > 1 for one in outcomes), ""),
    ]
    if never:
        most = DEAD_MAN_SECONDS + JOB_SECONDS + SHUTDOWN_SECONDS
        value = max(one.beyond_seconds for one in never)
        results.append(at_most(most, AREA, "billed beyond need, most, without a restart", value, "s"))
    return results


def main(words: Sequence[str]) -> int:
    if reason := why_no_machines():
        print(f"not measured: {reason}", file=sys.stderr)
        return 0
    count, first = (int(word) for word in (*words, *("50", "0")[len(words) :]))
    outcomes, failures = measure(range(first, first + count), max(2, (os.cpu_count() or 2)))
    for text in failures:
        print(text, file=sys.stderr)
    save(
        "rental-processes",
        rows(outcomes, failures),
        how=HOW,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
