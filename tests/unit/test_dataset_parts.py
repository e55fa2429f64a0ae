"""A dataset in parts, on several machines: the same files as in one, byte for byte."""

from dataclasses import replace
from pathlib import Path

import pytest
from dataset_case import DatasetCase
from test_dataset_ways import SPEC, case  # noqa: F401  the fixture

from gridmill.jobs.dataset.run import run
from gridmill.model.artifact import Output
from gridmill.model.dataset import DatasetSpec
from gridmill.model.part import Part

PLAIN = replace(SPEC, encoders=(), windows=(), lags=(), asof_joins=())


def in_parts(case: DatasetCase, spec: DatasetSpec, count: int) -> Output:  # noqa: F811
    uris = []
    for number in range(count):
        context = case.context(spec)
        part = Part(of="p-1/d", number=number, count=count)
        assert run(replace(context, order=replace(context.order, part=part))).outputs == ()
        uris.append(context.order.output_uri)
    context = case.context(spec)
    return run(replace(context, order=replace(context.order, parts=tuple(uris)))).outputs[0]


def files(case: DatasetCase, output: Output) -> dict[str, bytes]:  # noqa: F811
    folder: Path = case.folder / "root" / output.uri
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, encoders=()), PLAIN], ids=["all", "windows", "plain"])
def test_parts_make_what_one_machine_makes(case: DatasetCase, spec: DatasetSpec) -> None:  # noqa: F811
    spec = replace(spec, buckets=4)
    whole, parted = case.make(spec), in_parts(case, spec, 3)
    assert spec.encoders or len(files(case, whole)) > 1
    assert files(case, parted) == files(case, whole)
    assert (parted.rows, parted.columns) == (whole.rows, whole.columns)
    assert parted.details == whole.details


def test_more_parts_than_buckets_are_no_trouble(case: DatasetCase) -> None:  # noqa: F811
    spec = replace(SPEC, buckets=2)
    assert files(case, in_parts(case, spec, 5)) == files(case, case.make(spec))
