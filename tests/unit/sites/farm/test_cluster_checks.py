"""What `doctor` says at home of the farms that it joined."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kit.farms import farm, open_folder
from tests.kit.ports import free_port

from gridmill.bootstrap.checks import look_at_clusters, look_at_dates
from gridmill.farm.join import invite
from gridmill.farm.main import RunningFarm
from gridmill.settings import Settings
from gridmill.sites.farm.certificate_request import holds
from gridmill.sites.farm.client import FarmClient
from gridmill.sites.farm.credentials import keeping
from gridmill.sites.farm.join import become_tenant


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, root=tmp_path / "root")


@pytest.fixture
def running() -> Iterator[RunningFarm]:
    with open_folder() as folder, farm(folder / "farm") as started:
        yield started


def joined(running: RunningFarm, settings: Settings) -> None:
    line = f"{running.farm.authority.fingerprint}:{invite(running.farm.records, running.farm.now())}"
    become_tenant(settings.home, "lab", running.server.address.removeprefix("https://"), line)


def looked(settings: Settings) -> tuple[bool, str]:
    ((what, well, found),) = look_at_clusters(settings)
    assert what == "farm lab"
    return well, found


def test_a_home_without_farms_has_nothing_to_say(settings: Settings) -> None:
    assert list(look_at_clusters(settings)) == []


def test_a_farm_that_answers_is_well_and_one_whose_clock_is_wrong_is_not(
    running: RunningFarm, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined(running, settings)
    well, found = looked(settings)
    assert "1 node" in found
    assert well, found
    told = FarmClient.clock
    monkeypatch.setattr(FarmClient, "clock", lambda farm: told(farm) - 7200)
    well, found = looked(settings)
    assert not well
    assert "s behind" in found


def test_a_farm_that_has_lost_something_is_well_and_says_so(
    running: RunningFarm, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined(running, settings)
    told = FarmClient.status
    monkeypatch.setattr(
        FarmClient, "status", lambda farm: replace(told(farm), warnings=("results are lost",))
    )
    well, found = looked(settings)
    assert well
    assert found.endswith("; results are lost")


def test_what_does_not_answer_or_is_not_there_is_told_with_what_to_do(
    running: RunningFarm, settings: Settings
) -> None:
    joined(running, settings)
    become_tenant(settings.home, "lab", f"127.0.0.1:{free_port()}", "")
    well, found = looked(settings)
    assert not well
    assert "does not answer" in found
    keeping(settings.home, "lab").key.unlink()
    assert looked(settings)[1].endswith(
        "Join the farm again: `gridmill farm invite` on the farm prints a line"
    )
    keeping(settings.home, "lab").certificate.write_text("nonsense")
    assert looked(settings) == (False, "is not a certificate")


def test_a_certificate_that_does_not_hold_names_the_day(running: RunningFarm, settings: Settings) -> None:
    joined(running, settings)
    certificate = keeping(settings.home, "lab").certificate
    begins, ends = holds(certificate.read_bytes())
    assert look_at_dates(certificate, begins + 1, "") == ""
    assert "set the clock" in look_at_dates(certificate, begins - 1, "")
    assert "renew it" in look_at_dates(certificate, ends, "renew it")
