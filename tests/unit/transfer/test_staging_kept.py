"""Chunks that stay in a bucket, for other jobs and other farms."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.little_bucket import LittleBucket, little_bucket, moment
from tests.unit.transfer.test_staging_chunks import chunk, contents
from tests.unit.transfer.test_staging_export import HERE, PATIENT, There
from tests.unit.transfer.test_staging_manifest import named, tree

from gridmill.domain.farm_protocol import Manifest, PlaceTree
from gridmill.errors import DataError, UnavailableError
from gridmill.transfer.bucket_cache import (
    SMALL_BYTES,
    BucketCache,
    PackSlice,
    SharedBucketEndpoint,
    pack,
    parts,
)
from gridmill.transfer.chunk_manifest import scan
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.engine import pull, push
from gridmill.transfer.paths import chunk_sizes
from gridmill.transfer.signed_urls import read
from gridmill.transfer.stream import Chunk

FILES = {f"d{at % 3}/f{at}": bytes([at]) * (at + 1) for at in range(100)} | {"big": bytes(SMALL_BYTES + 1)}
LARGE = Chunk(hash=named(FILES["big"]), data=FILES["big"])
SMALL = [chunk(bytes([at])) for at in range(9)]


@pytest.fixture
def bucket() -> Iterator[LittleBucket]:
    with little_bucket() as made:
        yield made


def folders(bucket: LittleBucket) -> list[str]:
    return sorted(name.rpartition("/")[0] for name in bucket.objects)


def go(root: Path, bucket: LittleBucket, there: There, kept: BucketCache | None = None) -> Manifest:
    manifest = scan(root)
    shared = SharedBucketEndpoint(there, kept or BucketCache(bucket), bucket, chunk_sizes(manifest))
    push(manifest, root, shared, terms=PATIENT)
    assert there.place(PlaceTree(uri="x", manifest=manifest, attempt_id="t.1")) == ()
    assert contents(there.store.folder.parent / "root/x") == FILES
    return manifest


def test_what_one_farm_read_another_reads_and_it_travels_to_the_bucket_once(
    tmp_path: Path, bucket: LittleBucket
) -> None:
    root = tree(tmp_path / "from", FILES)
    go(root, bucket, There(tmp_path / "one"))
    assert folders(bucket) == [f"chunks/{LARGE.hash[:2]}", "index", "packs"]
    put = dict(bucket.put_at)
    manifest = go(root, bucket, There(tmp_path / "two"))
    assert bucket.put_at == put
    near = ChunkStore(tmp_path / "near", 1 << 30)
    there = There(tmp_path / "three")
    go(root, bucket, there)
    there.scan("x")
    pull(manifest, near, SharedBucketEndpoint(there, BucketCache(bucket), bucket, chunk_sizes(manifest)))
    assert near.missing(chunk_sizes(manifest)) == ()
    assert bucket.put_at.keys() - bucket.objects.keys()  # what came back is not kept
    assert bucket.objects.keys() == put.keys()


def test_what_was_removed_meanwhile_is_put_again(tmp_path: Path, bucket: LittleBucket) -> None:
    root, kept = tree(tmp_path / "from", FILES), BucketCache(bucket)
    go(root, bucket, There(tmp_path / "one"), kept)
    bucket.objects.clear()  # by another process, which found it too old
    go(root, bucket, There(tmp_path / "two"), kept)
    assert folders(bucket) == [f"chunks/{LARGE.hash[:2]}", "index", "packs"]


def test_the_farm_may_read_these_objects_and_nothing_else(bucket: LittleBucket) -> None:
    kept = BucketCache(bucket)
    kept.send([*SMALL, LARGE])
    parcels = kept.parcels(
        {SMALL[3].hash: 1, SMALL[4].hash: 1, SMALL[7].hash: 1, LARGE.hash: len(LARGE.data)}
    )
    assert [list(read(parcel, HERE)) for parcel in parcels] == [[SMALL[3], SMALL[4], SMALL[7]], [LARGE]]
    for parcel in parcels:
        path = parcel.url.removeprefix(parcel.url[: parcel.url.index("/", 8)])
        assert bucket.allows("GET", path)
        assert not bucket.allows("PUT", path)


def test_one_that_knows_the_bucket_sees_what_comes_and_goes(bucket: LittleBucket) -> None:
    near, far = BucketCache(bucket), BucketCache(bucket)
    all_of_them = tuple(one.hash for one in (*SMALL, LARGE))
    assert far.missing(all_of_them) == all_of_them
    near.send([*SMALL, LARGE])
    assert far.missing(all_of_them) == ()
    near.clear(moment(3600))
    assert BucketCache(bucket).missing(all_of_them) == ()
    near.clear(moment(-3600))
    assert bucket.objects == {}
    assert near.missing(all_of_them) == all_of_them


def test_more_than_a_few_are_looked_for_in_the_list(bucket: LittleBucket) -> None:
    kept = BucketCache(bucket)
    asked = [named(bytes([at])) for at in range(100)]
    kept.send([chunk(bytes([7]))])
    assert BucketCache(bucket).missing(asked) == tuple(one for one in asked if one != named(bytes([7])))


def test_what_is_damaged_is_found_out(bucket: LittleBucket) -> None:
    kept = BucketCache(bucket)
    with pytest.raises(DataError):
        kept.send([Chunk(hash=named(b"a"), data=b"b")])
    assert bucket.objects == {}
    kept.send(SMALL)
    (index,) = [name for name in bucket.objects if name.startswith("index/")]
    bucket.objects[index] = bucket.objects[index][:-1]
    assert BucketCache(bucket).missing([SMALL[1].hash]) == (SMALL[1].hash,)


@pytest.mark.parametrize("folder", ["packs", "chunks"])
@pytest.mark.parametrize(
    "rotten",
    [
        lambda was: was[:-1] + b"!",
        pytest.param(lambda was: was[:-1], marks=pytest.mark.long),
        pytest.param(lambda _: b"", marks=pytest.mark.long),
    ],
)
def test_what_has_rotted_is_put_again(
    tmp_path: Path, bucket: LittleBucket, folder: str, rotten: Callable[[bytes], bytes]
) -> None:
    root = tree(tmp_path / "from", FILES)
    go(root, bucket, There(tmp_path / "one"))
    for name in [name for name in bucket.objects if name.startswith(folder)]:
        bucket.objects[name] = rotten(bucket.objects[name])
    for far in ("two", "three"):
        go(root, bucket, There(tmp_path / far))


def test_a_bucket_that_loses_all_is_no_way(tmp_path: Path, bucket: LittleBucket) -> None:
    bucket.put = lambda name, content, meter: None  # type: ignore[method-assign]
    there, sizes = There(tmp_path / "there"), {LARGE.hash: len(LARGE.data)}
    with pytest.raises(UnavailableError, match="deleted from the bucket"):
        SharedBucketEndpoint(there, BucketCache(bucket), bucket, sizes).send([LARGE])


@given(st.lists(st.binary(max_size=20), max_size=9))
def test_an_index_tells_where_each_chunk_lies(contents: list[bytes]) -> None:
    made = pack([chunk(data) for data in contents])
    found = parts(made.name, made.index)
    assert set(found) == {named(data) for data in contents}
    for name, part in found.items():
        assert named(made.content[part.begin : part.end]) == name
    assert parts(made.name, made.index + b"x") == {}


def test_a_part_is_told_in_bytes() -> None:
    made = pack([chunk(b"abc"), chunk(b"de")])
    assert parts(made.name, made.index)[named(b"de")] == PackSlice(pack=made.name, begin=3, end=5)
