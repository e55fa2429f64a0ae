"""A bucket as its owner sees it: ours, and the one that tests have in its place."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError
from tests.little_bucket import little_bucket, moment

from gridmill.errors import InputError, NotFoundError, UnavailableError
from gridmill.staging.kept import Listed
from gridmill.staging.objects import Objects, explained
from gridmill.staging.refused import RefusedError


@pytest.fixture(params=["folder", "memory"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listed]:
    if request.param == "folder":
        yield Objects((tmp_path / "bucket").as_uri())
        return
    with little_bucket() as made:
        yield made


def test_objects_come_and_go(bucket: Listed) -> None:
    for name in ("a", "index/b", "index/c"):
        bucket.put(name, name.encode())
    bucket.put("a", b"again")
    assert bucket.get("a", 5) == b"again"
    assert (bucket.has("index/b"), bucket.has("b")) == (True, False)
    assert [sorted(page) for page in bucket.names("index")] == [["index/b", "index/c"]]
    assert sorted(bucket.older(moment(-60))) == ["a", "index/b", "index/c"]
    assert sorted(bucket.older(moment(-60), "index")) == ["index/b", "index/c"]
    assert list(bucket.older(moment(60))) == []
    for _ in range(2):
        bucket.remove("index/b")
    assert not bucket.has("index/b")
    with pytest.raises(NotFoundError):
        bucket.get("index/b", 5)


def test_a_bucket_without_credentials_says_so_and_not_whom_it_has_asked_for_them() -> None:
    with pytest.raises(RefusedError, match="no credentials") as told, explained("s3://bucket"):
        raise GenericError("Error performing PUT http://169.254.169.254/latest/api/token in 5ms\n\nDebug: …")
    assert "AWS_ACCESS_KEY_ID" in told.value.hint
    with pytest.raises(InputError, match="no bucket"):
        Objects("http://example.org/x")
    with pytest.raises(InputError, match="nonsense"):
        Objects("s3://bucket/x", {"nonsense": "y"})


REFUSED = (
    "Error performing {} http://127.0.0.1:9/b in 15ms - Server returned non-2xx status code: 403 Forbidden: "
    "<?xml version='1.0'?><Error><Code>{}</Code><Message>{}</Message><Resource>b</Resource></Error>"
)


@pytest.mark.parametrize(
    "refused", [GenericError, PermissionDeniedError], ids=["as it is listed", "as it is written"]
)
def test_why_a_bucket_refuses_is_told_in_its_own_words(refused: type[Exception]) -> None:
    with pytest.raises(RefusedError) as told, explained("s3://bucket"):
        raise refused(REFUSED.format("PUT", "AccessDenied", "Access Denied."))
    assert str(told.value) == "s3://bucket: access is refused: AccessDenied: Access Denied."
    assert "credentials" in told.value.hint
    with pytest.raises(InputError, match="RequestTimeTooSkewed: too late") as told, explained("s3://bucket"):
        raise refused(REFUSED.format("GET", "RequestTimeTooSkewed", "too late"))
    assert "clock" in told.value.hint


TRIED = (
    "Generic S3 error: Error performing PUT http://127.0.0.1:9/b/x/1f in 1.075633675s, after 4 retries, "
    "max_retries: 4, retry_timeout: 30s  - "
)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("HTTP error: error sending request", "its server does not answer"),
        ("Server returned error status: 503 Service Unavailable", "Server returned error status: 503"),
    ],
)
def test_why_a_bucket_cannot_be_used_is_told_without_how_often_it_was_tried(said: str, told: str) -> None:
    with pytest.raises(UnavailableError) as caught, explained("s3://b/x"):
        raise GenericError(f"{TRIED}{said}\n\nDebug source: ...")
    assert str(caught.value).startswith(f"s3://b/x: {told}")
