"""A sink over a real S3 server, which answers Google's client too."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import S3Store

from gridmill.domain.artifact import Output
from gridmill.domain.pod_protocol import JobPart
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import Source
from gridmill.errors import DataError, InputError, UnavailableError
from gridmill.jobs.sink.run import run
from tests.e2e.conftest import eventually
from tests.kit.objectstore import HOW_TO_GET_IT, KEYS, make_bucket, object_store
from tests.kit.sink_case import SinkCase

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with object_store() as found:
        if found is None:
            pytest.skip(HOW_TO_GET_IT)
        yield found


@pytest.fixture
def bucket(endpoint: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    name = request.node.name.replace("_", "")[:40].lower()
    make_bucket(endpoint, name)
    return S3Store(
        name,
        endpoint=endpoint,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def load(case: SinkCase, endpoint: str, path: str) -> Output:
    return run(case.context(SinkSpec(source=Source(path=path, endpoint=endpoint)))).outputs[0]


def test_an_object_that_changed_lately_waits(bucket: S3Store, endpoint: str, case: SinkCase) -> None:
    source = Source(path=f"s3://{name_of(bucket)}/*.parquet", endpoint=endpoint, settled_seconds=1e-6)
    put(bucket, "a.parquet", [1])
    load_source(case, source)
    put(bucket, "b.parquet", [2])
    output = load_source(case, replace(source, settled_seconds=3600.0))
    assert output.details["waiting"] == {"files": 2, "settled_seconds": 3600.0}
    assert [row["a"] for row in case.rows()] == [1]
    assert eventually(lambda: load_source(case, source).rows == 2)  # its clock is by the second


def load_source(case: SinkCase, source: Source) -> Output:
    return run(case.context(SinkSpec(source=source))).outputs[0]


def put(bucket: S3Store, path: str, values: list[int]) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": values}), sink)
    obstore.put(bucket, path, sink.getvalue().to_pybytes())


def name_of(bucket: S3Store) -> str:
    return bucket.config["bucket"]


def test_objects_are_loaded_once_and_again_when_they_change(
    bucket: S3Store, endpoint: str, case: SinkCase
) -> None:
    put(bucket, "raw/2024/one.parquet", [1])
    put(bucket, "raw/two.parquet", [2])
    put(bucket, "raw/other.csv", [0])
    path = f"s3://{name_of(bucket)}/raw/**/*.parquet"
    assert load(case, endpoint, path).rows == 2
    assert load(case, endpoint, path).table_version == 1
    put(bucket, "raw/two.parquet", [3, 4])
    put(bucket, "raw/2025/three.parquet", [5])
    assert load(case, endpoint, path).table_version == 2
    assert [row["a"] for row in case.rows()] == [1, 3, 4, 5]
    assert len(obstore.list(bucket).collect()) == 4


def test_parts_fetch_objects_and_the_load_fetches_none_of_them_again(
    bucket: S3Store, endpoint: str, case: SinkCase
) -> None:
    for number in range(4):
        put(bucket, f"raw/{number}.parquet", [number])
    path = f"s3://{name_of(bucket)}/raw/*.parquet"
    spec = SinkSpec(source=Source(path=path, endpoint=endpoint), parts=2)
    parts = [case.context(spec) for _ in range(2)]
    for number, context in enumerate(parts):
        part = JobPart(of="p-1/s", number=number, count=2)
        assert run(replace(context, order=replace(context.order, part=part))).outputs == ()
        assert len(list(context.work.glob("*.parquet"))) == 2
    whole = case.context(spec)
    uris = tuple(context.order.output_uri for context in parts)
    assert run(replace(whole, order=replace(whole.order, parts=uris))).outputs[0].rows == 4
    assert [row["a"] for row in case.rows()] == [0, 1, 2, 3]
    assert not list(whole.work.glob("*.parquet"))


def test_googles_client_loads_the_same_objects_and_each_once(
    bucket: S3Store, endpoint: str, case: SinkCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "test")
    put(bucket, "raw/2024/one.parquet", [1])
    put(bucket, "raw/two.parquet", [2])
    path = f"gs://{name_of(bucket)}/raw/**/*.parquet"
    assert load(case, endpoint, path).rows == 2
    assert load(case, endpoint, path).table_version == 1
    put(bucket, "raw/two.parquet", [3, 4])
    assert load(case, endpoint, path).table_version == 2
    assert [row["a"] for row in case.rows()] == [1, 3, 4]
    with pytest.raises(DataError, match="there is no such object"):
        load(case, endpoint, f"gs://{name_of(bucket)}/nothing/*.csv")
    with pytest.raises(InputError, match="not of the form gs://BUCKET/PATH"):
        load(case, endpoint, "gs://bucket")


def test_a_large_object_arrives_whole(bucket: S3Store, endpoint: str, case: SinkCase) -> None:
    body = "a\n" + "".join(f"{n}\n" for n in range(2_000_000))
    obstore.put(bucket, "big.csv", body.encode())
    assert load(case, endpoint, f"s3://{name_of(bucket)}/big.csv").rows == 2_000_000


def test_what_is_not_there_is_said(bucket: S3Store, endpoint: str, case: SinkCase) -> None:
    with pytest.raises(DataError, match="there is no such object"):
        load(case, endpoint, f"s3://{name_of(bucket)}/nothing/*.csv")
    with pytest.raises(DataError, match="there is no such bucket"):
        load(case, endpoint, "s3://no-such-bucket-here/x.csv")


def test_a_store_that_does_not_answer_is_named(case: SinkCase, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnavailableError, match="cannot be listed"):
        load(case, "http://127.0.0.1:1", "s3://bucket/x.csv")
