"""Which kinds of versions of other pipelines a job may read."""

import pytest

from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.job import CommandSpec, Job, check_kind
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.sink import Constraint, SinkSpec
from gridmill.domain.source import Source
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.errors import InputError

ENSEMBLE = Job(
    name="e", training=TrainingSpec(dataset="w/d", model=ModelKind.ENSEMBLE, models=("w/m@prod", "w/n"))
)
PREDICTION = Job(name="p", prediction=PredictionSpec(dataset="w/d@2", models=("w/m",)))
SINK = Job(
    name="s",
    sink=SinkSpec(source=Source(path="a.csv"), constraints=(Constraint(foreign_key="a", references="w/s"),)),
)
DATASET = Job(name="d", dataset=DatasetSpec(tables=("w/t",), sql="select 1"))


def version(kind: ArtifactKind) -> Artifact:
    return Artifact(id="w/x@1", name="w/x", number=1, output=Output(kind=kind, uri="x"), fingerprint="f")


@pytest.mark.parametrize(
    ("job", "reference", "kinds"),
    [
        (ENSEMBLE, "w/d", {"dataset"}),
        (ENSEMBLE, "w/m@prod", {"model"}),
        (PREDICTION, "w/d@2", {"dataset"}),
        (PREDICTION, "w/m", {"model"}),
        (SINK, "w/s", {"sink"}),
        (DATASET, "w/t", {"sink", "dataset", "prediction"}),
        (Job(name="c", command=CommandSpec(run="x")), "w/x", set(ArtifactKind)),
    ],
)
def test_what_a_field_may_name(job: Job, reference: str, kinds: set[str]) -> None:
    for kind in ArtifactKind:
        if kind in kinds:
            check_kind(job, reference, version(kind))
            continue
        with pytest.raises(InputError, match=f"reads {reference!r} as a .*, but it is a {kind}") as caught:
            check_kind(job, reference, version(kind))
        assert "gridmill list" in caught.value.hint
