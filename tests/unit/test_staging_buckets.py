from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.test_staging_chunks import chunk, contents
from tests.unit.test_staging_manifest import named, tree

from gridmill.errors import DataError, InputError, NotFoundError
from gridmill.staging.buckets import BucketCarrier
from gridmill.staging.carry import pull, push
from gridmill.staging.chunks import ChunkStore
from gridmill.staging.frames import Chunk
from gridmill.staging.manifest import scan
from gridmill.staging.packs import SMALL_BYTES, Part, pack, parts
from gridmill.staging.place import Placer

FILES = {f"d{at % 3}/f{at}": bytes([at]) * (at + 1) for at in range(100)} | {"big": bytes(SMALL_BYTES + 1)}
LARGE = Chunk(hash=named(FILES["big"]), data=FILES["big"])


def bucket(tmp_path):
    return BucketCarrier((tmp_path / "bucket").as_uri())


def objects(tmp_path):
    return sorted(
        str(path.relative_to(tmp_path / "bucket").parent)
        for path in (tmp_path / "bucket").rglob("*")
        if path.is_file()
    )


def test_a_tree_goes_by_a_bucket(tmp_path):
    root = tree(tmp_path / "from", FILES)
    manifest = scan(root)
    push(manifest, root, bucket(tmp_path))
    assert objects(tmp_path) == [f"chunks/{LARGE.hash[:2]}", "index", "packs"]
    far = bucket(tmp_path)  # another process, on the other side
    assert far.missing([*(one.chunks[0] for one in manifest.files), named(b"?")]) == (named(b"?"),)
    near = ChunkStore(tmp_path / "near", 1 << 30)
    pull(manifest, near, far)
    Placer(tmp_path / "back", near).place("x", manifest, "t.1")
    assert contents(tmp_path / "back/x") == FILES


def test_one_that_knows_the_bucket_sees_what_comes_and_goes(tmp_path):
    near, far = bucket(tmp_path), bucket(tmp_path)
    small = [chunk(bytes([at])) for at in range(9)]
    assert far.missing(one.hash for one in small) == tuple(one.hash for one in small)
    near.send([*small, LARGE])
    assert list(far.fetch([small[3].hash, LARGE.hash])) == [small[3], LARGE]
    assert far.missing(one.hash for one in (*small, LARGE)) == ()
    now = datetime.now(UTC)
    near.clear(now - timedelta(days=1))
    assert far.missing(one.hash for one in (*small, LARGE)) == ()
    near.clear(now + timedelta(days=1))
    assert len(far.missing(one.hash for one in (*small, LARGE))) == 10
    assert objects(tmp_path) == []
    with pytest.raises(NotFoundError):
        list(near.fetch([small[3].hash]))


def test_more_than_a_few_are_looked_for_in_the_list(tmp_path):
    far = bucket(tmp_path)
    asked = [named(bytes([at])) for at in range(100)]
    far.send([chunk(bytes([7]))])
    assert far.missing(asked) == tuple(one for one in asked if one != named(bytes([7])))


def test_what_is_damaged_is_found_out(tmp_path):
    far = bucket(tmp_path)
    with pytest.raises(DataError):
        far.send([Chunk(hash=named(b"a"), data=b"b")])
    assert objects(tmp_path) == []
    far.send([chunk(bytes([at])) for at in range(9)])
    (index,) = (tmp_path / "bucket/index").iterdir()
    index.write_bytes(index.read_bytes()[:-1])
    assert bucket(tmp_path).missing([named(b"\x01")]) == (named(b"\x01"),)


def test_what_is_no_bucket_is_refused():
    for url in ("http://example.org/x", "nonsense"):
        with pytest.raises(InputError, match="no bucket"):
            BucketCarrier(url)
    with pytest.raises(InputError, match="nonsense"):
        BucketCarrier("s3://bucket/x", {"nonsense": "y"})


@given(st.lists(st.binary(max_size=20), max_size=9))
def test_an_index_tells_where_each_chunk_lies(contents):
    made = pack([chunk(data) for data in contents])
    found = parts(made.name, made.index)
    assert set(found) == {named(data) for data in contents}
    for name, part in found.items():
        assert named(made.content[part.begin : part.end]) == name
    assert parts(made.name, made.index + b"x") == {}


def test_a_part_is_told_in_bytes():
    made = pack([chunk(b"abc"), chunk(b"de")])
    assert parts(made.name, made.index)[named(b"de")] == Part(pack=made.name, begin=3, end=5)
