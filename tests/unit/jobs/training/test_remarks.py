"""What is dropped, rejected, excluded, left out or unknown is said wherever a version is shown."""

from pathlib import Path

import numpy as np
import pytest
from tests.kit.clean_process import predict
from tests.kit.learning_data import artifact_of, prediction_context, series, training_context, write_dataset

from gridmill.cli.describe import describe
from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job
from gridmill.domain.remarks import remarks_of
from gridmill.domain.run import JobRun, Run
from gridmill.domain.states import JobState, RunState
from gridmill.domain.views import JobView, RunView, VersionView
from gridmill.jobs.training.run import run as train
from gridmill.report.render import render


def version(kind: ArtifactKind, rows: int = 323, **details: object) -> Artifact:
    output = Output(kind=kind, uri="u", rows=rows, details=details)
    return Artifact(id="p/x@1", name="p/x", number=1, output=output, fingerprint="f")


DROPPED = version(
    ArtifactKind.DATASET, dropped={"no label": 200, "no history": 37}, left_out={"day": "date32"}
)


@pytest.mark.parametrize(
    ("artifact", "lines"),
    [
        (
            DROPPED,
            [
                "warning: p/x@1: 237 of 560 rows dropped (42%): 200 no label, 37 no history",
                "p/x@1: 1 column not used as features: day (date32)",
            ],
        ),
        (
            version(ArtifactKind.DATASET, 9990, dropped={"no label": 10}),
            ["p/x@1: 10 of 10,000 rows dropped (below 1%): 10 no label"],
        ),
        (version(ArtifactKind.DATASET, dropped={}, left_out={}, excluded={}), []),
        (
            version(
                ArtifactKind.DATASET,
                990,
                dropped={"label not known yet": 10},
                events_until={"table": "exits", "newest": "2024-03-01T10:00:00", "declared": None},
            ),
            [
                "p/x@1: 10 of 1,000 rows dropped (1%): 10 label not known yet",
                "p/x@1: labels end with the events of exits: the newest event is at 2024-03-01T10:00:00; "
                "set `known_until` to change this",
            ],
        ),
        (
            version(ArtifactKind.DATASET, excluded={"sales": 12}),
            ["p/x@1: rows excluded by outages: 12 sales"],
        ),
        (
            version(ArtifactKind.SINK, rejects={"rows": 2, "added": 1, "reasons": {"price: missing": 2}}),
            ["p/x@1: 2 rows rejected, 1 by its last load: 2 price: missing"],
        ),
        (
            version(ArtifactKind.SINK, 3, rejects={"rows": 2, "added": 1, "reasons": {"price: missing": 2}}),
            ["warning: p/x@1: 2 rows rejected, 1 by its last load: 2 price: missing"],
        ),
        (
            version(ArtifactKind.SINK, 10, unseen=1),
            ["p/x@1: 1 row not loaded: no value, NaN or infinity in the cursor"],
        ),
        (
            version(ArtifactKind.SINK, 8, unseen=1),
            ["warning: p/x@1: 1 row not loaded: no value, NaN or infinity in the cursor"],
        ),
        (
            version(ArtifactKind.SINK, remarks=["3 values cut to microseconds", ["id is inferred", True]]),
            ["warning: p/x@1: id is inferred", "p/x@1: 3 values cut to microseconds"],
        ),
        (
            version(ArtifactKind.MODEL, unseen_classes={"test": 3}, infinite={"price": 1}),
            [
                "warning: p/x@1: rows of a class that no training row has: 3 test",
                "p/x@1: infinite values taken as missing: 1 price",
            ],
        ),
        (
            version(ArtifactKind.PREDICTION, 100, unknown_rows=20),
            ["warning: p/x@1: 20 of 100 rows (20%) have a category that is not in the training rows"],
        ),
    ],
)
def test_counts_become_sentences(artifact: Artifact, lines: list[str]) -> None:
    assert [remark.line for remark in remarks_of(artifact)] == lines


def test_the_report_and_show_have_them() -> None:
    job_run = JobRun(
        id="p-1.x",
        run_id="p-1",
        pipeline="p",
        order=1,
        resource="r",
        job=Job(name="x", command=CommandSpec(run="true")),
        state=JobState.SUCCEEDED,
    )
    run = Run(id="p-1", pipeline="p", order=1, state=RunState.SUCCEEDED, created=0.0, started=0.0, ended=1.0)
    page = render(RunView(run=run, jobs=(JobView(job=job_run, artifacts=(DROPPED,)),)), ())
    assert "237 of 560 rows dropped (42%)" in page
    assert page.index("Warning:") < page.index('id="data"')
    shown = "".join(str(part) for part in describe(VersionView(artifact=DROPPED)).renderables)
    assert "warning: 237 of 560 rows dropped" in shown


def remarks_about(output: Output) -> set[str]:
    return {remark.text for remark in remarks_of(artifact_of("x", output))}


def test_training_and_prediction_count_what_they_leave_out(tmp_path: Path) -> None:
    columns = dict(series())
    rows = len(columns["split"])
    place = np.where(columns["split"] == "test", "new", "known").astype(object)
    label = np.array(columns["ahead"], float)
    label[np.flatnonzero(columns["split"] == "train")[:7]] = np.nan
    size = np.ones(rows)
    size[:3] = np.inf
    extended = {**columns, "place": place, "size": size, "ahead": label}
    dataset = write_dataset(tmp_path, extended)
    trained = artifact_of(
        "linear", train(training_context(tmp_path, dataset, "linear", name="linear")).outputs[0]
    )
    said = remarks_about(trained.output)
    assert "rows not used because their label is missing: 7 train" in said
    assert "infinite values taken as missing: 3 size" in said
    output = predict(prediction_context(tmp_path, dataset, {"linear": trained})).outputs[0]
    tested = int((columns["split"] == "test").sum())
    unknown = f"{tested} of {tested} rows (100%) have a category that is not in the training rows"
    assert unknown in remarks_about(output)
