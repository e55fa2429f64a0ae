"""How quick a way is: learned from what is carried over it, told before something is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.route import AttemptTransfers, Route, Staging, Transfer, TransferRate, TransferRates
from gridmill.errors import NotFoundError, UnavailableError
from gridmill.scheduler.site_choice import LEAST_BYTES, MOST_STAGED, learned, transfer_seconds
from gridmill.sites.farm.site import probe

MIB = 2**20


def there(size_bytes: int, rate: float) -> AttemptTransfers:
    return AttemptTransfers(upload=Transfer(transferred_bytes=size_bytes, seconds=size_bytes / rate))


transfers = st.lists(
    st.builds(there, st.integers(1, 2**40), st.floats(1e3, 1e10)), min_size=1, max_size=20
).filter(lambda some: any(one.upload.transferred_bytes >= MIB for one in some))


@given(transfers)
def test_a_rate_lies_between_those_that_were_measured(some: list[AttemptTransfers]) -> None:
    way = Route()
    for one in some:
        way = learned(way, one)
    rates = [one.upload.bytes_per_second or 0.0 for one in some]
    assert way.upload is not None
    assert min(rates) * 0.999 <= way.upload.bytes_per_second <= max(rates) * 1.001
    assert way.download is None


@given(st.floats(1e4, 1e9), st.floats(1e4, 1e9))
def test_the_latest_transfers_decide(before: float, since: float) -> None:
    way = learned(Route(), there(100 << 30, before))
    for _ in range(10):
        way = learned(way, there(128 * MIB, since))
    assert way.upload is not None
    assert way.upload.transfers == 11
    told, truth = 1 / way.upload.bytes_per_second, 1 / since
    assert abs(told - truth) <= 0.001 * max(1 / before, truth)


def test_small_transfers_say_nothing_of_the_rate() -> None:
    way = learned(Route(upload=TransferRate(transferred_bytes=MIB, seconds=1.0)), there(1000, 1.0))
    assert way.upload == TransferRate(transferred_bytes=MIB, seconds=1.0)


def test_times_are_of_the_bytes_and_of_round_trips() -> None:
    pace = TransferRate(transferred_bytes=10.0 * MIB, seconds=1.0)
    assert transfer_seconds(pace, 0.1, 100 * MIB) == pytest.approx(10.4)
    assert transfer_seconds(None, 0.1, 0) == pytest.approx(0.4)
    assert transfer_seconds(None, 0.1, LEAST_BYTES - 1) == pytest.approx(0.4)
    assert transfer_seconds(None, 0.1, LEAST_BYTES) is None  # not measured yet


def test_versions_that_are_there_are_remembered_the_newest_longest() -> None:
    way = learned(Route(), AttemptTransfers(), [f"p/j@{n}" for n in range(MOST_STAGED)])
    way = learned(way, AttemptTransfers(), ["p/j@0", "p/j@new"])
    assert len(way.staged) == MOST_STAGED
    assert way.staged[-2:] == ("p/j@0", "p/j@new")
    assert "p/j@1" not in way.staged


class Far:
    """A farm over a way of that rate and round trip, on a clock of its own. Data's first connection takes a
    second."""

    def __init__(self, rate: float, trip: float, *, knows: bool = True) -> None:
        self.rate, self.trip, self.knows = rate, trip, knows
        self.now, self.carried, self.connects = 0.0, 0, 1.0

    def greet(self) -> None:
        self.now += self.trip

    def probe(self, there_bytes: int, back_bytes: int) -> None:
        if not self.knows:
            raise NotFoundError("Not Found")
        self.carried += there_bytes + back_bytes
        self.now, self.connects = self.now + self.connects, 0.0
        self.now += self.trip + there_bytes / self.rate + 2 * back_bytes / self.rate


@pytest.mark.parametrize("rate", [50e3, 1e6, 1e8])
def test_a_probe_tells_the_rate_by_as_little_as_it_takes(rate: float) -> None:
    far = Far(rate, 0.05)
    way = probe(far, clock=lambda: far.now)  # type: ignore[arg-type]
    assert way.upload is not None
    assert way.download is not None
    assert way.round_trip_seconds == pytest.approx(0.05)
    assert way.upload.bytes_per_second == pytest.approx(rate, rel=0.01)
    assert way.download.bytes_per_second == pytest.approx(rate / 2, rel=0.01)
    assert far.now < 15
    slowed = probe(far, rate / 10, clock=lambda: far.now)  # type: ignore[arg-type]
    assert slowed.upload is not None
    assert slowed.upload.bytes_per_second == pytest.approx(rate / 10)


def test_an_older_farm_tells_its_round_trip_alone() -> None:
    far = Far(1e6, 0.05, knows=False)
    assert probe(far, clock=lambda: far.now) == Route(  # type: ignore[arg-type]
        round_trip_seconds=pytest.approx(0.05)
    )
    far.greet = lambda: (_ for _ in ()).throw(UnavailableError("cut"))  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        probe(far, clock=lambda: far.now)  # type: ignore[arg-type]


def test_what_goes_by_a_bucket_says_nothing_of_the_way_through_the_farm() -> None:
    way = learned(Route(), replace(there(64 * MIB, 1e6), staging=Staging.EXPORT))
    assert way.upload is None
    assert way.rates(Staging.SHARED) == way.rates(None) == TransferRates()
    pace = way.rates(Staging.EXPORT).upload
    assert pace is not None
    assert pace.bytes_per_second == pytest.approx(1e6)


def test_carriages_add_up() -> None:
    one = AttemptTransfers(
        upload=Transfer(transferred_bytes=3, reused_bytes=1, seconds=1.0), round_trip_seconds=0.2
    )
    both = one + replace(one, round_trip_seconds=None)
    assert both.upload == Transfer(transferred_bytes=6, reused_bytes=2, seconds=2.0)
    assert both.upload.reused_share == 0.25
    assert both.round_trip_seconds == 0.2
    assert both.download.bytes_per_second is None
