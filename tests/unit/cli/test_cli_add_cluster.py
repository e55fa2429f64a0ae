"""`add cluster`: a join line holds once, so what can be known to be wrong is told before it is used."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit.farms import farm, open_folder
from tests.unit.cli.test_cli import Cli

from gridmill.domain.site import Site, SiteKind
from gridmill.farm.join import invite
from gridmill.farm.main import RunningFarm
from gridmill.farm.tenant import Tenant


@pytest.fixture
def running() -> Iterator[RunningFarm]:
    with open_folder() as folder, farm(folder / "farm") as started:
        yield started


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, capfd)


def at(running: RunningFarm) -> str:
    return running.server.address.removeprefix("https://")


def line(running: RunningFarm) -> tuple[str, ...]:
    secret = invite(running.farm.records, running.farm.now())
    return "--controller", at(running), "--join", f"{running.farm.authority.fingerprint}:{secret}"


def test_what_is_wrong_spends_no_join_line(running: RunningFarm, cli: Cli) -> None:
    cli.fake.add_site(Site(name="other", kind=SiteKind.SLURM))
    asked = line(running)
    for words, wrong in (
        (("far", *asked, "--set", "rat=1MiB"), "settings.rat"),
        (("far", *asked, "--set", "rate=fast"), "settings.rate"),
        (("far", *asked, "--set", "rate=1MiB", "--set", "rate=2MiB"), "--set rate is given twice"),
        (("far", *asked, "--export", "ftp://x"), "settings.export"),
        (("../far", *asked), "cannot be the name of a site"),
        (("other", *asked), "already, of kind slurm"),
        (("far", *asked, "--address", "gpu1"), "--address"),
        (("far", *asked, "--kind", "ray"), "--kind"),
    ):
        assert cli("add", "cluster", *words) in (2, 5)
        assert wrong in cli.err
    assert not running.farm.records.all(Tenant)
    assert cli("add", "cluster", "far", *asked, "--set", "rate=1MiB") == 0, cli.err
    assert len(running.farm.records.all(Tenant)) == 1


def test_a_cluster_that_is_joined_anew_keeps_its_settings(running: RunningFarm, cli: Cli) -> None:
    assert cli("add", "cluster", "far", *line(running), "--set", "rate=1MiB") == 0, cli.err
    assert cli("add", "cluster", "far", "--controller", at(running)) == 0, cli.err
    [site] = [one for one in cli.fake.sites().items if one.name == "far"]
    assert dict(site.settings) == {"rate": "1MiB"}


def test_a_cluster_without_its_controller_and_a_site_with_one_are_refused(cli: Cli) -> None:
    assert cli("add", "cluster", "far") == 2
    assert "--controller" in cli.err
    assert cli("add", "site", "far", "--kind", "ray", "--controller", "gpu1") == 2
    assert "only a cluster" in cli.err
    assert cli("show", "site", "far") == 4


def test_an_empty_standard_input_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert cli("add", "cluster", "far", "--controller", "gpu1:8700", "--join", "-") == 2
    assert "standard input, which is empty" in cli.err
    assert "no farm was joined" not in cli.err


def test_a_site_is_shown_with_its_address_and_settings(cli: Cli) -> None:
    cli.fake.add_site(Site(name="far", kind=SiteKind.CLUSTER, address="gpu1:8700", settings={"rate": "1MiB"}))
    assert cli("show", "site", "far") == 0
    assert "gpu1:8700" in cli.out
    assert "1MiB" in cli.out
