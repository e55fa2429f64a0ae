"""Checkpoints of attempts at a farm come home while they run, and what was lost there is gone on from."""

from dataclasses import replace
from pathlib import Path
from threading import Lock

import pytest
from tests.unit.sites.farm.test_cluster_carrying import Elsewhere, ended, home, order, outcome

from gridmill.domain.farm_protocol import Manifest
from gridmill.domain.states import AttemptState
from gridmill.errors import UnavailableError
from gridmill.sites.farm.staging import HomeAttemptData
from gridmill.transfer.errors import TransferRefusedError

URI = "checkpoints/p/j"
POD = "d.0"


@pytest.fixture
def farm(tmp_path: Path) -> Elsewhere:
    return Elsewhere(tmp_path / "there")


@pytest.fixture
def carrying(tmp_path: Path, farm: Elsewhere) -> HomeAttemptData:
    """An attempt runs there."""
    made = home(tmp_path, farm)
    begin(made)
    return made


def begin(carrying: HomeAttemptData, attempt: str = "p-1.j.1", uri: str = URI) -> None:
    wanted = replace(order(), attempt_id=attempt, checkpoint_uri=uri)
    carrying.note(wanted, POD)
    carrying.upload_inputs(wanted)


def write(farm: Elsewhere, epoch: str, attempt: str = "p-1.j.1") -> None:
    folder = farm.root / f"{URI}.{attempt}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "epoch").write_text(epoch)


def here(tmp_path: Path) -> str:
    path = tmp_path / "root" / URI / "epoch"
    return path.read_text() if path.exists() else ""


def test_newer_ones_come_while_it_runs(tmp_path: Path, farm: Elsewhere, carrying: HomeAttemptData) -> None:
    assert not carrying.checkpoints.bring("p-1.j.1")  # none are there
    for epoch in ("1", "2"):
        write(farm, epoch)
        assert carrying.checkpoints.bring("p-1.j.1")
        assert here(tmp_path) == epoch
    fetched = farm.fetched
    assert not carrying.checkpoints.bring("p-1.j.1")
    assert farm.fetched == fetched
    write(farm, "3")
    farm.fails = [UnavailableError("cut")]
    assert not carrying.checkpoints.bring("p-1.j.1")
    assert here(tmp_path) == "2"


def test_those_that_are_being_written_come_later(
    tmp_path: Path, farm: Elsewhere, carrying: HomeAttemptData
) -> None:
    write(farm, "1")
    looks: list[Manifest] = []
    seen = farm.scan

    def scan(uri: str) -> Manifest:
        looks.append(seen(uri))
        write(farm, f"{len(looks)} of many")
        return looks[-1]

    farm.scan = scan  # type: ignore[method-assign]
    assert not carrying.checkpoints.bring("p-1.j.1")
    assert len(looks) == 2
    assert here(tmp_path) == ""


def test_its_end_is_not_waited_for_by_them(
    tmp_path: Path, farm: Elsewhere, carrying: HomeAttemptData
) -> None:
    write(farm, "1")
    lock: Lock = carrying._lock_of("p-1.j.1")
    with lock:  # its end is being told
        assert not carrying.checkpoints.bring("p-1.j.1")
    carrying.download_results(ended(AttemptState.FAILED))
    assert here(tmp_path) == "1"
    write(farm, "2")
    assert not carrying.checkpoints.bring("p-1.j.1")


def test_each_is_looked_for_when_it_is_due(
    tmp_path: Path, farm: Elsewhere, carrying: HomeAttemptData
) -> None:
    write(farm, "1")
    carrying.checkpoints.tick(3600.0)
    assert here(tmp_path) == "1"
    write(farm, "2")
    carrying.checkpoints.tick(3600.0)
    assert here(tmp_path) == "1"


def test_a_pod_that_is_gone_without_a_word_leaves_them_and_is_forgotten(
    tmp_path: Path, farm: Elsewhere, carrying: HomeAttemptData
) -> None:
    write(farm, "1")
    farm.fails = [UnavailableError("cut")]
    with pytest.raises(UnavailableError):
        carrying.checkpoints.settle(POD)
    for _ in range(2):
        carrying.checkpoints.settle("another.0")
        carrying.checkpoints.settle(POD)
    assert here(tmp_path) == "1"
    assert farm.forgotten == ["p-1.j.1"]


def test_what_a_bucket_does_not_let_out_as_its_pod_goes_stays_at_the_farm(
    tmp_path: Path, farm: Elsewhere, carrying: HomeAttemptData
) -> None:
    write(farm, "1")
    farm.fails = [TransferRefusedError("access is refused")]
    for _ in range(2):
        carrying.checkpoints.settle(POD)
    carrying.checkpoints.tick(0.0)
    assert (here(tmp_path), farm.forgotten, farm.fails) == ("", [], [])


def test_what_a_farm_that_was_cut_off_has_is_gone_on_from_when_it_is_back(
    tmp_path: Path, farm: Elsewhere, carrying: HomeAttemptData
) -> None:
    write(farm, "1")
    carrying.checkpoints.bring("p-1.j.1")
    write(farm, "2")
    carrying.checkpoints.lose(POD)
    again = home(tmp_path, farm)  # the control node was started anew meanwhile
    again.checkpoints.tick(0.0)
    assert (here(tmp_path), farm.forgotten) == ("1", [])
    begin(again, "p-1.j.2")
    assert (here(tmp_path), farm.forgotten) == ("2", ["p-1.j.1"])


def test_what_went_on_elsewhere_is_not_put_back(
    tmp_path: Path, farm: Elsewhere, carrying: HomeAttemptData
) -> None:
    write(farm, "1")
    carrying.checkpoints.bring("p-1.j.1")
    write(farm, "2")
    carrying.checkpoints.lose(POD)
    (tmp_path / "root" / URI / "epoch").write_text("9")  # an attempt here
    farm.fails = [UnavailableError("cut")]
    carrying.checkpoints.tick(0.0)
    assert farm.forgotten == []
    carrying.checkpoints.tick(0.0)
    assert (here(tmp_path), farm.forgotten) == ("9", ["p-1.j.1"])
    begin(carrying, "p-1.j.2")
    assert here(tmp_path) == "9"


def test_what_leaves_nothing_to_go_on_from_is_forgotten(tmp_path: Path, farm: Elsewhere) -> None:
    carrying = home(tmp_path, farm)
    begin(carrying, uri="")
    carrying.checkpoints.lose(POD)
    carrying.checkpoints.tick(0.0)
    assert farm.forgotten == ["p-1.j.1"]
    told = outcome(carrying.download_results(ended(AttemptState.STOPPED)))  # a late word changes nothing
    assert told.state == AttemptState.STOPPED
