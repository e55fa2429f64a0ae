"""By a bucket to a farm and back: objects that are used once, opened by signed URLs."""

import http.client
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kit.little_bucket import SECRET, LittleBucket, little_bucket, moment
from tests.unit.transfer.test_staging_chunks import contents
from tests.unit.transfer.test_staging_manifest import tree

from gridmill.domain.farm_protocol import BucketObject, PlaceTree
from gridmill.errors import DataError, InputError, NotFoundError, UnavailableError
from gridmill.farm.files import TenantFiles
from gridmill.farm.store import RecordStore
from gridmill.transfer.bucket_cache import BucketCache, SharedBucketEndpoint
from gridmill.transfer.bucket_exchange import ExportBucketEndpoint, sweep
from gridmill.transfer.chunk_manifest import scan
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.engine import MeteredEndpoint, TransferLimits, pull, push
from gridmill.transfer.errors import TransferRefusedError
from gridmill.transfer.paths import chunk_sizes
from gridmill.transfer.progress import TransferProgress
from gridmill.transfer.signed_urls import _connection, check_bucket, is_refused, read, sliced, write
from gridmill.transfer.stream import Chunk, hash_of
from gridmill.transfer.tree_writer import TreeCheckout

FILES = {f"d{at % 3}/f{at}": bytes([at]) * (at + 1) for at in range(40)} | {
    "big": bytes(9 << 20),
    "none": b"",
}
HERE = ("127.0.0.1",)
ONCE = TransferLimits(patience_seconds=-1.0, wait_seconds=0.0)
PATIENT = TransferLimits(parallel=2, wait_seconds=0.0)


