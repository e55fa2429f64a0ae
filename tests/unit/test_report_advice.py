"""The picture of advice in a report."""

import xml.etree.ElementTree as ET

from gridmill.report.advice import advice_chart
from gridmill.testing.advising import ADVISED, FakeAdvising


def test_the_picture_has_the_law_its_band_and_every_attempt() -> None:
    found = FakeAdvising().advise(ADVISED)
    picture = ET.fromstring(advice_chart(found))
    tags = [part.tag for part in picture]
    assert tags.count("circle") == len(found.measured) == 2
    assert tags.count("polygon") == 1
    numbers = [
        float(value)
        for part in picture.iter("polygon")
        for value in part.attrib["points"].replace(",", " ").split()
    ]
    assert len(numbers) == 4 * len(found.forecasts)
    assert all(-1 <= number <= 920 for number in numbers)
    titles = [title.text for title in picture.iter("title")]
    assert titles[0] is not None
    assert titles[0].startswith("weather-1.predict.1: 1 workers")
