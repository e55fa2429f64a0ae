import pytest

from gridmill.errors import InputError
from gridmill.model.source import Source

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
    with pytest.raises(InputError, match="holds a secret") as caught:
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
