"""A dataset in parts, on several machines: the same files as in one, byte for byte."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_dataset_ways import GONE, SPEC, case  # noqa: F401  the fixture
from tests.kit.dataset_case import DatasetCase

from gridmill.domain.artifact import Output
from gridmill.domain.dataset import Aggregate, DatasetSpec, Label, Lag, Window
from gridmill.domain.pod_protocol import JobPart
from gridmill.jobs.dataset import key_order, window_engine
from gridmill.jobs.dataset.run import run

OF_EVENTS = replace(
    SPEC,
    label=GONE,
    windows=(Window(column="next", aggregates=(Aggregate.SUM,), span_seconds=3 * 86400, on=("kind",)),),
    encoders=(),
)
LATER = replace(
    OF_EVENTS,
    label=Label(column="x", steps=3, name="next"),
    lags=(Lag(column="next", steps=(1, 5), on=("kind",)),),
)
PLAIN = replace(SPEC, encoders=(), windows=(), lags=(), asof_joins=())


def in_parts(case: DatasetCase, spec: DatasetSpec, count: int) -> Output:  # noqa: F811
    uris = []
    for number in range(count):
        context = case.context(spec)
        part = JobPart(of="p-1/d", number=number, count=count)
        assert run(replace(context, order=replace(context.order, part=part))).outputs == ()
        uris.append(context.order.output_uri)
    context = case.context(spec)
    return run(replace(context, order=replace(context.order, parts=tuple(uris)))).outputs[0]


def files(case: DatasetCase, output: Output) -> dict[str, bytes]:  # noqa: F811
    folder: Path = case.folder / "root" / output.uri
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


SPECS = {
    "all": SPEC,
    "windows": replace(SPEC, encoders=()),
    "labels of events": OF_EVENTS,
    "labels of later rows": LATER,
    "plain": PLAIN,
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_parts_make_what_one_machine_makes(case: DatasetCase, spec: DatasetSpec) -> None:  # noqa: F811
    spec = replace(spec, buckets=4)
    whole, parted = case.make(spec), in_parts(case, spec, 3)
    assert spec.encoders or len(files(case, whole)) > 1
    assert files(case, parted) == files(case, whole)
    assert (parted.rows, parted.columns) == (whole.rows, whole.columns)
    assert parted.details == whole.details


@pytest.mark.parametrize("spec", [OF_EVENTS, LATER], ids=["events", "later rows"])
def test_parts_in_which_entities_are_cut_in_time_make_it_too(
    case: DatasetCase,  # noqa: F811
    spec: DatasetSpec,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = case.table(case.make(spec))
    for name in ("CHUNK_ROWS", "BATCH_ROWS", "CHUNK_VALUES"):
        monkeypatch.setattr(window_engine, name, 300)
    monkeypatch.setattr(key_order, "BATCH_ROWS", 200)
    parted = in_parts(case, spec, 3)
    assert len(files(case, parted)) > 7  # of 7 entities
    assert case.table(parted).equals(expected)


def test_more_parts_than_buckets_are_no_trouble(case: DatasetCase) -> None:  # noqa: F811
    spec = replace(SPEC, buckets=2)
    assert files(case, in_parts(case, spec, 5)) == files(case, case.make(spec))
