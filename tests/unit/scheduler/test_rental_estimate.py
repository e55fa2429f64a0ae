"""The time and cost of a job on a rented machine, and the choice by deadline and budget."""

import random
from statistics import median, quantiles

from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import replace
from gridmill.domain.job import JobKind, JobSize
from gridmill.domain.lease import LaunchTry, Lease, LeaseState, RentalTerms
from gridmill.domain.rental_estimate import (
    Charges,
    CostKind,
    Phase,
    RentalEstimate,
    estimate_lines,
    show_money,
)
from gridmill.domain.resource import MeasuredUse, Measurement, Resource, TransferEstimate
from gridmill.domain.route import AttemptTransfers, Route, Transfer
from gridmill.domain.site import Site, SiteKind
from gridmill.scheduler.forecast import seconds_at
from gridmill.scheduler.history import MeasurementHistory
from gridmill.scheduler.rental_estimate import (
    MeasuredBoot,
    TimeAndCost,
    choose_within,
    estimate,
    measured_boot,
)
from gridmill.scheduler.site_choice import learned, transfer_seconds

CHARGES = Charges(egress_micros=90_000, disk_micros=80_000, address_micros=5_000)
HERE = TimeAndCost(resource="here", seconds=7200.0, micros=0)
QUICK = TimeAndCost(resource="quick", seconds=600.0, micros=2_000_000)
CHEAP = TimeAndCost(resource="cheap", seconds=1800.0, micros=500_000)


def lease(number: int, kind: str, at: float, ready: float | None, provider: str = "aws") -> Lease:
    """A lease whose machine was requested at `at`."""
    one = LaunchTry(
        number=1, token=f"t{number}", region="us-east-1", zone="us-east-1a", instance_type=kind, at=at
    )
    return Lease(
        id=f"lease-{number}",
        provider=provider,
        owner="home",
        resource="burst",
        deployment_id="burst-1",
        pod_id="burst-1.0",
        state=LeaseState.CLOSED,
        terms=RentalTerms(),
        tries=(one,),
        ready=ready,
    )


def made(
    *,
    price_micros: int | None = 1_006_000,
    run_seconds: float | None = 3600.0,
    boot: MeasuredBoot | None = None,
    transfer: TransferEstimate | None = None,
    charges: Charges | None = CHARGES,
) -> RentalEstimate:
    """An estimate for a g5.xlarge."""
    return estimate(
        instance_type="g5.xlarge",
        region="us-east-1",
        price_micros=price_micros,
        currency="USD",
        boot=boot,
        run_seconds=run_seconds,
        transfer=transfer,
        charges=charges,
        disk_bytes=100 * 10**9,
    )


def test_the_boot_time_is_the_median_of_machines_of_the_same_type() -> None:
    leases = [
        lease(1, "g5.xlarge", 0.0, 100.0),
        lease(2, "g5.xlarge", 0.0, 120.0),
        lease(3, "g5.xlarge", 0.0, 900.0),
        lease(4, "p4d.24xlarge", 0.0, 30.0),
        lease(5, "g5.xlarge", 0.0, None),
        lease(6, "g5.xlarge", 0.0, 1.0, provider="gcp"),
    ]
    assert measured_boot(leases, "aws", "g5.xlarge") == MeasuredBoot(
        seconds=120.0, machines=3, same_type=True
    )
    other = measured_boot(leases, "aws", "t3.micro")
    assert other is not None
    assert (other.seconds, other.same_type) == (110.0, False)
    assert measured_boot(leases, "lambda", "g5.xlarge") is None


def test_every_phase_is_paid_and_egress_disk_and_address_are_part_of_the_cost() -> None:
    transfer = TransferEstimate(
        upload_bytes=10**9, upload_seconds=100.0, download_bytes=2 * 10**9, download_seconds=200.0
    )
    one = made(boot=MeasuredBoot(seconds=120.0, machines=3, same_type=True), transfer=transfer)
    assert one.total_seconds == 120.0 + 100.0 + 3600.0 + 200.0 + 5.0 == 4025.0
    assert one.micros == {
        CostKind.MACHINE: 1_124_764,  # 1.006 USD for 4025 / 3600 hours
        CostKind.DISK: 12_253,  # 100 GB for 4025 seconds at 0.08 USD a month of 730 hours
        CostKind.ADDRESS: 5_591,
        CostKind.EGRESS: 180_000,
    }
    assert one.total_micros == 1_322_608
    assert not one.unknown
    assert not one.assumed


