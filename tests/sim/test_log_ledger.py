"""The ledger of a request log: each logged line is loaded, waits, or is counted as lost, whatever is killed,
separated, doubled or full. A brute-force ledger of the test has the fate of each line."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.sites.farm.test_cluster_carrying import ended, home
from tests.unit.sites.farm.test_logged_rows import (
    ATTEMPT,
    POD,
    WRITER,
    Farm,
    here,
    log_at_farm,
    start,
)

from gridmill.domain.log_counts import LogArrivals, LogReport, ServiceLog
from gridmill.domain.service_log import READY_FOLDER
from gridmill.domain.states import AttemptState
from gridmill.errors import UnavailableError
from gridmill.serving import log_files
from gridmill.serving.log_files import LineFiles
from gridmill.serving.request_log import RequestLogUpkeep
from gridmill.storage.root import StorageRoot

STEPS = (*["write"] * 3, *["flush"] * 2, "kill", *["take"] * 2, "report", "load", "home", "apart", "full")


class World:
    """A service at a farm with two replicas, and the home that takes its log. `fates` has the fate of each
    line that is certainly lost."""

    def __init__(self, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chance, self.path = random.Random(seed), tmp_path
        self.is_apart, self.is_full = False, False
        self.farm = Farm(tmp_path / "there", self.fault)
        self.carrying, placed = start(tmp_path, self.farm, file_bytes=12, files=2)
        self.log, self.work = log_at_farm(placed), tmp_path / "work"
        self.work.mkdir()
        self.upkeep = RequestLogUpkeep(self.work)
        self.counts, self.loaded = ServiceLog(), dict[str, str]()
        self.logged, self.clock = 0, 0.0
        monkeypatch.setattr(log_files, "MOST_WAITING", 12)
        append = LineFiles._append
        monkeypatch.setattr(LineFiles, "_append", lambda files, content: self.append(append, files, content))
        self.files = {number: self.replica(number) for number in range(2)}

    def fault(self) -> str:
        return "before" if self.is_apart else self.chance.choice(("before", "after", "", "", ""))

    def append(self, append: Callable[[LineFiles, bytes], None], files: LineFiles, content: bytes) -> None:
        """Append lines to a disk that may become full in the middle of them."""
        if not self.is_full:
            return append(files, content)
        append(files, content[: self.chance.randrange(len(content))])
        raise OSError("no space left on the device")

    def replica(self, number: int) -> LineFiles:
        return LineFiles(self.log, number, counts_folder=self.work, monotonic=lambda: self.clock)

    def write(self) -> None:
        lines = [str(self.logged + at) for at in range(self.chance.randrange(1, 9))]
        self.logged += len(lines)
        self.files[self.chance.randrange(2)].add(*lines)

    def kill(self) -> None:
        """Kill a replica, perhaps in the middle of a line. Its parent process or its successor counts."""
        number = self.chance.randrange(2)
        torn = Path(self.log.folder) / f"rows-{WRITER}-{number}.part"
        if torn.exists() and self.chance.random() < 0.5:
            torn.write_text(f"{torn.read_text()}12345")
        if self.chance.random() < 0.5:
            self.upkeep.complete(self.log, {1 - number})
        self.files[number] = self.replica(number)

    def take(self) -> None:
        self.carrying.logs.tick()

    def report(self) -> None:
        self.upkeep.look(self.clock, self.log, self.files)
        if self.upkeep.report is not None:
            self.counts = self.counts.reported(ATTEMPT, self.upkeep.report)
            if self.chance.random() < 0.3:  # a report that arrives twice, or an old one
                self.counts = self.counts.reported(ATTEMPT, LogReport(writer=WRITER, is_transferred=True))

    def load(self) -> None:
        """A sink loads each file that it does not have; a file never changes."""
        for name, content in here(self.path).items():
            assert self.loaded.setdefault(name, content) == content

    def step(self) -> None:
        self.clock += self.chance.choice((0.3, 3.0, 20.0))
        match chosen := self.chance.choice(STEPS):
            case "flush":
                self.files[self.chance.randrange(2)].flush()
            case "home":  # the control node is killed and started again
                self.carrying = home(self.path, self.farm)
            case "apart":
                self.is_apart = self.chance.random() < 0.5
            case "full":
                self.is_full = self.chance.random() < 0.3
            case _:
                getattr(self, chosen)()

    def arrivals(self) -> LogArrivals:
        return StorageRoot(self.path / "root", self.path / "b").log_arrivals("rain", self.counts.writers)

    def come_home(self) -> None:
        """The attempt ends, and the home takes the rest of its log."""
        self.is_apart = False
        for _ in range(300):
            try:
                self.carrying.download_results(ended(AttemptState.STOPPED))
                break
            except UnavailableError:
                continue
        self.load()

    def lost(self) -> Counter[str]:
        return Counter(self.counts.losses(self.arrivals()).lost.get("rows", {}))

    def loaded_lines(self) -> list[int]:
        return sorted(json.loads(line) for text in self.loaded.values() for line in text.splitlines())


@pytest.fixture(params=range(25))
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path, request.param, monkeypatch)
    for _ in range(80):
        made.step()
    return made


def check_loaded_once(world: World) -> None:
    loaded = world.loaded_lines()
    assert len(set(loaded)) == len(loaded)
    assert set(loaded) <= set(range(world.logged))


def test_an_ordered_end_accounts_for_each_line(world: World) -> None:
    for files in world.files.values():
        files.flush(ends=True)
    world.upkeep.end()
    assert world.upkeep.report is None or world.upkeep.report.is_last
    if world.upkeep.report is not None:
        world.counts = world.counts.reported(ATTEMPT, world.upkeep.report)
    world.come_home()
    before = world.counts.of(ATTEMPT)
    # the counts of the replicas and of the home agree without the difference between them
    assert before is None or before.missing(world.arrivals()) == {}
    world.counts = world.counts.ended(ATTEMPT, world.arrivals())
    check_loaded_once(world)
    assert world.logged == len(world.loaded_lines()) + world.lost().total()
    assert world.counts.unknown_ends == 0


def test_an_end_without_notice_counts_no_more_than_what_is_lost(world: World) -> None:
    """The machine is lost with its files: the reported lines that are not at home are counted as lost, and
    only lines after the last report are missing in the ledger."""
    world.load()
    known = world.counts.of(ATTEMPT)
    reported = known.report.counts["rows"].logged if known is not None and known.report.counts else 0
    world.counts = world.counts.ended(ATTEMPT, world.arrivals())
    check_loaded_once(world)
    real = world.logged - len(world.loaded_lines())
    counted = world.lost().total()
    assert counted <= real
    assert real - counted <= world.logged - reported
    assert world.counts.unknown_ends == (known is not None)


def test_lines_that_arrive_after_a_long_separation_are_no_longer_counted_as_lost(world: World) -> None:
    world.load()
    world.counts = world.counts.ended(ATTEMPT, world.arrivals())
    before = world.lost().total()
    for _ in range(300):
        try:
            world.is_apart = False
            world.carrying.checkpoints.settle(POD)
            break
        except UnavailableError:
            continue
    world.load()
    check_loaded_once(world)
    assert world.lost().total() <= before
    assert world.lost().total() <= world.logged - len(world.loaded_lines())
    assert not [one for one in (Path(world.log.folder) / READY_FOLDER).glob("*") if one.is_file()]


def test_the_fates_of_lines_are_all_tried(tmp_path: Path) -> None:
    """The schedules above reach each reason for which lines are lost."""
    reasons = Counter[str]()
    for seed in range(12):
        with pytest.MonkeyPatch.context() as patch:
            (tmp_path / str(seed)).mkdir()
            one = World(tmp_path / str(seed), seed, patch)
            for _ in range(80):
                one.step()
            one.report()
            one.counts = one.counts.ended(ATTEMPT, one.arrivals())
            reasons += one.lost()
    assert {"queue_full", "disk", "replica_killed", "deleted", "pod_ended"} <= set(reasons)
