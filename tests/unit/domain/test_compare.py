"""Models side by side: which ones, what is told of them, and how it reads."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console, Group

from gridmill.cli.artifacts import _comparison_text
from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.comparison import check_models, references_of, side_by_side
from gridmill.domain.views import VersionView
from gridmill.errors import InputError


def model(number: int, metrics: dict[str, float], name: str = "w/m", **details: object) -> Artifact:
    known = {"dataset": "w/data@1", "labels": ["y"], "packages": {"gridmill": "0.1.0"}} | details
    made = Output(kind=ArtifactKind.MODEL, uri="m", metrics=metrics, details=known, size_bytes=2048)
    return Artifact(id=f"{name}@{number}", name=name, number=number, output=made, fingerprint="f")


def views(*models: Artifact) -> list[VersionView]:
    return [VersionView(artifact=one, names=("latest",) if one is models[-1] else ()) for one in models]


def test_what_is_named() -> None:
    assert references_of("w/m", ("1", "@2", "prod")) == ("w/m@1", "w/m@2", "w/m@prod")
    assert references_of("w/m", ("v/other@3",)) == ("w/m", "v/other@3")
    assert references_of("w/m@2", ("3", "v/other")) == ("w/m@2", "w/m@3", "v/other")
    assert references_of("w/m", ("3", "v/other")) == ("w/m@3", "v/other")


def test_the_best_of_each_metric_by_its_own_direction() -> None:
    one = model(1, {"test_auc": 0.8, "test_rmse": 1.0, "test_r2": 0.5, "score": 1.0, "mine": float("nan")})
    two = model(2, {"test_auc": 0.9, "test_rmse": 2.0, "test_r2": 0.5, "score": 3.0, "mine": 4.0, "own": 1.0})
    found = {metric.name: metric for metric in side_by_side(views(one, two), {}).metrics}
    assert found["test_auc"].best == ("w/m@2",)
    assert found["test_rmse"].best == ("w/m@1",)
    assert found["score"].best == ("w/m@1",)
    assert [found[name].best for name in ("test_r2", "mine", "own")] == [(), (), ()]
    assert found["own"].values == (None, 1.0)
    told = side_by_side(views(one, two), {}, "max:score").metrics
    assert next(metric.best for metric in told if metric.name == "score") == ("w/m@2",)


def test_equal_ones_share_the_best_place() -> None:
    three = [model(n, {"rmse": value}) for n, value in ((1, 1.0), (2, 2.0), (3, 1.0))]
    assert side_by_side(views(*three), {}).metrics[0].best == ("w/m@1", "w/m@3")


def test_settings_that_differ_are_told_and_the_others_apart() -> None:
    one = model(1, {}, options={"trees": 10, "rate": 0.1}, seed=0)
    two = model(2, {}, options={"trees": 20, "rate": 0.1}, seed=0, sequence=3)
    found = side_by_side(views(one, two), {"w/m@1": 1.5})
    assert {setting.name: setting.values for setting in found.settings} == {
        "trees": (10, 20),
        "sequence": (None, 3),
    }
    assert (found.same["rate"], found.same["seed"]) == (0.1, 0)
    assert [one.seconds for one in found.models] == [1.5, None]
    assert found.warnings == ()


def test_metrics_of_different_data_are_warned_of() -> None:
    one, two = model(1, {}), model(2, {}, dataset="w/data@2", labels=["z"])
    found = side_by_side(views(one, two), {})
    assert found.warnings == (
        "the models were trained on w/data@1, w/data@2; no model is marked as the best, because the models "
        "were not measured on the same rows",
        "the models predict different labels: ['y']; ['z']",
    )


def test_a_best_is_marked_only_among_models_measured_on_the_same_rows() -> None:
    metrics = {"validation_rmse": 1.0, "test_rmse": 1.0}
    rows = {"validation": "a", "test": "b"}
    one = model(1, metrics, measured_on=rows)
    two = model(2, dict.fromkeys(metrics, 2.0), dataset="w/data@2", measured_on=rows | {"test": "c"})
    found = side_by_side(views(one, two), {})
    assert [metric.best for metric in found.metrics] == [("w/m@1",), ()]
    assert found.warnings == (
        "the models were trained on w/data@1, w/data@2; the validation rows of the models are the same",
    )
    other = model(3, dict.fromkeys(metrics, 0.5), measured_on=rows, predicts="y: x, 1d later")
    assert [metric.best for metric in side_by_side(views(one, other), {}).metrics] == [(), ()]


def test_what_cannot_be_compared_is_refused() -> None:
    one = model(1, {})
    table = replace(one, id="w/t@1", output=replace(one.output, kind=ArtifactKind.DATASET))
    with pytest.raises(InputError, match="w/t@1 is not a model: its kind is dataset"):
        check_models((one, table), "w/m")
    with pytest.raises(InputError, match="there is only w/m@1 to compare"):
        check_models((one,), "w/m")
    with pytest.raises(InputError, match="all of these are w/m@1"):
        check_models((one, one), "w/m")


def test_it_reads_as_a_table() -> None:
    features = [f"f{n}" for n in range(50)]
    one = model(1, {"validation_rmse": 1.5, "rows_per_second": 3.0}, features=features)
    two = model(2, {"validation_rmse": 1.25}, features=[*features, "extra"], dataset="w/data@2")
    out = StringIO()
    Console(file=out, width=150).print(
        Group(*_comparison_text(side_by_side(views(one, two), {"w/m@2": 61.0})))
    )
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    for line in (
        "@1 @2",
        "named latest",
        "dataset w/data@1 w/data@2",
        "code Gridmill 0.1.0 Gridmill 0.1.0",
        "took 1 m 01 s",
        "size 2 KiB 2 KiB",
        "validation rmse 1.5 1.25",
        "rows_per_second 3",
        "features 50 in total 51 in total, with extra",
    ):
        assert line in lines, "\n".join(lines)
