"""Carrying by a bucket of a real S3 server."""

import pytest

from gridmill.errors import UnavailableError
from gridmill.staging.buckets import BucketCarrier
from gridmill.staging.carry import Terms, pull, push
from gridmill.staging.chunks import ChunkStore
from gridmill.staging.manifest import scan
from gridmill.staging.place import Placer
from gridmill.staging.progress import Progress
from tests.objectstore import HOW_TO_GET_IT, make_bucket, object_store
from tests.ports import free_port
from tests.unit.test_staging_chunks import contents
from tests.unit.test_staging_manifest import tree

pytestmark = pytest.mark.e2e
SAID = {"access_key_id": "test", "secret_access_key": "SECRET", "region": "us-east-1"}
FILES = {f"f{at}": bytes([at]) * 1000 for at in range(200)} | {"big": bytes(range(250)) * 80_000}


def test_a_tree_goes_by_an_s3_bucket_and_only_what_is_new(tmp_path):
    root = tree(tmp_path / "from", FILES)
    with object_store() as endpoint:
        if endpoint is None:
            pytest.skip(HOW_TO_GET_IT)
        make_bucket(endpoint, "exports")
        options = SAID | {"endpoint": endpoint}
        push(scan(root), root, BucketCarrier("s3://exports/here", options))
        with (root / "big").open("ab") as file:
            file.write(b"more")
        manifest, progress = scan(root), Progress()
        push(manifest, root, BucketCarrier("s3://exports/here", options), progress=progress)
        assert progress.look().carried_bytes < 8 << 20  # the last chunk of the file that grew
        near = ChunkStore(tmp_path / "near", 1 << 30)
        pull(manifest, near, BucketCarrier("s3://exports/here", options, trusted=False))
        Placer(tmp_path / "back", near).place("x", manifest, "t.1")
    assert contents(tmp_path / "back/x") == FILES | {"big": FILES["big"] + b"more"}


def test_a_server_that_does_not_answer_is_told_without_its_secrets(tmp_path):
    root = tree(tmp_path / "from", {"a": b"1"})
    far = BucketCarrier("s3://exports/here", SAID | {"endpoint": f"http://127.0.0.1:{free_port()}"})
    with pytest.raises(UnavailableError, match="s3://exports/here") as told:
        push(scan(root), root, far, terms=Terms(patience_seconds=-1.0))
    assert "SECRET" not in str(told.value)
