"""`plan` carries the growth of a source through the pipeline: what it says is what the run then does."""

from test_races import finish, service, simulation

from gridmill.domain.artifact import ArtifactKind, Column, Output
from gridmill.domain.dataset import Basis, DatasetSpec, Label
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import Source
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.ports.storage import FileStat
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import NoStorage

COLUMNS = tuple(Column(name=f"x{number}", type="double") for number in range(10))
JOBS = (
    Job(name="sales", sink=SinkSpec(source=Source(path="data/*.csv"))),
    Job(
        name="rows",
        dataset=DatasetSpec(basis=Basis(table="sales", time="x0"), label=Label(column="x1", next_rows=1)),
    ),
    Job(name="model", training=TrainingSpec(dataset="rows", model=ModelKind.GBDT)),
    Job(name="guess", prediction=PredictionSpec(dataset="rows", models=("model",))),
)
PIPELINE = Pipeline(name="p", jobs=JOBS, folder="/p", bundle="1")
_KINDS = {
    "sales": ArtifactKind.SINK,
    "rows": ArtifactKind.DATASET,
    "model": ArtifactKind.MODEL,
    "guess": ArtifactKind.PREDICTION,
}


class Disk(NoStorage):
    """A source of so many bytes."""

    size_bytes = 100_000

    def describe_source(self, source: Source, folder: str) -> tuple[FileStat, ...]:
        return (
            FileStat(
                path="/p/1.csv",
                name="1.csv",
                size_bytes=self.size_bytes,
                mtime_ns=1,
                content=f"{self.size_bytes}",
            ),
        )


def grown(disk: Disk):
    """Each job leaves a row for ten bytes of the source, and uses memory for each."""

    def behave(order) -> Behaviour:
        rows = disk.size_bytes // 10
        made = Output(
            kind=_KINDS[order.job.name],
            uri=order.output_uri,
            rows=rows,
            size_bytes=rows * 40,
            columns=COLUMNS,
        )
        return Behaviour(seconds=1.0, outputs=(made,), peak_memory_bytes=rows * 10_000)

    return behave


def test_growth_of_a_source_is_carried_to_every_job():
    disk = Disk()
    grid = simulation(grown(disk))
    grid.storage = grid.node.control.storage = grid.node.control.code.storage = disk
    finish(grid, grid.submit(PIPELINE))
    before = service(grid).plan_run(PIPELINE)
    assert all(job.unchanged for job in before.jobs)
    disk.size_bytes *= 50
    planned = {job.job: job for job in service(grid).plan_run(PIPELINE).jobs}
    run = finish(grid, grid.submit(PIPELINE))
    given = {job.job.job.name: job.attempts[-1].given for job in service(grid).run(run.id).jobs}
    for name, job in planned.items():
        assert job.sizing.amounts.memory_bytes == given[name].memory_bytes, name
    small = {job.job: job.sizing.amounts.memory_bytes for job in before.jobs}
    assert planned["model"].sizing.amounts.memory_bytes > 1.5 * small["model"]
