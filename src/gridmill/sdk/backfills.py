"""The verbs of backfills, and how a pipeline file becomes chunks: `from` and `to` are put in."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gridmill.errors import PipelineError
from gridmill.model.amounts import parse_seconds
from gridmill.model.backfill import Backfill, BackfillView, Chunk
from gridmill.model.pipeline import Pipeline
from gridmill.planning.backfills import spans
from gridmill.sdk.connected import Connected
from gridmill.sdk.project import read_project, with_bundle

BOUNDS = ("from", "to")
"""The parameters that a chunk gives."""


class BackfillVerbs(Connected):
    """The verbs of backfills. A backfill has the name of its pipeline."""

    def start_backfill(
        self,
        file: str | Path,
        *,
        begins: str,
        ends: str,
        every: str | float,
        parallel: int = 1,
        newest_first: bool = False,
        set: Mapping[str, Any] | None = None,
        force: bool = False,
    ) -> BackfillView:
        """Run the pipeline for each stretch of `every` ("7d", or seconds) from `begins` up to `ends` (ISO
        8601, UTC without a zone), at most `parallel` at once; returns at once.

        The file declares the parameters `from` and `to`. Chunks that are done are not run again, unless
        with `force`; those that failed are. Needs `gridmill up`.
        Raises PipelineError, InputError, ConflictError, UnavailableError.
        """
        declared = _with_bounds(Path(file), set)
        backfill = Backfill(
            name=declared.name,
            begins=begins,
            ends=ends,
            every_seconds=parse_seconds(every),
            parallel=parallel,
            newest_first=newest_first,
            force=force,
        )
        made = [_chunk(Path(file), set or {}, span) for span in spans(backfill)]
        bundle = with_bundle(made[0].pipeline, self.grid, self.settings).bundle
        chunks = tuple(replace(one, pipeline=replace(one.pipeline, bundle=bundle)) for one in made)
        return self._ask(lambda grid: grid.start_backfill(backfill, chunks))

    def resume_backfill(self, name: str) -> BackfillView:
        """Let a stopped one go on, and try again what failed, as the pipeline was declared when it was
        started last."""
        return self._ask(lambda grid: grid.start_backfill(replace(grid.backfill(name).backfill, force=False)))

    def stop_backfill(self, name: str) -> BackfillView:
        """Start no further chunk; runs that are active go on."""
        return self._ask(lambda grid: grid.stop_backfill(name))

    def list_backfills(self) -> tuple[BackfillView, ...]:
        """Backfills, by name."""
        return self.grid.backfills()


def _with_bounds(file: Path, values: Mapping[str, Any] | None) -> Pipeline:
    """What the file declares. Raises PipelineError where it does not take a range."""
    declared = read_project(file, values)
    missing = [f"`{name}`" for name in BOUNDS if name not in declared.parameters]
    if missing:
        raise PipelineError(
            f"declares no parameter {' and no '.join(missing)}, which a backfill gives to each run",
            place=f"{file}: parameters",
            hint="For example parameters: {from: 2013-01-01, to: 2013-01-08}, and ${from} where it is used.",
        )
    return declared


def _chunk(file: Path, values: Mapping[str, Any], span: tuple[str, str]) -> Chunk:
    begins, ends = span
    pipeline = read_project(file, {**values, "from": begins, "to": ends})
    return Chunk(pipeline=pipeline, begins=begins, ends=ends)
