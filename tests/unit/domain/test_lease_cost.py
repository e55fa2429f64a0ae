"""What rented machines cost, and which job pays for which part."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.charges import Charges, CostKind
from gridmill.domain.frozen import replace
from gridmill.domain.lease import (
    LaunchTry,
    Lease,
    LeaseState,
    RentalTerms,
    TryState,
    cost_bound_micros,
    hourly_bound_micros,
    lease_cost_micros,
)
from gridmill.domain.lease_cost import (
    IDLE,
    PROJECT,
    RESOURCE,
    CostBy,
    CostFilter,
    costs,
    counted,
    idle_cost_micros,
    live_uses,
    month_bounds_micros,
    month_costs,
    month_of,
    unknown_costs,
    with_egress,
)

NOVEMBER = datetime(2026, 11, 26, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
TRAIN, TEST = ("vision", "cats-1", "train"), ("sound", "dogs-7", "test")


def a_lease(begins: float = NOVEMBER, price: int | None = 3_600_000_000, **fields) -> Lease:
    """A lease whose machine costs 1 USD per second since `begins`."""
    one = LaunchTry(
        number=1,
        token="t",
        region="r",
        zone="z",
        instance_type="x",
        price_micros=price,
        charges=fields.pop("charges", None),
        state=TryState.CONFIRMED,
        machine_id="i-1",
        confirmed=begins,
        ended=fields.pop("ended", None),
    )
    plain = Lease(
        id="lease-1",
        provider="aws",
        owner="grid",
        resource="burst",
        deployment_id="burst-1",
        pod_id="burst-1.0",
        state=LeaseState.READY,
        terms=RentalTerms(),
        tries=(one,),
        counted=begins,
    )
    return replace(plain, **fields)


def rows(lease: Lease, by: CostBy, now: float, month: str = "") -> dict[str, int]:
    """The costs by name, in whole units."""
    return {row.name: row.micros // 1_000_000 for row in costs([lease], by, now, CostFilter(month=month))}


def test_each_job_pays_for_its_time_and_jobs_side_by_side_share_the_machine():
    lease = counted(a_lease(), {TRAIN: 1}, NOVEMBER + 100)
    lease = counted(lease, {TRAIN: 1, TEST: 1}, NOVEMBER + 200)
    lease = counted(lease, {TEST: 1}, NOVEMBER + 300)
    lease = counted(lease, {}, NOVEMBER + 350)
    now = NOVEMBER + 400
    assert rows(lease, CostBy.JOB, now) == {"cats-1/train": 150, "dogs-7/test": 100, IDLE: 150}
    assert rows(lease, CostBy.RUN, now) == {"cats-1": 150, "dogs-7": 100, IDLE: 150}
    assert rows(lease, CostBy.PROJECT, now) == {"vision": 150, "sound": 100, IDLE: 150}
    assert rows(lease, CostBy.RESOURCE, now) == {"burst": 400}
    assert rows(lease, CostBy.MONTH, now) == {"2026-11": 400}
    assert idle_cost_micros(lease, now) == 150_000_000


def test_a_running_job_pays_until_now():
    lease = counted(a_lease(), {TRAIN: 2}, NOVEMBER + 100)
    assert live_uses(lease) == {TRAIN: 2}
    assert rows(lease, CostBy.JOB, NOVEMBER + 160) == {"cats-1/train": 60, IDLE: 100}


def test_the_cost_is_divided_at_the_end_of_a_month():
    lease = counted(a_lease(DECEMBER - 100), {TRAIN: 1}, DECEMBER - 50)
    lease = counted(lease, {}, DECEMBER + 30)
    now = DECEMBER + 40
    assert rows(lease, CostBy.MONTH, now) == {"2026-12": 40, "2026-11": 100}
    assert rows(lease, CostBy.JOB, now, "2026-11") == {"cats-1/train": 50, IDLE: 50}
    assert rows(lease, CostBy.JOB, now, "2026-12") == {"cats-1/train": 30, IDLE: 10}
    assert month_of(DECEMBER - 1) == "2026-11"


def test_a_machine_with_an_unknown_price_is_counted_and_its_highest_cost_is_known():
    lease = a_lease(price=None, terms=RentalTerms(max_price_micros=3_600_000))
    (row,) = costs([lease], CostBy.MONTH, NOVEMBER + 100)
    assert (row.micros, row.seconds, row.unknown, row.unknown_charges) == (0, 100.0, 1, 1)
    assert lease_cost_micros(lease, NOVEMBER + 100) is None
    assert cost_bound_micros(lease, NOVEMBER + 100) == 100_000


_PRICE = st.integers(0, 10**6)


@given(
    price=st.integers(min_value=0, max_value=10**8),
    begins=st.floats(min_value=NOVEMBER, max_value=DECEMBER + 10, allow_nan=False),
    charges=st.none() | st.builds(Charges, egress_micros=_PRICE, disk_micros=_PRICE, address_micros=_PRICE),
    steps=st.lists(
        st.tuples(
            st.floats(min_value=0.0, max_value=10**6),
            st.dictionaries(st.sampled_from([TRAIN, TEST]), st.integers(1, 3)),
            st.integers(0, 10**12),
        ),
        max_size=8,
    ),
)
def test_the_parts_always_add_up_to_the_whole_cost(price, begins, charges, steps):
    lease, now = a_lease(begins, price, charges=charges), begins
    for seconds, live, sent_bytes in steps:
        now += seconds
        lease = counted(lease, live, now)
        if sent_bytes:
            lease = with_egress(lease, TRAIN, sent_bytes, now)
    for by in CostBy:
        assert sum(row.micros for row in costs([lease], by, now)) == lease_cost_micros(lease, now)
    months = {row.name for row in costs([lease], CostBy.MONTH, now)}
    by_month = [costs([lease], CostBy.JOB, now, CostFilter(month=month)) for month in months]
    assert sum(row.micros for each in by_month for row in each) == lease_cost_micros(lease, now)
    assert all(row.micros >= 0 and row.seconds >= 0 for row in costs([lease], CostBy.JOB, now))


def test_a_machine_without_a_price_counts_with_the_highest_price_that_its_terms_allow():
    unpriced = a_lease(price=None, terms=RentalTerms(max_price_micros=7_200_000_000, currency="EUR"))
    known = a_lease(id="lease-2", ended=NOVEMBER + 100)
    bounds = month_bounds_micros([unpriced, known], NOVEMBER + 100, "2026-11")
    assert bounds == {(RESOURCE, "burst", "EUR"): 200_000_000, (RESOURCE, "burst", "USD"): 100_000_000}
    assert rows(unpriced, CostBy.RESOURCE, NOVEMBER + 100) == {"burst": 0}  # only known prices are shown


CHARGES = Charges(egress_micros=90_000, disk_micros=730_000, address_micros=5_000)


def test_the_disk_the_address_and_the_transferred_data_are_part_of_the_cost():
    lease = a_lease(price=0, charges=CHARGES, terms=RentalTerms(disk_bytes=100 * 10**9))
    lease = counted(lease, {TRAIN: 1}, NOVEMBER + 1800)
    lease = with_egress(counted(lease, {}, NOVEMBER + 3600), TRAIN, 2 * 10**9, NOVEMBER + 3600)
    job, idle = costs([lease], CostBy.JOB, NOVEMBER + 3600)
    # for an hour: 100 GB at 0.001 per GB and hour, and an address at 0.005
    assert job.kinds == {CostKind.DISK: 50_000, CostKind.ADDRESS: 2_500, CostKind.EGRESS: 180_000}
    assert idle.kinds == {CostKind.DISK: 50_000, CostKind.ADDRESS: 2_500}
    assert job.overhead_micros == idle.micros
    assert lease_cost_micros(lease, NOVEMBER + 3600) == 285_000 == job.micros + idle.micros
    assert (job.unknown_charges, unknown_costs(lease)) == (0, "")


def test_unknown_prices_are_named_and_counted():
    lease = counted(a_lease(), {TRAIN: 1}, NOVEMBER)
    (row,) = costs([lease], CostBy.RUN, NOVEMBER + 100)[:1]
    assert (row.unknown, row.unknown_charges, row.kinds) == (0, 1, {CostKind.MACHINE: 100_000_000})
    assert unknown_costs(lease) == "its disk, its address and its data"


def test_the_limit_of_money_counts_the_disk_and_the_address():
    terms = RentalTerms(disk_bytes=100 * 10**9, max_price_micros=1_000_000)
    lease = a_lease(price=None, charges=CHARGES, terms=terms)
    assert hourly_bound_micros(lease) == 1_105_000 == cost_bound_micros(lease, NOVEMBER + 3600)
    assert hourly_bound_micros(replace(lease, tries=())) == 0


def test_costs_of_a_project_a_run_or_a_job_are_selected_without_idle_time():
    lease = counted(a_lease(), {TRAIN: 1}, NOVEMBER + 100)
    lease = counted(lease, {TEST: 1}, NOVEMBER + 200)
    lease = counted(lease, {}, NOVEMBER + 300)

    def selected(**wanted: str) -> dict[str, int]:
        found = costs([lease], CostBy.JOB, NOVEMBER + 300, CostFilter(**wanted))
        return {row.name: row.micros // 1_000_000 for row in found}

    assert selected(project="vision") == {"cats-1/train": 100}
    assert selected(run="dogs-7") == {"dogs-7/test": 100}
    assert selected(run="dogs-7", job="train") == {}
    assert selected(month="2026-12") == {}


def test_costs_in_two_currencies_are_never_added():
    euros = replace(a_lease(id="lease-2").tries[0], currency="EUR")
    leases = [a_lease(), a_lease(id="lease-2", tries=(euros,))]
    found = costs(leases, CostBy.MONTH, NOVEMBER + 100)
    assert {(row.currency, row.micros) for row in found} == {("USD", 100_000_000), ("EUR", 100_000_000)}


def test_the_time_without_a_job_counts_for_the_project_of_the_lease():
    lease = counted(a_lease(project="sound"), {TRAIN: 1}, NOVEMBER + 100)
    bounds = month_bounds_micros([counted(lease, {}, NOVEMBER + 130)], NOVEMBER + 150, "2026-11")
    assert bounds[PROJECT, "vision", "USD"] == 30_000_000
    assert bounds[PROJECT, "sound", "USD"] == 120_000_000
    assert bounds[RESOURCE, "burst", "USD"] == 150_000_000


def test_costs_with_unknown_prices_are_named_for_the_budgets_that_they_are_not_part_of():
    unpriced = replace(a_lease(), project="vision")
    used = counted(unpriced, {TRAIN: 1, TEST: 1}, NOVEMBER + 10)
    owners = {(RESOURCE, "burst"), (PROJECT, "vision"), (PROJECT, "sound")}
    assert month_costs([used], NOVEMBER + 100, "2026-11").uncounted == owners
    assert month_costs([used], NOVEMBER + 100, "2026-12").uncounted == frozenset()
    priced = a_lease(charges=Charges(egress_micros=0, disk_micros=0, address_micros=0))
    assert month_costs([priced], NOVEMBER + 100, "2026-11").uncounted == frozenset()