def test_the_cost_is_unknown_if_any_part_is_unknown() -> None:
    assert made(price_micros=None).total_micros is None
    assert made(run_seconds=None).total_micros is None
    assert made(charges=None).total_micros is None
    unknown_result = TransferEstimate(
        upload_bytes=0, upload_seconds=0.0, download_bytes=None, unknown=("the size of the result",)
    )
    one = made(transfer=unknown_result)
    assert one.total_micros is None
    assert one.total_seconds is None
    assert "not known: the size of the result" in estimate_lines(one)


def test_a_boot_that_was_not_measured_is_named_as_an_assumption() -> None:
    text = "\n".join(estimate_lines(made()))
    assert "assumed: 3 min until the machine is ready" in text
    assert "g5.xlarge in us-east-1 for 1.01 USD per hour: " in text
    assert "3 min boot + 60 min run + 5 s release; 63 min in all" in text


def test_money_is_readable_from_a_second_to_a_month() -> None:
    assert [show_money(one) for one in (0, 7, 280, 1_006_000, 12_345_678_900)] == [
        "0.0000 USD",
        "<0.0001 USD",
        "0.0003 USD",
        "1.01 USD",
        "12,345.68 USD",
    ]


def test_a_deadline_picks_the_cheapest_that_meets_it() -> None:
    options = (HERE, QUICK, CHEAP)
    assert choose_within(options, deadline_seconds=10_000.0).resource == "here"
    assert choose_within(options, deadline_seconds=3600.0).resource == "cheap"
    assert choose_within(options, deadline_seconds=900.0).resource == "quick"
    missed = choose_within(options, deadline_seconds=300.0)
    assert missed.resource == "quick"
    assert "miss the deadline by 5 min" in missed.why


def test_a_budget_excludes_what_exceeds_it_and_what_has_no_known_cost() -> None:
    unknown = TimeAndCost(resource="unknown", seconds=1.0, micros=None)
    assert choose_within((unknown, QUICK, CHEAP), budget_micros=1_000_000).resource == "cheap"
    refused = choose_within((QUICK, CHEAP), budget_micros=100_000)
    assert refused.refused == "the expected cost of 0.5000 USD exceeds the budget of 0.1000 USD"
    assert "is not known" in choose_within((unknown,), budget_micros=100_000).refused
    assert choose_within((HERE, QUICK), budget_micros=0).resource == "here"


def test_an_unknown_cost_is_more_than_a_known_one_if_no_time_is_known() -> None:
    unknown = TimeAndCost(resource="unknown", seconds=None, micros=None)
    known = TimeAndCost(resource="known", seconds=None, micros=1_000_000)
    assert choose_within((unknown, known), deadline_seconds=100.0).resource == "known"


NUMBERS = st.one_of(st.none(), st.integers(0, 9))


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=5),
    NUMBERS,
    NUMBERS,
)
def test_the_choice_agrees_with_trying_all(
    pairs: list[tuple[int | None, int | None]], deadline: int | None, budget: int | None
) -> None:
    options = [
        TimeAndCost(resource=str(n), seconds=None if s is None else float(s), micros=m)
        for n, (s, m) in enumerate(pairs)
    ]
    chosen = choose_within(options, deadline_seconds=deadline, budget_micros=budget)
    one = options[int(chosen.resource)]
    within = [o for o in options if budget is None or (o.micros is not None and o.micros <= budget)]
    assert bool(chosen.refused) == (not within)
    if not within:
        return
    assert one in within
    timely = [o for o in within if deadline is not None and o.seconds is not None and o.seconds <= deadline]
    if timely:
        assert one in timely
        assert all(o.micros is None or (one.micros is not None and one.micros <= o.micros) for o in timely)
    else:
        assert all(
            o.seconds is None or (one.seconds is not None and one.seconds <= o.seconds) for o in within
        )


