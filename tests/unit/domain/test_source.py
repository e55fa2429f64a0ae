from typing import Any

import pytest

from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import Source
from gridmill.errors import InputError

URL = "https://example.org/a.csv"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", "Bearer abc"),
        ("X-Api-Key", "abc"),
        ("Cookie", "session=abc"),
        ("X-Any", "Basic dXNlcjpwYXNz"),
        ("private-token", "abc"),
    ],
)
def test_a_secret_in_a_header_is_refused_and_not_repeated(name: str, value: str) -> None:
    with pytest.raises(InputError, match="contains a secret") as caught:
        Source(path=URL, headers={name: value}).check()
    assert "${env:NAME}" in caught.value.hint
    assert caught.value.place == f"source.headers.{name}"
    assert value.rpartition(" ")[2] not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", "Bearer ${env:TOKEN}"),
        ("X-Api-Key", "${env:KEY}"),
        ("Accept", "text/csv"),
        ("User-Agent", "gridmill"),
    ],
)
def test_other_headers_are_as_they_are(name: str, value: str) -> None:
    Source(path=URL, headers={name: value}).check()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Source(path="http://"), "has no host name"),
        (Source(path="https:///a.csv"), "has no host name"),
        (Source(path=("a.csv", "s3://lake")), "'s3://lake' has no object name"),
        (Source(path="gs:///a.csv"), "has no object name"),
        (
            Source(path="a.csv", headers={"Accept": "text/csv"}),
            "`headers` is only for http:// and https://",
        ),
        (Source(path="a.csv", endpoint="http://h"), "`endpoint` is only for s3:// and gs://"),
    ],
)
def test_a_url_that_leads_nowhere_or_what_no_path_is_fetched_with(source: Source, message: str) -> None:
    with pytest.raises(InputError, match=message):
        source.check()


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        ({"drift_threshold": -1.0}, "sink.drift_threshold"),
        ({"drift_threshold": float("nan")}, "sink.drift_threshold"),
        ({"metrics": {"": "sum(a)"}}, "sink.metrics"),
        ({"rename": {"a": " "}}, "sink.rename"),
        ({"add": {"": "x"}}, "sink.add"),
    ],
)
def test_a_sink_with_an_empty_name_or_an_amount_that_makes_no_sense(spec: dict[str, Any], place: str) -> None:
    with pytest.raises(InputError) as caught:
        SinkSpec(source=Source(path="a.csv"), **spec).check()
    assert caught.value.place == place
