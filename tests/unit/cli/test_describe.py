"""What `show` says of nouns: words and tables, not dumps."""

from io import StringIO

from rich.console import Console

from gridmill.cli.describe import describe
from gridmill.domain.artifact import Alias, Artifact, ArtifactKind, Column, Output
from gridmill.domain.schedule import Schedule, ScheduleSpec
from gridmill.domain.views import ScheduleView, VersionView
from gridmill.testing.store_samples import one_of_each


def text(noun: object) -> str:
    out = StringIO()
    Console(file=out, width=150).print(describe(noun))
    return out.getvalue()


def version(name: str, output: Output) -> Artifact:
    return Artifact(id=f"{name}@1", name=name, number=1, output=output, fingerprint="f")


def test_a_model_says_what_it_takes_how_good_it_is_and_where_it_comes_from() -> None:
    columns = (Column(name="sold", type="double"), Column(name="day", type="date32"))
    data = version("s/data", Output(kind=ArtifactKind.DATASET, uri="d", rows=1000, columns=columns))
    table = version("s/sales", Output(kind=ArtifactKind.SINK, uri="t", rows=2000))
    details = {
        "model": "gbdt",
        "objective": "regression",
        "labels": ["next"],
        "features": ["sold"],
        "importance": {"sold": 0.75},
        "dataset": "s/data@1",
        "rows": {"train": 1200, "validation": 0, "test": 310},
        "not_measured": {"test": 10},
        "packages": {"gridmill": "0.1.0", "numpy": "2.0"},
        "options": {"epochs": 3, "data_wait_share": 0.0379, "resumed_in_epoch": None},
    }
    metrics = {"validation_rmse": 1.5, "test_rmse": 2.5}
    model = version("s/m", Output(kind=ArtifactKind.MODEL, uri="m", metrics=metrics, details=details))
    shown = text(
        VersionView(
            artifact=model,
            names=("latest", "prod"),
            lineage=(data, table),
            sources={"s/sales@1": "data/*.csv"},
            used_by=("s/forecast@2",),
        )
    )
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[0] == "s/m@1 model (latest, prod)"
    for line in (
        "predicts next (regression)",
        "sold double 0.75",
        "rmse 1.5 2.5",
        "settings epochs 3",
        "dataset s/data@1",
        "learned from 1,200 train rows",
        "measured on 300 test rows",
        "waited for data 3.8% of the training time",
        "packages gridmill 0.1.0, numpy 2.0",
    ):
        assert line in lines
    assert "used by s/forecast@2" in lines
    assert "code built into Gridmill 0.1.0" in lines
    assert any(line.startswith("s/sales@1 sink 2,000") and line.endswith("data/*.csv") for line in lines)


def test_every_noun_can_be_described() -> None:
    for noun in one_of_each():
        assert text(noun).strip()


def test_a_schedule_and_an_alias_tell_times_as_times() -> None:
    one = Schedule(
        name="hello", spec=ScheduleSpec(every_seconds=3600.0), since=1.7e9, runs=2, last_run="hello-2"
    )
    shown = text(ScheduleView(schedule=one, next=(1.7e9 + 3600,)))
    assert "hello-2" in shown
    assert "2, unchanged 0, skipped 0" in shown
    assert shown.count("2023-11-1") == 2
    shown = text(Alias(id="a/b@best", name="a/b", alias="best", metric="auc", changed=1.7e9))
    assert "the best by auc" in shown
    assert "2023-11-1" in shown