def test_the_forecast_after_one_run_is_close_for_sizes_that_were_not_seen() -> None:
    """Boots are lognormal (sigma 0.3, at most a fifth of the total) and rates vary by a tenth."""
    source = random.Random(5)
    resource = Resource(name="burst", type=JobKind.TRAINING, site="aws", gpus=1)
    errors_of_time, errors_of_cost = [], []
    for _ in range(400):
        rows = source.randrange(1_000_000, 20_000_000)
        first, second = rows, int(rows * source.uniform(0.5, 3.0))
        pace, rate = source.uniform(2_000, 6_000), source.uniform(5e6, 50e6)
        mean_boot = 0.15 * first / pace

        def lived(count: int) -> tuple[float, float, float, float]:
            boot = min(source.lognormvariate(0.0, 0.3) * mean_boot, 0.25 * count / pace)  # noqa: B023
            sent = 100.0 * count / (rate * source.gauss(1.0, 0.1))  # noqa: B023
            back = 10.0 * count / (rate * source.gauss(1.0, 0.1))  # noqa: B023
            return boot, sent, count / pace * source.gauss(1.0, 0.03), back  # noqa: B023

        boot, sent, ran, back = lived(first)
        history = MeasurementHistory()
        history.add(measurement(first, ran))
        carried = AttemptTransfers(
            upload=Transfer(transferred_bytes=100 * first, seconds=sent),
            download=Transfer(transferred_bytes=10 * first, seconds=back),
        )
        site = Site(name="aws", kind=SiteKind.CLOUD, route=learned(Route(), carried))
        expected = estimate(
            instance_type="g5.xlarge",
            region="us-east-1",
            price_micros=1_006_000,
            currency="USD",
            boot=measured_boot([lease(1, "g5.xlarge", 0.0, boot)], "aws", "g5.xlarge"),
            run_seconds=seconds_at(
                "weather/train", "training/lstm", JobSize(rows=second, columns=10), history, resource
            ),
            transfer=transferred(site, second),
            charges=CHARGES,
            disk_bytes=100 * 10**9,
        )
        actual = estimate(
            instance_type="g5.xlarge",
            region="us-east-1",
            price_micros=1_006_000,
            currency="USD",
            boot=MeasuredBoot(seconds=(lives := lived(second))[0], machines=1, same_type=True),
            run_seconds=lives[2],
            transfer=TransferEstimate(
                upload_bytes=100 * second,
                upload_seconds=lives[1],
                download_bytes=10 * second,
                download_seconds=lives[3],
            ),
            charges=CHARGES,
            disk_bytes=100 * 10**9,
        )
        assert expected.total_seconds
        assert actual.total_seconds
        assert expected.total_micros
        assert actual.total_micros
        assert set(expected.seconds) == set(Phase)
        errors_of_time.append(abs(expected.total_seconds / actual.total_seconds - 1.0))
        errors_of_cost.append(abs(expected.total_micros / actual.total_micros - 1.0))
    for errors in (errors_of_time, errors_of_cost):
        assert median(errors) <= 0.15, median(errors)
        assert quantiles(errors, n=10)[-1] <= 0.30, quantiles(errors, n=10)


def measurement(rows: int, seconds: float) -> Measurement:
    """The one earlier run of the job."""
    return Measurement(
        attempt_id="weather-1/train.1",
        subject="training/lstm",
        job="weather/train",
        size=JobSize(rows=rows, columns=10),
        given=Amounts(cpus=4.0, memory_bytes=1 << 30, gpus=1),
        use=replace(MeasuredUse(), wall_seconds=seconds),
        ended=1.0,
        resource="burst",
        site="aws",
    )


def transferred(site: Site, rows: int) -> TransferEstimate:
    """The estimate of the transfers from the measured route."""
    route = site.route or Route()
    return TransferEstimate(
        upload_bytes=100 * rows,
        upload_seconds=transfer_seconds(route.upload, None, 100 * rows),
        download_bytes=10 * rows,
        download_seconds=transfer_seconds(route.download, None, 10 * rows),
    )
