"""Pipelines that are known by their names, with the file and the last run of each."""

from typing import Any

from gridmill.cli.words import moment
from gridmill.codec import to_builtins
from gridmill.model.noun import dataclass
from gridmill.model.pipeline import Pipeline
from gridmill.model.run import Run
from gridmill.ports.grid import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A pipeline with its newest run; None where it was applied and never run, or its runs were deleted."""

    pipeline: Pipeline
    last: Run | None

    def fields(self) -> dict[str, Any]:
        """The pipeline as JSON has it, with its file and the id of its last run."""
        path = self.pipeline.path
        more = {"file": None if path is None else str(path), "last_run": self.last and self.last.id}
        return {**to_builtins(self.pipeline), **more}


def last_run(grid: Grid, pipeline: str) -> Run | None:
    """The newest run of a pipeline."""
    return next(iter(grid.runs(limit=1, pipeline=pipeline)), None)


def pipeline_row(known: Known) -> tuple[object, ...]:
    """A pipeline's cells."""
    one, last = known.pipeline, known.last
    ran = "" if last is None else f"{last.id} {last.state}, {moment(last.created)}"
    return (
        one.name,
        len(one.jobs),
        "apply" if one.applied else "its last run",
        ran,
        one.folder if one.path is None else one.path,
        one.description,
    )
