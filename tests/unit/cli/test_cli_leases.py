"""Leases and costs from the command line, on a grid in memory."""

from pathlib import Path

import pytest
from tests.unit.cli.test_cli import Cli

from gridmill.cli.leases import tell_leases
from gridmill.control.steps.lease_records import with_machine
from gridmill.control.usecases.leases import view_of
from gridmill.domain.charges import CostKind
from gridmill.domain.frozen import replace
from gridmill.domain.lease import LeaseState, TryProblem, TryState
from gridmill.domain.lease_cost import CostRow
from gridmill.domain.rental_estimate import CostForecast
from gridmill.domain.run_costs import run_costs
from gridmill.errors import InputError
from gridmill.sdk.client import Client
from gridmill.sdk.discovery import OpenGrid, home_settings
from gridmill.testing.fake_grid import FakeGrid
from gridmill.testing.store_samples import a_lease, a_run

OPENED = 1e9
LEASE = replace(a_lease(), opened=OPENED, ready=OPENED + 60)


class Renting(FakeGrid):
    """A grid with an open lease and with costs."""


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    """A grid with an open lease and with costs."""
    made = Cli(tmp_path, capfd)
    view = view_of(LEASE, OPENED + 3602.5)
    made.fake.kept_leases[view.id] = view
    made.fake.kept_costs = (
        CostRow(
            name="weather-1",
            currency="USD",
            micros=1_250_000,
            seconds=3600.0,
            leases=1,
            kinds={CostKind.MACHINE: 1_200_000, CostKind.EGRESS: 50_000},
            overhead_micros=250_000,
            forecast_micros=1_400_000,
        ),
        CostRow(
            name="weather-2", currency="EUR", micros=3_000_000, seconds=60.0, leases=1, unknown_charges=1
        ),
        CostRow(name="(no job)", currency="USD", micros=4_000, seconds=60.0, leases=1, unknown=2),
    )
    return made


def test_leases_are_listed_shown_and_stopped(cli: Cli) -> None:
    assert cli("list", "leases") == 0
    assert "lease-1  ready  g5.xlarge  us-east-1a  trainers-1" in cli.out
    assert "1.01 USD" in cli.out
    assert cli("show", "lease", "lease-1") == 0
    assert "i-1 (g5.xlarge in us-east-1a)" in cli.out
    assert "1.01 USD per hour" in cli.out
    assert "gridmill stop lease lease-1" in cli.out
    assert cli("stop", "lease", "lease-1") == 0
    assert cli.out == "lease lease-1 releasing\n"
    assert cli.json("show", "lease", "lease-1")["lease"]["reason"] == "stopped by a user"
    assert cli("show", "lease", "lease-9") != 0
    assert "there is no lease 'lease-9'" in cli.err


def test_costs_have_a_total_and_name_what_is_not_included(cli: Cli) -> None:
    assert cli("costs", "--by", "run") == 0
    assert "weather-1  1 h 00 m" in cli.out
    assert "total: 1.25 USD\ntotal: 3.00 EUR" in cli.out
    assert "disks, public addresses and data of 1 lease whose prices are unknown" in cli.err
    row = next(line for line in cli.out.splitlines() if line.startswith("weather-1"))
    assert row.split()[-10:] == ["1.20", "USD", "0.0500", "USD", "1.25", "USD", "1.50", "USD", "1.40", "USD"]
    idle = next(line for line in cli.out.splitlines() if line.startswith("(no job)"))
    assert "0.0040 USD and unknown" in idle
    assert "2 leases whose price is unknown" in cli.err
    assert cli.json("costs")[0]["micros"] == 1_250_000


def test_the_options_of_costs_choose_the_rows(cli: Cli) -> None:
    for options, heading in (
        (("--project", "vision"), "run "),
        (("--run", "weather-1"), "job "),
        (("--job", "weather-1/train"), "job "),
        (("--month", "2026-11"), "project "),
        (("--run", "weather-1", "--by", "month"), "month "),
    ):
        assert cli("costs", *options) == 0
        assert cli.out.startswith(heading)


FORECAST = CostForecast(micros={"USD": 1_400_000}, unknown=("train: its size",))


def test_the_cost_of_a_run_is_shown_against_its_forecast() -> None:
    run = replace(a_run(), forecast=FORECAST)
    row = CostRow(name=run.id, currency="USD", micros=1_250_000, overhead_micros=250_000, unknown_charges=1)
    assert run_costs(run, [row]) == (
        "rented machines: 1.50 USD (0.2500 USD of it without a job), the unknown cost of disks, public"
        " addresses and data until now; expected at the start: 1.40 USD and unknown (train: its size)",
    )
    assert run_costs(run, ())[0].startswith(
        "rented machines: nothing until now; expected at the start: 1.40 USD"
    )
    assert run_costs(a_run(), ()) == ()


def test_the_client_names_the_ways_to_group_costs(tmp_path: Path) -> None:
    grid = OpenGrid(grid=FakeGrid(), close=lambda: None)
    with Client(home_settings(tmp_path), dial=lambda: grid) as client, pytest.raises(InputError) as raised:
        client.costs("week")
    assert "'week' is not a way" in str(raised.value)


def test_the_view_of_a_lease_names_what_happens() -> None:
    refused = replace(LEASE.tries[0], state=TryState.REFUSED, problem=TryProblem.NO_MACHINE)
    waiting = replace(LEASE, state=LeaseState.LAUNCHING, tries=(refused,), problem="no machine: none free")
    view = view_of(waiting, OPENED)
    assert view.phase == "a machine is requested: no machine: none free"
    assert view.price_micros is None
    ending = replace(LEASE, state=LeaseState.RELEASING, release_asked=OPENED, reason="idle")
    assert view_of(ending, OPENED).phase == "ending: idle"
    closed = replace(ending, state=LeaseState.CLOSED, closed=OPENED + 10)
    assert (view_of(closed, OPENED + 99).seconds, view_of(closed, OPENED + 99).command) == (10.0, "")


def test_the_view_of_a_machine_that_is_kept_after_a_failure_names_the_time() -> None:
    terms = replace(LEASE.terms, keep_on_failure_seconds=1800.0)
    kept = replace(LEASE, terms=terms, failed=OPENED + 100)
    phase = view_of(kept, OPENED + 160).phase
    assert phase == "ready: kept for 29 m 00 s because a job failed (keep_on_failure)"
    assert view_of(kept, OPENED + 1901).phase == "ready"


def test_a_command_that_leaves_a_kept_machine_names_how_to_use_and_end_it(
    cli: Cli, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = replace(LEASE, failed=OPENED + 100)
    cli.fake.kept_leases[kept.id] = view_of(kept, OPENED + 160)
    grid = OpenGrid(grid=cli.fake, close=lambda: None)
    with Client(home_settings(cli.home), dial=lambda: grid) as client:
        tell_leases(client)
    told = capfd.readouterr().err
    assert "to look at the machine: gridmill ssh lease-1; to end it now: gridmill stop lease lease-1" in told


def test_a_problem_with_a_hint_and_the_machine_are_separate_sentences() -> None:
    text = with_machine("AWS refuses the key. Renew it.", LEASE, "aws")
    assert text.startswith("AWS refuses the key. Renew it. Machine i-1 costs 1.01 USD per hour; ")
    without = replace(LEASE, tries=())
    assert with_machine("AWS refuses the key. Renew it.", without, "aws") == "AWS refuses the key. Renew it."