class There(TenantFiles):
    """What a farm has for one source, asked right here."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        records = RecordStore(folder / "records.db")
        root, chunks = folder / "root", folder / "carried"
        super().__init__("home", root, chunks, 1 << 30, None, records, lambda: 0.0, bucket_hosts=HERE)

    def missing(self, chunks: Sequence[str]) -> tuple[str, ...]:
        return self.store.missing(chunks)


@pytest.fixture
def bucket() -> Iterator[LittleBucket]:
    with little_bucket() as made:
        yield made


@pytest.fixture
def there(tmp_path: Path) -> There:
    return There(tmp_path / "there")


def go(tmp_path: Path, there: There, bucket: LittleBucket, terms: TransferLimits = ONCE) -> None:
    """There, made a tree, and home again."""
    root = tree(tmp_path / "from", FILES)
    manifest = scan(root)
    way = ExportBucketEndpoint(there, bucket, chunk_sizes(manifest))
    push(manifest, root, way, terms=terms)
    assert there.place(PlaceTree(uri="x", manifest=manifest, attempt_id="t.1")) == ()
    assert contents(tmp_path / "there/root/x") == FILES
    near = ChunkStore(tmp_path / "near", 1 << 30)
    pull(there.scan("x"), near, way, terms=terms)
    TreeCheckout(tmp_path / "back", near).place("x", manifest, "t.1")
    assert contents(tmp_path / "back/x") == FILES


def test_a_tree_goes_there_and_back_and_the_bucket_is_empty_again(
    tmp_path: Path, there: There, bucket: LittleBucket
) -> None:
    go(tmp_path, there, bucket)
    assert bucket.objects == {}
    assert len(bucket.seen) == len(set(bucket.seen)) < 10  # no object twice, and small files together
    (tmp_path / "from/new").write_bytes(b"new")
    progress, manifest = TransferProgress(), scan(tmp_path / "from")
    push(
        manifest,
        tmp_path / "from",
        ExportBucketEndpoint(there, bucket, chunk_sizes(manifest)),
        progress=progress,
    )
    assert progress.look().transferred_bytes == 3


@pytest.mark.parametrize("fault", ["503", "500", "429", "cut", "short", "damage"])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_what_fails_for_a_while_is_done_again(
    tmp_path: Path, there: There, bucket: LittleBucket, method: str, fault: str
) -> None:
    left = [fault]
    bucket.fault = lambda asked, name: left.pop() if left and asked == method else ""
    go(tmp_path, there, bucket, PATIENT)
    assert left == []
    assert bucket.objects == {}


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        ("503", UnavailableError, "answers 503"),
        ("403", TransferRefusedError, "answers 403"),
        ("307", TransferRefusedError, "answers 307"),
        ("cut", UnavailableError, "does not answer"),
        ("damage", DataError, "hash"),
    ],
)
def test_what_fails_for_ever_says_why_and_no_secret(
    tmp_path: Path, there: There, bucket: LittleBucket, fault: str, error: type[Exception], said: str
) -> None:
    bucket.fault = lambda method, name: fault
    with pytest.raises(error, match=said) as told:
        go(tmp_path, there, bucket)
    assert SECRET not in f"{told.value} {vars(told.value)}"
    assert bucket.objects == {}


def test_a_url_that_expired_on_the_way_is_signed_anew(
    tmp_path: Path, there: There, bucket: LittleBucket
) -> None:
    sign, signed = bucket.sign, list[str]()

    def late(method: str, name: str) -> str:
        bucket.pass_seconds = -1.0 if len(signed) < 3 else 900.0
        signed.append(name)
        return sign(method, name)

    bucket.sign = late  # type: ignore[method-assign]
    go(tmp_path, there, bucket, PATIENT)
    assert len(signed) > len(set(signed) - set(signed[:3])) + 2


def test_a_url_opens_one_object_one_way(there: There, bucket: LittleBucket, tmp_path: Path) -> None:
    bucket.put("a", b"a")
    slices = sliced([("0" * 64, 1)])
    with pytest.raises(InputError, match="AccessDenied: Request has expired"):
        write(
            BucketObject(url=bucket.sign("GET", "a"), slices=slices),
            list(read(BucketObject(url=bucket.sign("GET", "a"), slices=slices), HERE)),
            HERE,
        )
    with pytest.raises(NotFoundError, match="NoSuchKey"):
        list(read(BucketObject(url=bucket.sign("GET", "b"), slices=slices), HERE))


def test_what_was_removed_before_it_was_taken_is_put_again(
    tmp_path: Path, there: There, bucket: LittleBucket
) -> None:
    gone = ["once", "twice"]

    def removes(method: str, name: str) -> str:
        if gone:
            gone.pop()
            bucket.objects.pop(name, None)
        return ""

    bucket.fault = removes
    go(tmp_path, there, bucket, PATIENT)
    assert gone == []


def test_what_could_not_be_removed_is_swept(tmp_path: Path, there: There, bucket: LittleBucket) -> None:
    bucket.fails_to_remove = True
    go(tmp_path, there, bucket)
    bucket.fails_to_remove = False
    assert bucket.objects
    sweep(bucket, moment(3600))
    assert bucket.objects
    sweep(bucket, moment(-3600))
    assert bucket.objects == {}


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://x/y", "http://x y", "http://[", "http:///x", "http://x:y/", "", "data:,x"],
)
def test_only_http_is_opened(url: str) -> None:
    with pytest.raises(InputError, match="https://"):
        list(read(BucketObject(url=url, slices=sliced([("0" * 64, 1)]))))


CLOUDS = ("169.254.169.254", "fe80::1%e", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16")
ITSELF = ("127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "::", "224.0.0.1")
DISGUISED = ("::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::ffff:127.0.0.1")


@pytest.mark.parametrize("address", [*CLOUDS, *ITSELF, *DISGUISED])
def test_nobody_reads_what_is_told_to_the_machine_alone(address: str) -> None:
    assert is_refused(address)


@pytest.mark.parametrize("address", ["10.0.0.1", "52.216.0.1", "2001:db8::1", "64:ff9b::808:808"])
def test_buckets_are_where_others_are(address: str) -> None:
    assert not is_refused(address)


def test_the_machine_itself_is_opened_where_its_owner_says_so(bucket: LittleBucket) -> None:
    bucket.put("a", b"one")
    parcel = BucketObject(url=bucket.sign("GET", "a"), slices=sliced([(hash_of(b"one"), 3)]))
    with pytest.raises(InputError, match="not an address of a bucket") as told:
        list(read(parcel))
    assert "GRIDMILL_BUCKET_HOSTS" in str(told.value.hint)
    with pytest.raises(InputError, match="not an address of a bucket"):
        write(replace(parcel, url=bucket.sign("PUT", "b")), [Chunk(hash=hash_of(b"one"), data=b"one")])
    assert bucket.seen == []
    (chunk,) = read(parcel, HERE)
    assert chunk.data == b"one"


def test_a_bucket_that_dribbles_is_waited_for_no_longer(
    bucket: LittleBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gridmill.transfer.signed_urls.PARCEL_SECONDS", 0.0)
    bucket.put("a", b"one")
    with pytest.raises(UnavailableError, match="too slowly"):
        list(read(BucketObject(url=bucket.sign("GET", "a"), slices=sliced([(hash_of(b"one"), 3)])), HERE))


def test_nobody_goes_by_a_proxy(bucket: LittleBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    bucket.put("a", b"one")
    (chunk,) = read(BucketObject(url=bucket.sign("GET", "a"), slices=sliced([(hash_of(b"one"), 3)])), HERE)
    assert chunk.data == b"one"


@pytest.mark.parametrize(("begin", "size"), [(-1, 1), (0, -1), (0, 1 << 40)])
def test_slices_are_of_chunks(begin: int, size: int) -> None:
    slices = tuple(
        type(one)(chunk=one.chunk, begin=begin, size_bytes=size) for one in sliced([("0" * 64, 1)])
    )
    with pytest.raises(InputError, match="not a valid chunk"):
        list(read(BucketObject(url="http://x", slices=slices)))


@pytest.mark.parametrize(
    "url", ["bucket", "s3://", "s3://b/../c", "http://x/y", "s3://bucket/x?y=1", "file:///x"]
)
def test_a_bucket_is_one(url: str) -> None:
    with pytest.raises(InputError, match="not the address of a bucket"):
        check_bucket(url, "here")
    check_bucket("s3://bucket")
    check_bucket("gs://my-bucket/some/prefix/")


@pytest.mark.parametrize("kind", [ExportBucketEndpoint, SharedBucketEndpoint])
def test_what_goes_by_a_bucket_is_counted_once(
    tmp_path: Path, there: There, bucket: LittleBucket, kind: type
) -> None:
    root = tree(tmp_path / "from", FILES)
    manifest = scan(root)
    parts = (BucketCache(bucket), bucket) if kind is SharedBucketEndpoint else (bucket,)
    way = kind(there, *parts, chunk_sizes(manifest))
    assert isinstance(way, MeteredEndpoint)
    to, back = TransferProgress(), TransferProgress()
    push(manifest, root, way, progress=to)
    there.place(PlaceTree(uri="x", manifest=manifest, attempt_id="t.1"))
    pull(there.scan("x"), ChunkStore(tmp_path / "near", 1 << 30), way, progress=back)
    size_bytes = sum(chunk_sizes(manifest).values())
    assert {to.look().transferred_bytes, back.look().transferred_bytes} == {size_bytes}
    assert {to.look().left_bytes, back.look().left_bytes} == {0}


def test_nothing_is_dialled_at_an_address_of_the_machine_itself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        connection = _connection(http.client.HTTPConnection, (), "localhost", port=port, timeout=5.0)
        with pytest.raises(InputError, match="not an address of a bucket"):
            connection.connect()
        with pytest.raises(BlockingIOError):
            listener.accept()
        allowed = _connection(http.client.HTTPConnection, ("127.0.0.1",), "127.0.0.1", port=port, timeout=5.0)
        allowed.connect()
        listener.accept()[0].close()
        allowed.close()
