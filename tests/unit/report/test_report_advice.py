"""The picture of advice in a report, and when advice is shown."""

from dataclasses import replace

import pytest
from tests.kit.report_views import HOSTILE

from gridmill.report.render import advice_chart, is_worth_it
from gridmill.testing.fake_advising import ADVISED, FakeAdvising


def test_the_picture_has_the_law_its_band_and_every_attempt() -> None:
    found = FakeAdvising().advise(ADVISED)
    drawn = advice_chart(found)
    assert drawn.count('class="dot') == len(found.measured) == 2
    assert drawn.count('class="band"') == 1
    assert "weather-1.predict.1: 1 workers" in drawn
    band = drawn.partition('class="band" points="')[2].partition('"')[0]
    numbers = [float(value) for value in band.replace(",", " ").split()]
    assert len(numbers) == 4 * len(found.forecasts)
    assert all(0 <= number <= 1000 for number in numbers)


def test_a_hostile_name_is_escaped() -> None:
    found = FakeAdvising().advise(ADVISED)
    measured = tuple(replace(one, attempt_id=HOSTILE) for one in found.measured)
    assert "<script" not in advice_chart(replace(found, measured=measured))


@pytest.mark.parametrize(
    ("seconds", "better", "workers", "shown"),
    [(100.0, 50.0, 1, True), (0.6, 0.3, 1, False), (100.0, 95.0, 1, False), (100.0, 50.0, 8, False)],
)
def test_advice_is_shown_where_it_is_worth_a_readers_time(seconds, better, workers, shown) -> None:
    found = FakeAdvising().advise(ADVISED)
    lines = tuple(replace(line, workers=8, seconds=better) for line in found.forecasts[:1])
    last = replace(found.measured[-1], workers=workers, seconds=seconds)
    assert is_worth_it(replace(found, worth=8, forecasts=lines, measured=(last,))) == shown
    assert not is_worth_it(replace(found, measured=()))
