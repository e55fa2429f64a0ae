"""A bucket as its owner sees it: ours, and the one that tests have in its place."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError
from tests.kit.little_bucket import little_bucket, moment

from gridmill.domain.farm_protocol import BucketObject
from gridmill.errors import InputError, InterruptedRunError, NotFoundError, UnavailableError
from gridmill.transfer import signed_urls
from gridmill.transfer.bucket import BucketClient, explained
from gridmill.transfer.bucket_cache import ListableBucket
from gridmill.transfer.errors import TransferRefusedError
from gridmill.transfer.stream import ByteMeter, Chunk, hash_of


@pytest.fixture(params=["folder", "memory"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ListableBucket]:
    if request.param == "folder":
        yield BucketClient((tmp_path / "bucket").as_uri())
        return
    with little_bucket() as made:
        yield made


def test_objects_come_and_go(bucket: ListableBucket) -> None:
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


class Slow(BaseHTTPRequestHandler):
    """Reads 2 MB a second at most."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        left = int(self.headers["Content-Length"])
        with suppress(OSError):
            while left and (read := self.rfile.read(min(left, 20_000))):
                left -= len(read)
                time.sleep(0.01)
            self.send_response(200 if not left else 400)
            self.send_header("ETag", '"x"')
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def slow() -> Iterator[str]:
    """The address of a bucket's server behind a thin line."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


OPTIONS = {"access_key_id": "a", "secret_access_key": "b", "region": "somewhere"}


def test_a_metered_put_tells_each_piece_as_it_goes_and_is_ended_by_what_that_raises(slow: str) -> None:
    bucket = BucketClient("s3://bucket/x", {**OPTIONS, "endpoint": slow})
    told: list[tuple[float, int]] = []
    bucket.put(
        "large",
        bytes(5_000_000),
        ByteMeter(moved=lambda size: told.append((time.monotonic(), size)), piece_bytes=100_000),
    )
    assert [size for _, size in told] == [100_000] * 50
    assert told[-1][0] - told[0][0] > 1.0  # it takes 2.5 s

    def stop(size: int) -> None:
        raise InterruptedRunError("stop")

    with pytest.raises(InterruptedRunError):
        bucket.put("large", bytes(5_000_000), ByteMeter(moved=stop))


class Refusing(BaseHTTPRequestHandler):
    """Says why, as S3 does."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        told = b"<Error><Code>AccessDenied</Code><Message>Not you.</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, *_: object) -> None:
        return


def test_why_a_metered_put_is_refused_is_told_as_of_any(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        bucket = BucketClient(
            "s3://bucket/x", {**OPTIONS, "endpoint": f"http://127.0.0.1:{server.server_port}"}
        )
        with pytest.raises(TransferRefusedError, match="access is denied: AccessDenied: Not you"):
            bucket.put("a", b"content", ByteMeter(moved=lambda _: None))
        server.shutdown()
    with pytest.raises(UnavailableError, match="does not answer"):
        bucket.put("a", b"content", ByteMeter(moved=lambda _: None))


def test_what_is_read_tells_how_far_it_is(tmp_path: Path) -> None:
    bucket = BucketClient((tmp_path / "bucket").as_uri())
    bucket.put("a", bytes(100_000))
    told: list[int] = []
    assert bucket.get("a", 100_000, ByteMeter(moved=told.append, piece_bytes=1000)) == bytes(100_000)
    assert sum(told) == 100_000
    assert len(told) > 1


def test_a_farm_puts_over_a_thin_line_as_long_as_something_moves(
    slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket's timeout is that of all that is sent in one call."""
    monkeypatch.setattr(
        signed_urls, "SILENCE_SECONDS", 4.0
    )  # what the kernel holds takes its time in the end
    content = bytes(12_000_000)
    slices = signed_urls.sliced([(hash_of(content), len(content))])
    began = time.monotonic()
    signed_urls.write(
        BucketObject(url=f"{slow}/bucket/x", slices=slices),
        [Chunk(hash=hash_of(content), data=content)],
        allowed=["127.0.0.1"],
    )
    assert time.monotonic() - began > 4.0


def test_a_bucket_without_credentials_says_so_and_not_whom_it_has_asked_for_them() -> None:
    with pytest.raises(TransferRefusedError, match="no credentials") as told, explained("s3://bucket"):
        raise GenericError("Error performing PUT http://169.254.169.254/latest/api/token in 5ms\n\nDebug: …")
    asked = (
        "Error performing PUT http://169.254.169.254/latest/api/token in 5ms - Server returned non-2xx status"
    )
    with pytest.raises(TransferRefusedError, match="no credentials"), explained("s3://bucket"):
        raise GenericError(f"{asked} code: 403 Forbidden: the metadata of this machine are off")
    assert "AWS_ACCESS_KEY_ID" in told.value.hint
    with pytest.raises(InputError, match="no bucket"):
        BucketClient("http://example.org/x")
    with pytest.raises(InputError, match="nonsense"):
        BucketClient("s3://bucket/x", {"nonsense": "y"})


REFUSED = (
    "Error performing {} http://127.0.0.1:9/b in 15ms - Server returned non-2xx status code: 403 Forbidden: "
    "<?xml version='1.0'?><Error><Code>{}</Code><Message>{}</Message><Resource>b</Resource></Error>"
)


@pytest.mark.parametrize(
    "refused", [GenericError, PermissionDeniedError], ids=["as it is listed", "as it is written"]
)
def test_why_a_bucket_refuses_is_told_in_its_own_words(refused: type[Exception]) -> None:
    with pytest.raises(TransferRefusedError) as told, explained("s3://bucket"):
        raise refused(REFUSED.format("PUT", "AccessDenied", "Access Denied."))
    assert str(told.value) == "s3://bucket: access is denied: AccessDenied: Access Denied."
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
        ("HTTP error: error sending request", "the bucket's server does not answer"),
        ("Server returned error status: 503 Service Unavailable", "Server returned error status: 503"),
    ],
)
def test_why_a_bucket_cannot_be_used_is_told_without_how_often_it_was_tried(said: str, told: str) -> None:
    with pytest.raises(UnavailableError) as caught, explained("s3://b/x"):
        raise GenericError(f"{TRIED}{said}\n\nDebug source: ...")
    assert str(caught.value).startswith(f"s3://b/x: {told}")
