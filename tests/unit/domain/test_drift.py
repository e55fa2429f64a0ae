"""Drift: the index against a computation by definition, the window, and the begin and end of a drift."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.drift import (
    CHUNKS,
    DRIFT_BEGINS,
    DRIFT_ENDS,
    LEAST_ROWS,
    PREDICTION,
    WINDOW_SECONDS,
    Bins,
    DriftChange,
    DriftPeriod,
    FeatureDrift,
    TrainingStatistics,
    VersionDrift,
    added,
    changes,
    difference,
    drift_of,
    drift_periods,
    merged,
    no_counts,
    psi,
)

PAIRS = st.integers(1, 15).flatmap(
    lambda bins: st.tuples(*[st.lists(st.integers(0, 5000), min_size=bins, max_size=bins)] * 2)
)
STATISTICS = TrainingStatistics(
    features=(Bins(name="temp", counts=(500, 500, 0), edges=(1.0,)),),
    prediction=Bins(name=PREDICTION, counts=(500, 500, 0), edges=(0.5,)),
)


def by_definition(expected: list[int], actual: list[int]) -> float:
    """The index from exact shares, bin by bin."""
    total, half = 0.0, Fraction(1, 2)
    for number in range(len(expected)):
        shares = [(Fraction(one[number]) + half) / (sum(one) + half * len(one)) for one in (expected, actual)]
        total += float(shares[1] - shares[0]) * math.log(shares[1] / shares[0])
    return total


@given(PAIRS)
def test_the_index_is_as_defined(pair):
    assert psi(*pair) == pytest.approx(by_definition(*pair), rel=1e-9, abs=1e-12)


@given(PAIRS, st.randoms(use_true_random=False))
def test_the_index_is_symmetric_not_negative_and_independent_of_the_order_of_bins(pair, random):
    one, other = pair
    assert psi(one, other) >= 0
    assert psi(one, other) == pytest.approx(psi(other, one), rel=1e-9, abs=1e-12)
    assert psi(one, one) == 0
    order = list(range(len(one)))
    random.shuffle(order)
    shuffled = [[each[place] for place in order] for each in pair]
    assert psi(*shuffled) == pytest.approx(psi(one, other), rel=1e-9, abs=1e-12)


def test_the_index_of_known_shares():
    # shares of 1/2 and 1/2 against 3/4 and 1/4: 0.25 · ln 1.5 - 0.25 · ln 0.5
    expected = 0.25 * math.log(1.5) - 0.25 * math.log(0.5)
    assert psi((10**8, 10**8), (15 * 10**7, 5 * 10**7)) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="2 bins are compared with 3"):
        psi((1, 2), (1, 2, 3))


@given(st.lists(st.tuples(st.floats(0, 3 * WINDOW_SECONDS), st.integers(0, 50)), max_size=60))
def test_the_window_has_the_newest_rows_within_one_chunk(events):
    window, seen = (), []
    for now, rows in sorted(events):
        seen.append((now, rows))
        window = added(window, now, ((rows,),))
        total = merged([one.counts for one in window])[0][0]
        age = WINDOW_SECONDS - WINDOW_SECONDS / CHUNKS
        newest = sum(n for at, n in seen if now - age + 1e-6 < at)
        every = sum(n for at, n in seen if now - WINDOW_SECONDS - 1e-6 <= at)
        assert newest <= total <= every
        assert len(window) <= CHUNKS + 1


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=9))
def test_differences_of_growing_counts_add_up_to_them(steps):
    total, seen, parts = ((0, 0, 0),), ((0, 0, 0),), []
    for step in steps:
        total = merged([total, (tuple(step),)])
        parts.append(difference(total, seen))
        seen = total
    assert merged(parts) == total


def test_the_counts_of_a_new_process_are_all_new():
    assert difference(((1, 2),), ((5, 2),)) == ((1, 2),)
    assert difference(((1, 2),), ((0, 0), (0, 0))) == ((1, 2),)


def shifted(rows: int, share: float) -> tuple[tuple[int, ...], ...]:
    high = round(rows * share)
    return ((rows - high, high, 0), (rows // 2, rows - rows // 2, 0))


def test_a_feature_drifts_from_the_limit_until_it_is_well_below():
    states, drift = [], None
    for share in (0.5, 0.6, 0.75, 0.72, 0.70, 0.5):
        counts = shifted(10_000, share)
        drift = drift_of("m@1", STATISTICS, counts, drift)
        states.append(bool(drift.drifting))
        index = psi(STATISTICS.features[0].counts, counts[0])
        assert drift.features[0].psi == pytest.approx(index)
        limit = DRIFT_ENDS if len(states) > 1 and states[-2] else DRIFT_BEGINS
        assert states[-1] == (index >= limit)
    assert states == [False, False, True, True, False, False]


def test_too_few_rows_decide_nothing():
    drift = drift_of("m@1", STATISTICS, shifted(LEAST_ROWS - 1, 1.0), None)
    assert (drift.rows, drift.features, drift.drifting) == (LEAST_ROWS - 1, (), ())
    assert drift.text == f"unknown: {LEAST_ROWS - 1} of at least {LEAST_ROWS} rows"
    before = VersionDrift(label="m@1", drifting=("temp",))
    assert drift_of("m@1", STATISTICS, no_counts(STATISTICS), before).drifting == ("temp",)
    many = drift_of("m@1", STATISTICS, shifted(LEAST_ROWS, 1.0), None)
    assert many.drifting == ("temp",)
    assert many.text.startswith("yes: temp ")


def test_only_a_begin_and_an_end_are_changes():
    calm = VersionDrift(label="m@1", features=(FeatureDrift(name="temp", psi=0.1),))
    drifting = VersionDrift(label="m@1", features=calm.features, drifting=("temp",))
    assert changes((), (calm,)) == ()
    assert changes((calm,), (drifting,)) == ((DriftChange.BEGINS, drifting),)
    assert changes((drifting,), (drifting,)) == ()
    assert changes((drifting,), (calm,)) == ((DriftChange.ENDS, calm),)
    assert changes((drifting,), (VersionDrift(label="m@1"),)) == ()
    assert changes((drifting,), (VersionDrift(label="m@2"),)) == ()


def test_a_drift_keeps_the_time_at_which_it_began_until_it_ends():
    calm = VersionDrift(label="m@1", features=(FeatureDrift(name="temp", psi=0.1),))
    drifting = VersionDrift(label="m@1", features=calm.features, drifting=("temp",))
    began = drift_periods((), (drifting, VersionDrift(label="m@2")), 10.0)
    assert began == (DriftPeriod(version="m@1", since=10.0),)
    assert drift_periods(began, (drifting,), 20.0) == began
    assert drift_periods(began, (VersionDrift(label="m@1", rows=3, drifting=("temp",)),), 20.0) == began
    assert drift_periods(began, (), 20.0) == began
    assert drift_periods(began, (calm,), 20.0) == ()
    assert drift_periods(began, (VersionDrift(label="m@2"),), 20.0) == ()
