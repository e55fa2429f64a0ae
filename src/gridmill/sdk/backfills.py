"""The verbs of backfills, and how a pipeline file becomes chunks: `from` and `to` are put in."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gridmill.model.amounts import Months, parse_period
from gridmill.model.backfill import Backfill, BackfillView, Chunk, check_bounds, chunk_values, spans
from gridmill.model.pipeline import Pipeline
from gridmill.sdk.connected import Connected
from gridmill.sdk.project import is_name, read_project, with_bundle, words


class BackfillVerbs(Connected):
    """The verbs of backfills. A backfill has the name of its pipeline."""

    def start_backfill(
        self,
        pipeline: str | Path,
        *,
        begins: str,
        ends: str,
        every: str | float | None = None,
        zone: str = "UTC",
        parallel: int = 1,
        newest_first: bool = False,
        set: Mapping[str, Any] | None = None,
        force: bool = False,
    ) -> BackfillView:
        """Run a pipeline (a file, or a kept one by its name) for each stretch of `every` ("7d", "1mo", or
        seconds; default: the whole range) from `begins` up to `ends` (ISO 8601, without an offset in the time
        zone `zone`), at most `parallel` at once; returns at once. Whole days and months follow the calendar
        of `zone`.

        It declares the parameters `from` and `to`, or uses `${due}`. A kept one is as it was applied last,
        whatever became of its file. Chunks that are done are not run again, unless with `force`; those that
        failed are. Needs `gridmill up`. Raises PipelineError, InputError, ConflictError, NotFoundError,
        UnavailableError.
        """
        declared = None if is_name(pipeline) else _with_bounds(Path(pipeline), set)
        name = str(pipeline) if declared is None else declared.name
        length = None if every is None else parse_period(every)
        backfill = Backfill(
            name=name,
            begins=begins,
            ends=ends,
            every_seconds=None if isinstance(length, Months) else length,
            every_months=int(length) if isinstance(length, Months) else None,
            zone=zone,
            parallel=parallel,
            newest_first=newest_first,
            force=force,
        )
        if declared is None:
            return self._ask(lambda grid: grid.backfill_pipeline(backfill, words(set)))
        made = [_chunk(Path(pipeline), declared, set or {}, span) for span in spans(backfill)]
        first = with_bundle(made[0].pipeline, self.grid, self.settings)
        chunks = tuple(
            replace(
                one, pipeline=replace(one.pipeline, bundle=first.bundle, commit=first.commit, host=first.host)
            )
            for one in made
        )
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
    declared = read_project(file, values, awaiting=True)
    check_bounds(declared, str(file))
    return declared


def _chunk(file: Path, declared: Pipeline, values: Mapping[str, Any], span: tuple[str, str]) -> Chunk:
    begins, ends = span
    pipeline = read_project(file, {**values, **chunk_values(declared, span)})
    return Chunk(pipeline=replace(pipeline, written=None), begins=begins, ends=ends)
