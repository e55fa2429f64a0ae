"""The request log of a service at a farm comes home once, whatever is cut, doubled or killed on the way."""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.unit.sites.farm.test_cluster_carrying import URI, Elsewhere, ended, home, order, outcome

from gridmill.domain.farm_protocol import FarmStatus, Manifest
from gridmill.domain.log_counts import ARRIVED_FOLDER
from gridmill.domain.pod_protocol import AttemptOrder, ServiceUpdate
from gridmill.domain.service_log import (
    LOG_FOLDER,
    READY_FOLDER,
    is_complete_name,
    is_open_name,
    name_after_end,
    writer_in,
    writer_of,
)
from gridmill.domain.serving import RequestLog, ServiceOrder
from gridmill.domain.states import AttemptState
from gridmill.errors import AwayError, InputError, NotFoundError, StorageError, UnavailableError
from gridmill.serving.log_files import LineFiles
from gridmill.sites.farm.staging import HomeAttemptData
from gridmill.storage.root import StorageRoot

ATTEMPT, POD = "p-1.j.1", "d.0"
WRITER = writer_of(ATTEMPT, "t")
T = TypeVar("T")


class Farm(Elsewhere):
    """A farm that deletes log files, and whose calls fail before or after their effect if `faulty` says
    so."""

    def __init__(self, root: Path, faulty: Callable[[], str] = lambda: "") -> None:
        super().__init__(root)
        self.faulty, self.deleted = faulty, list[str]()
        self.logs = True

    def status(self) -> FarmStatus:
        return replace(super().status(), serves=True, logs=self.logs)

    def scan(self, uri: str) -> Manifest:
        return self._maybe(lambda: super(Farm, self).scan(uri))

    def fetch(self, chunks: Sequence[str]) -> Any:
        return self._maybe(lambda: super(Farm, self).fetch(chunks))

    def delete_log_files(self, attempt_id: str, names: Sequence[str]) -> None:
        assert attempt_id == ATTEMPT
        self._maybe(lambda: self._delete(names))

    def _delete(self, names: Sequence[str]) -> None:
        folder = self.root / URI / LOG_FOLDER
        for name in names:
            (folder / ("" if is_open_name(name) else READY_FOLDER) / name).unlink(missing_ok=True)
            self.deleted.append(name)

    def _maybe(self, act: Callable[[], T]) -> T:
        fault = self.faulty()
        if fault == "before":
            raise UnavailableError("cut before")
        if fault == "full":
            raise StorageError("the disk of this home is full")
        result = act()
        if fault == "after":
            raise AwayError("cut after")
        return result


def service_order(tmp_path: Path, **more: Any) -> ServiceOrder:
    log = RequestLog(folder=str(tmp_path / "root/requests/rain"), rows=True, writer=WRITER, **more)
    return ServiceOrder(name="rain", versions=(), request_log=log)


def start(tmp_path: Path, farm: Farm, **more: Any) -> tuple[HomeAttemptData, AttemptOrder]:
    carrying = home(tmp_path, farm)
    given = replace(order(), service=service_order(tmp_path, **more))
    carrying.note(given, POD)
    return carrying, carrying.upload_inputs(given)


def log_at_farm(placed: AttemptOrder) -> RequestLog:
    assert placed.service is not None
    assert placed.service.request_log is not None
    return placed.service.request_log


