"""A swarm on several machines: its parts, put together, are what one swarm makes, byte for byte."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from test_prediction import prepare
from tests.kit.clean_process import predict
from tests.kit.learning_data import prediction_context

from gridmill.domain.pod_protocol import JobPart
from gridmill.errors import InternalError, JobError
from gridmill.jobs.context import JobContext, JobResult


def of_part(context: JobContext, number: int, count: int, workers: int = 1) -> JobContext:
    part = JobPart(of="p-1/swarm", number=number, count=count)
    order = replace(context.order, part=part, workers=workers, output_uri=f"outputs/part{number}")
    return replace(context, order=order)


def together(context: JobContext, parts: list[int]) -> JobResult:
    uris = tuple(f"outputs/part{number}" for number in parts)
    return predict(replace(context, order=replace(context.order, parts=uris, output_uri="outputs/both")))


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".done.json"}


@pytest.mark.parametrize("model", ["lstm", "linear"])
def test_parts_make_what_one_swarm_makes(tmp_path, model):
    dataset, trained = prepare(tmp_path, model)
    context = prediction_context(tmp_path, dataset, trained, shards=5)
    whole = predict(context)
    for number in range(3):
        assert predict(of_part(context, number, 3)).outputs == ()
    gathered = together(context, [0, 1, 2])
    assert files(tmp_path / "outputs/both") == files(tmp_path / "outputs/swarm")
    assert gathered.metrics == whole.metrics
    assert gathered.parallel.workers == 3
    assert [gathered.outputs[0].details[name] for name in ("shards", "workers", "parts")] == [5, 3, 3]


def test_the_shards_follow_from_all_workers_together(tmp_path):
    dataset, trained = prepare(tmp_path, "naive")
    context = prediction_context(tmp_path, dataset, trained)
    predict(replace(context, order=replace(context.order, workers=4)))
    for number in range(2):
        predict(of_part(context, number, 2, workers=2))
    together(context, [0, 1])
    assert files(tmp_path / "outputs/both") == files(tmp_path / "outputs/swarm")


def test_parts_of_different_models_are_not_put_together(tmp_path):
    dataset, trained = prepare(tmp_path, "naive", "linear")
    for number, name in enumerate(("naive", "linear")):
        predict(of_part(prediction_context(tmp_path, dataset, {name: trained[name]}), number, 2))
    with pytest.raises(JobError, match="different models with the same score: p/linear@1, p/naive@1"):
        together(prediction_context(tmp_path, dataset, trained), [0, 1])


def test_a_part_without_shards_is_no_trouble(tmp_path):
    dataset, trained = prepare(tmp_path, "naive")
    context = prediction_context(tmp_path, dataset, trained, shards=1)
    for number in range(2):
        predict(of_part(context, number, 2))
    assert together(context, [0, 1]).outputs[0].rows == pq.read_table(tmp_path / "outputs/both").num_rows


def test_a_part_that_is_missing_or_twice_is_seen(tmp_path):
    dataset, trained = prepare(tmp_path, "naive")
    context = prediction_context(tmp_path, dataset, trained, shards=4)
    for number in range(2):
        predict(of_part(context, number, 2))
    for parts in ([0], [1], [0, 0, 1], [1, 0]):
        with pytest.raises(InternalError, match="the parts predicted the ranges of shards"):
            together(context, parts)
