"""What rented machines cost, and which job pays for which part."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.frozen import replace
from gridmill.domain.lease import (
    LaunchTry,
    Lease,
    LeaseState,
    RentalTerms,
    TryState,
    cost_bound_micros,
    lease_cost_micros,
)
from gridmill.domain.lease_cost import (
    IDLE,
    CostBy,
    costs,
    counted,
    idle_cost_micros,
    live_uses,
    month_bounds_micros,
    month_of,
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
    return {row.name: row.micros // 1_000_000 for row in costs([lease], by, now, month)}


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
    assert costs([lease], CostBy.MONTH, NOVEMBER + 100) == ()
    assert lease_cost_micros(lease, NOVEMBER + 100) is None
    assert cost_bound_micros(lease, NOVEMBER + 100) == 100_000


@given(
    price=st.integers(min_value=0, max_value=10**8),
    begins=st.floats(min_value=NOVEMBER, max_value=DECEMBER + 10, allow_nan=False),
    steps=st.lists(
        st.tuples(
            st.floats(min_value=0.0, max_value=10**6),
            st.dictionaries(st.sampled_from([TRAIN, TEST]), st.integers(1, 3)),
        ),
        max_size=8,
    ),
)
def test_the_parts_always_add_up_to_the_whole_cost(price, begins, steps):
    lease, now = a_lease(begins, price), begins
    for seconds, live in steps:
        now += seconds
        lease = counted(lease, live, now)
    for by in CostBy:
        assert sum(row.micros for row in costs([lease], by, now)) == lease_cost_micros(lease, now)
    months = {row.name for row in costs([lease], CostBy.MONTH, now)}
    by_month = [costs([lease], CostBy.JOB, now, month) for month in months]
    assert sum(row.micros for each in by_month for row in each) == lease_cost_micros(lease, now)
    assert all(row.micros >= 0 and row.seconds >= 0 for row in costs([lease], CostBy.JOB, now))


def test_a_machine_without_a_price_counts_with_the_highest_price_that_its_terms_allow():
    unpriced = a_lease(price=None, terms=RentalTerms(max_price_micros=7_200_000_000, currency="EUR"))
    known = a_lease(id="lease-2", ended=NOVEMBER + 100)
    bounds = month_bounds_micros([unpriced, known], NOVEMBER + 100, "2026-11")
    assert bounds == {("burst", "EUR"): 200_000_000, ("burst", "USD"): 100_000_000}
    assert rows(unpriced, CostBy.RESOURCE, NOVEMBER + 100) == {}  # the shown cost has only known prices