def here(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "root/requests/rain"
    return {path.name: path.read_text() for path in folder.glob("*.jsonl")}


def lines(content: dict[str, str]) -> list[int]:
    return sorted(json.loads(line) for text in content.values() for line in text.splitlines())


def test_complete_files_come_home_while_the_service_runs_and_the_farm_deletes_them(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "there")
    carrying, placed = start(tmp_path, farm)
    log = log_at_farm(placed)
    assert (log.folder, log.is_transferred) == (f"{farm.root}/{URI}/{LOG_FOLDER}", True)
    carrying.logs.tick()  # nothing was logged yet
    files = LineFiles(log, 0)
    files.add("1")
    files.flush(ends=True)
    files.add("2")
    files.flush()
    carrying.logs.tick()
    assert lines(here(tmp_path)) == [1]
    assert [path.name for path in Path(log.folder).rglob("*") if path.is_file()] == [f"rows-{WRITER}-0.part"]
    folders = [one.name for one in (tmp_path / "root/requests/rain").iterdir() if one.is_dir()]
    assert folders == [ARRIVED_FOLDER]

    # its end, for example that of its machine: the file that could not be completed comes too
    with (Path(log.folder) / f"rows-{WRITER}-0.part").open("a") as file:
        file.write("3\n4")
    carrying.download_results(ended(AttemptState.STOPPED))
    assert lines(here(tmp_path)) == [1, 2, 3]
    carrying.cleanup.tick()
    assert farm.forgotten == [ATTEMPT]


def test_a_pod_that_ended_without_a_word_leaves_its_log_to_the_home(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "there")
    carrying, placed = start(tmp_path, farm)
    files = LineFiles(log_at_farm(placed), 3)
    files.add("1")
    files.flush()
    carrying.checkpoints.settle(POD)
    assert lines(here(tmp_path)) == [1]
    assert farm.forgotten == [ATTEMPT]


def test_a_log_that_is_turned_on_later_comes_home_too(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "there")
    carrying = home(tmp_path, farm)
    without = replace(service_order(tmp_path), request_log=None)
    carrying.note(replace(order(), service=without), POD)
    carrying.logs.tick()
    sent = carrying.upload_service(ServiceUpdate(attempt_id=ATTEMPT, order=service_order(tmp_path)))
    assert sent.order.request_log is not None
    files = LineFiles(sent.order.request_log, 0)
    files.add("1")
    files.flush(ends=True)
    again = home(tmp_path, farm)  # the control node is started again, and sends the first order once more
    again.note(replace(order(), service=without), POD)
    again.logs.tick()
    assert lines(here(tmp_path)) == [1]


def test_an_older_farm_refuses_a_log_and_not_the_service(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "there")
    farm.logs = False
    carrying = home(tmp_path, farm)
    given = replace(order(), service=service_order(tmp_path))
    carrying.note(given, POD)
    with pytest.raises(InputError, match="cannot be logged at this farm: its Gridmill is older"):
        carrying.upload_inputs(given)
    assert given.service is not None
    carrying.upload_inputs(replace(given, service=replace(given.service, request_log=None)))


def test_a_farm_cannot_replace_other_files_of_the_home(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "there")
    carrying, placed = start(tmp_path, farm)
    ready = Path(log_at_farm(placed).folder) / READY_FOLDER
    ready.mkdir(parents=True)
    other = writer_of("other", "t")
    for name in (f"rows-{other}-0-1.jsonl", "rows-0-1.jsonl", "x.jsonl", f"rows-{WRITER}-0-7.jsonl"):
        (ready / name).write_text("1\n")
    (ready / "below").mkdir()
    (ready / f"below/rows-{WRITER}-0-8.jsonl").write_text("2\n")
    carrying.logs.tick()
    assert here(tmp_path) == {f"rows-{WRITER}-0-7.jsonl": "1\n"}
    assert farm.deleted == [f"rows-{WRITER}-0-7.jsonl"]


def test_the_oldest_files_at_home_are_deleted_above_a_limit(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "there")
    carrying, placed = start(tmp_path, farm)
    carrying.logs._kept_bytes = 6
    own = tmp_path / "root/requests/rain/rows-0-1.jsonl"  # of replicas on this machine, which have a limit
    own.parent.mkdir(parents=True)
    own.write_text("0\n" * 9)
    files = LineFiles(log_at_farm(placed), 0)
    for number in range(1, 6):
        files.add(str(number))
        files.flush(ends=True)
        carrying.logs.tick()
    assert lines(here(tmp_path)) == [0] * 9 + [3, 4, 5]
    bundles = tmp_path / "bundles"
    arrivals = StorageRoot(tmp_path / "root", bundles).log_arrivals("rain", [WRITER, "f" * 16])
    assert arrivals.arrived[WRITER].of_kind("rows") == 5
    assert (arrivals.arrived["f" * 16].of_kind("rows"), arrivals.deleted.of_kind("rows")) == (0, 2)


@pytest.mark.parametrize("seed", range(40))
def test_no_line_is_lost_or_doubled_whatever_fails_and_is_killed(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    farm = Farm(tmp_path / "there", lambda: chance.choice(("before", "after", "", "", "")))
    carrying, placed = start(tmp_path, farm)
    log, loaded, written = log_at_farm(placed), dict[str, str](), 0
    files = {number: LineFiles(log, number) for number in range(2)}
    folder = tmp_path / "root/requests/rain"

    def load() -> None:
        """A sink loads each file that it does not have; a file never changes."""
        for name, content in here(tmp_path).items():
            assert loaded.setdefault(name, content) == content

    for _ in range(40):
        number = chance.randrange(2)
        match chance.choice(("write", "write", "write", "kill", "take", "take", "home", "torn", "load")):
            case "write":
                files[number].add(str(written))
                written += 1
                files[number].flush(ends=chance.random() < 0.5)
            case "kill":  # another replica gets the number
                torn = Path(log.folder) / f"rows-{WRITER}-{number}.part"
                if torn.exists():
                    torn.write_text(f"{torn.read_text()}12345")
                files[number] = LineFiles(log, number)
            case "take":
                carrying.logs.tick()
            case "home":  # the control node is killed and started again
                carrying = home(tmp_path, farm)
            case "torn":  # it was killed when some files had their names
                (folder / f".coming-{ATTEMPT}").mkdir(parents=True, exist_ok=True)
                (folder / f".coming-{ATTEMPT}/left").touch()
                for path in (Path(log.folder) / READY_FOLDER).glob("*0.jsonl"):
                    shutil.copy(path, folder)
            case "load":
                load()
    for _ in range(200):
        try:
            carrying.download_results(ended(chance.choice((AttemptState.LOST, AttemptState.STOPPED))))
            break
        except UnavailableError:
            continue
    load()
    assert lines(loaded) == list(range(written))
    assert not [path for path in Path(log.folder).rglob("*") if path.is_file()]


@pytest.mark.parametrize("is_reported", [True, False])
def test_a_home_that_cannot_store_a_log_leaves_it_at_the_farm_and_ends_the_attempt(
    tmp_path: Path, is_reported: bool
) -> None:
    farm = Farm(tmp_path / "there")
    carrying, placed = start(tmp_path, farm)
    files = LineFiles(log_at_farm(placed), 0)
    files.add("1")
    files.flush(ends=True)
    farm.faulty = lambda: "full"
    if is_reported:
        carrying._trouble_seconds = 600.0
        with pytest.raises(StorageError):
            carrying.download_results(ended(AttemptState.STOPPED))
        carrying._trouble_seconds = 0.0
        came = carrying.download_results(ended(AttemptState.STOPPED))
        assert outcome(came).state is AttemptState.STOPPED
        carrying.cleanup.tick()
    else:
        carrying.checkpoints.settle(POD)
    assert farm.forgotten == []
    note = carrying._noted.find(ATTEMPT)
    assert note is not None
    assert not note.is_open
    assert list((Path(log_at_farm(placed).folder) / READY_FOLDER).iterdir())


def test_the_names_of_log_files() -> None:
    complete, open_ = f"rows-{WRITER}-12-17000.jsonl", f"requests-{WRITER}-0.part"
    assert is_complete_name(complete)
    assert is_open_name(open_)
    assert {writer_in(one) for one in (complete, open_)} == {WRITER}
    assert name_after_end(open_) == f"requests-{WRITER}-0-0.jsonl"
    assert name_after_end(complete) == complete
    for name in (
        "rows-0-1700000000000000000.jsonl",
        "rows-0.part",
        "../rows-1-1.jsonl",
        f"rows-{WRITER}-1-1",
    ):
        assert writer_in(name) == ""
    assert is_complete_name("rows-0-1700000000000000000.jsonl")
    assert not is_complete_name(f"a/{complete}")


def test_a_farm_without_files_of_the_attempt_is_no_problem(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "there")
    carrying, _ = start(tmp_path, farm)
    farm.fails = [NotFoundError("no folder")]
    carrying.logs.tick()
    assert carrying.held_up() == {}
    farm.fails = [UnavailableError("still being read")]
    carrying.logs.tick()
    assert "the request log is not transferred" in carrying.held_up()[ATTEMPT]
    carrying.logs.tick()
    assert carrying.held_up() == {}
