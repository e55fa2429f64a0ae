"""For a name that does not exist, the similar name is suggested."""

import pytest

from gridmill.domain.naming import did_you_mean, similar_name, suggestion


@pytest.mark.parametrize(
    ("name", "known", "similar"),
    [
        ("temprature", ("station", "temperature"), "temperature"),
        ("city", ("Country", "City"), "City"),
        ("timeout_seconds", ("retries", "timeout"), "timeout"),
        ("memory_bytes", ("memory",), "memory"),
        ("zzz", ("day", "shop"), ""),
        ("a", (), ""),
    ],
)
def test_the_most_similar_name_is_found(name: str, known: tuple[str, ...], similar: str):
    assert similar_name(name, known) == similar


def test_a_suggestion_is_a_hint_or_the_end_of_a_sentence():
    assert suggestion("dya", ("day",), "There is day.") == "Did you mean `day`?"
    assert suggestion("xyz", ("day",), "There is day.") == "There is day."
    assert did_you_mean("dya", ("day",)) == "; did you mean `day`?"
    assert did_you_mean("xyz", ("day",)) == ""
