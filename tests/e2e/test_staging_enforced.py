"""Signed URLs at a store that enforces what it is told: whose they are, what for, and until when."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import obstore
import pytest
from obstore.store import S3Store

from gridmill.domain.farm_protocol import BucketObject
from gridmill.domain.route import Staging
from gridmill.domain.states import AttemptState
from gridmill.errors import InputError, NotFoundError
from gridmill.sites.farm import staging
from gridmill.sites.farm.carrier_choice import BucketPrefix
from gridmill.transfer.bucket import BucketClient
from gridmill.transfer.signed_urls import read, sliced, write
from gridmill.transfer.stream import Chunk
from tests.e2e.test_staging_bucket import FILES, at_home
from tests.kit.faulty_proxy import faulty_proxy
from tests.kit.radosgw import HOW_TO_GET_IT, KEYS, is_there, radosgw
from tests.unit.sites.farm.test_cluster_carrying import URI, ended, order, outcome
from tests.unit.transfer.test_staging_chunks import chunk, contents
from tests.unit.transfer.test_staging_manifest import tree

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not is_there(), reason=HOW_TO_GET_IT)]
A = chunk(b"aaaa")
HERE = ("127.0.0.1",)


def _bucket(endpoint: str) -> S3Store:
    return S3Store("exports", endpoint=endpoint, client_options={"allow_http": True})


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with radosgw() as endpoint:
        with pytest.MonkeyPatch.context() as environment:
            for name, value in KEYS.items():
                environment.setenv(name, value)
            made = obstore.sign(_bucket(endpoint), "PUT", "", timedelta(minutes=15))
        httpx.put(made, timeout=60).raise_for_status()
        yield endpoint


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def opened(url: str) -> list[Chunk]:
    return list(read(BucketObject(url=url, slices=sliced([(A.hash, 4)])), HERE))


def put(url: str) -> None:
    write(BucketObject(url=url, slices=sliced([(A.hash, 4)])), [A], HERE)


def test_a_url_opens_one_object_one_way_for_a_while(server: str) -> None:
    bucket = BucketClient("s3://exports/here", {"endpoint": server})
    put(bucket.sign("PUT", "a"))
    bucket.put("b", b"bbbb")
    url = bucket.sign("GET", "a")
    assert opened(url) == [A]
    short = BucketClient("s3://exports/here", {"endpoint": server}, pass_seconds=1.0).sign("GET", "a")
    for refused in (
        url.replace("/a?", "/b?"),
        url[:-4] + "0000",
        bucket.sign("PUT", "a"),
        url.partition("?")[0],
    ):
        with pytest.raises(InputError, match="403"):
            opened(refused)
    for refused in (url, bucket.sign("PUT", "a").replace("/a?", "/c?")):
        with pytest.raises(InputError, match="403"):
            put(refused)
    with pytest.raises(InputError, match="403"):  # once it has expired
        _until(lambda: opened(short) == [])
    with pytest.raises(NotFoundError):
        opened(bucket.sign("GET", "d"))


def test_what_expires_on_the_way_is_signed_anew(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_PATIENCE_SECONDS", 300.0)
    with faulty_proxy(server) as proxy, at_home(tmp_path, proxy.endpoint, "exports") as home:
        bucket = home.carriers._bucket(
            BucketPrefix(url="s3://exports/some/prefix/me/far", endpoint=proxy.endpoint)
        )
        short = iter((True,))
        brief = BucketClient(bucket.url, {"endpoint": proxy.endpoint}, pass_seconds=4.0)
        bucket.pass_seconds = 4.0
        lasting = BucketClient(bucket.url, {"endpoint": proxy.endpoint})
        monkeypatch.setattr(
            bucket, "sign", lambda *asked: (brief if next(short, False) else lasting).sign(*asked)
        )
        host, held = {"Host": proxy.endpoint.partition("//")[2]}, list[str]()

        def late(method: str, path: str) -> str:
            """It comes when its URL has expired."""
            if "X-Amz-Expires=4&" in path:
                held.append(path)
                _until(lambda: httpx.get(f"{server}{path}", headers=host, timeout=60).status_code == 403)
            return ""

        proxy.fault = late
        tree(home.folder / "root/parts/a", FILES)
        wanted = order(parts=("parts/a",), staging=Staging.EXPORT)  # type: ignore[arg-type]
        home.carrying.note(wanted)
        home.carrying.upload_inputs(wanted)
        assert contents(home.there / "parts/a") == FILES
        tree(home.there / URI, {"made": b"made"})
        assert outcome(home.carrying.download_results(ended())).state == AttemptState.SUCCEEDED
        assert [name for name in home.median_remaining() if name.startswith("some/")] == []
        assert len(held) == 1


def _until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
