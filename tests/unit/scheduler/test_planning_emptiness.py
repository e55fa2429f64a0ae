"""Which tables without rows leave a job nothing to do."""

import pytest

from gridmill.domain.artifact import Artifact, ArtifactKind, Input, Output
from gridmill.domain.dataset import AsOfJoin, Basis, DatasetSpec
from gridmill.domain.job import CommandSpec, Job
from gridmill.scheduler.missing_columns import empty_tables

BASIS = Basis(table="sales", time="at", entity=("shop",))
WEATHER = AsOfJoin(table="weather", on=("shop",), known_at="at")


def table(name: str, rows: int | None) -> Input:
    output = Output(kind=ArtifactKind.SINK, uri="u", rows=rows)
    version = Artifact(id=f"p/{name}@1", name=f"p/{name}", number=1, output=output, fingerprint="f")
    return Input(name=name, artifact=version)


@pytest.mark.parametrize(
    ("spec", "sales", "weather", "lacking"),
    [
        (DatasetSpec(basis=BASIS, asof_joins=(WEATHER,)), 0, 5, ("sales",)),
        (DatasetSpec(basis=BASIS, asof_joins=(WEATHER,)), 5, 0, ()),
        (DatasetSpec(sql="...", tables=("sales", "weather")), 0, 0, ("sales", "weather")),
        (DatasetSpec(sql="...", tables=("sales", "weather")), 0, 5, ()),
        (DatasetSpec(sql="...", tables=("sales",)), None, 5, ()),
    ],
    ids=["no basis rows", "none to join", "nothing to select from", "something to select", "not counted"],
)
def test_a_dataset_needs_rows_of_its_basis_or_of_any_table(
    spec: DatasetSpec, sales: int | None, weather: int, lacking: tuple[str, ...]
) -> None:
    inputs = (table("sales", sales), table("weather", weather))
    assert empty_tables(Job(name="data", dataset=spec), inputs) == lacking


def test_other_jobs_are_left_to_themselves() -> None:
    job = Job(name="count", command=CommandSpec(run="wc"), needs=("sales",))
    assert empty_tables(job, (table("sales", 0),)) == ()
