"""This module parses stored pipelines again with other parameter values, for chunks of backfills and for due
times."""

from collections.abc import Mapping

from gridmill.control.ledger import Ledger
from gridmill.domain.backfill import Backfill, Chunk, check_bounds, chunk_values, spans
from gridmill.domain.frozen import replace
from gridmill.domain.pipeline import Pipeline, PipelineSource
from gridmill.errors import PipelineError
from gridmill.plugins import find


def chunks_of(pipeline: Pipeline, backfill: Backfill, values: Mapping[str, str]) -> tuple[Chunk, ...]:
    """Return the chunks of a backfill of the pipeline, oldest first, with `values` for other parameters. The
    function uses the text and the code with which the pipeline was applied, not the present file.

    Raises PipelineError if the text was not stored or does not use the range, and InputError.
    """
    check_bounds(pipeline, _written(pipeline, "a backfill needs").file)
    return tuple(_chunk(pipeline, span, values) for span in spans(backfill))


def _chunk(pipeline: Pipeline, span: tuple[str, str], values: Mapping[str, str]) -> Chunk:
    begins, ends = span
    read = with_values(pipeline, {**values, **chunk_values(pipeline, span)})
    return Chunk(pipeline=replace(read, written=None), begins=begins, ends=ends)


def with_values(pipeline: Pipeline, values: Mapping[str, str]) -> Pipeline:
    """Return a stored pipeline with these parameter values, and with the code with which it was applied.
    Raises PipelineError."""
    # imported here, because it loads YAML, which most nodes never need
    read_again = find("declarations", "yaml")
    written = _written(pipeline, "other values need")
    read: Pipeline = read_again(written, folder=pipeline.folder, set_values=values)
    return replace(read, bundle=pipeline.bundle, commit=pipeline.commit)


def _written(pipeline: Pipeline, who: str) -> PipelineSource:
    if pipeline.written is None:
        raise PipelineError(
            f"pipeline {pipeline.name!r} was stored without the text of its file, which {who}",
            hint="Apply the file again (`gridmill apply -f FILE`), or name the file in the command.",
        )
    return pipeline.written


def chunks_left(ledger: Ledger, backfill: Backfill) -> list[Chunk]:
    """Return the chunks that have no run yet."""
    chunks = ledger.snapshot.chunks.values()
    return [chunk for chunk in chunks if chunk.pipeline.name == backfill.name]


def active_chunks(ledger: Ledger, name: str) -> int:
    """Return the number of active runs of that pipeline's backfill."""
    return sum(run.pipeline == name and run.chunk != "" for run in ledger.snapshot.runs.values())
