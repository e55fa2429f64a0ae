"""The tick that starts the chunks of backfills. A run and its chunk's record of it are one commit.

It reads stored pipelines again with other parameter values: for the chunks of a backfill, and for due times.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import inf

from gridmill.control.ledger import Transaction
from gridmill.control.state import Control
from gridmill.control.steps.begin import as_altered, begin_run
from gridmill.control.steps.settle import defect
from gridmill.domain.backfill import (
    Backfill,
    BackfillView,
    Chunk,
    ChunkState,
    ChunkView,
    check_bounds,
    chunk_values,
    spans,
)
from gridmill.domain.due_times import chunk_ids, next_chunk, outage_over, state_of
from gridmill.domain.pipeline import Pipeline, Written
from gridmill.domain.run import Run
from gridmill.errors import GridmillError, PipelineError, StorageError
from gridmill.plugins import find


def keep_backfills(control: Control) -> float:
    """Deal with one chunk of each backfill that has room for it; 0 where there may be more to do at once,
    else infinite: only events change that."""
    if control.alarms is None:
        return inf
    backfills = list(control.ledger.snapshot.backfills.values())
    return 0.0 if any(_start_next(control, backfill) for backfill in backfills) else inf


def _start_next(control: Control, backfill: Backfill) -> bool:
    chunk = next_chunk(backfill, chunks_left(control, backfill), active_chunks(control, backfill.name))
    if chunk is None:
        return False
    transaction = control.begin()
    transaction.put(_dealt_with(control, transaction, backfill, chunk))
    control.ledger.commit(transaction)
    return True


def chunks_left(control: Control, backfill: Backfill) -> list[Chunk]:
    """Its chunks for which nothing was done yet."""
    known = control.ledger.snapshot.chunks.values()
    return [chunk for chunk in known if chunk.pipeline.name == backfill.name]


def active_chunks(control: Control, name: str) -> int:
    """How many runs of that pipeline's backfill are active."""
    return sum(run.pipeline == name and run.chunk != "" for run in control.ledger.snapshot.runs.values())


def _dealt_with(control: Control, transaction: Transaction, backfill: Backfill, chunk: Chunk) -> Chunk:
    """The chunk with its run, which is put into the transaction, or with why there is none."""
    try:
        pipeline = as_altered(control, chunk.pipeline)
        skipped = outage_over(pipeline, chunk.begins, chunk.ends)
        if skipped:
            return replace(chunk, skipped=skipped)
        inner = transaction.within()
        run = begin_run(control, inner, pipeline, force=backfill.force, chunk=chunk.id)
        transaction.join(inner)
        return replace(chunk, run=run.id)
    except StorageError:  # the store, not the pipeline: tried again
        raise
    except GridmillError as error:
        return replace(chunk, failed=f"{error} {error.hint}".strip())
    except Exception as error:  # noqa: BLE001  tried again for ever, it would hold up every run
        return replace(chunk, failed=str(defect(control, f"chunk {chunk.id}", error)))


def backfill_view(control: Control, backfill: Backfill) -> BackfillView:
    """A backfill as it stands now, by its runs: one that was resumed counts as it ended then."""
    chunks, runs = known_chunks(control, backfill.name), runs_of(control, backfill.name)
    views = tuple(_view(chunks[id], runs) for id in chunk_ids(backfill) if id in chunks)
    return BackfillView(backfill=backfill, chunks=views, counts=dict(Counter(view.state for view in views)))


def known_chunks(control: Control, name: str) -> Mapping[str, Chunk]:
    """All chunks there ever were of that pipeline, by id."""
    records = control.ledger.store.list(Chunk, parent=name)
    return {record.noun.id: record.noun for record in records if isinstance(record.noun, Chunk)}


def runs_of(control: Control, name: str) -> Mapping[str, Run]:
    """That pipeline's runs by id."""
    records = control.ledger.store.list(Run, parent=name)
    return {record.noun.id: record.noun for record in records if isinstance(record.noun, Run)}


def _view(chunk: Chunk, runs: Mapping[str, Run]) -> ChunkView:
    run = runs.get(chunk.run)
    state = state_of(chunk, run)
    said = chunk.skipped or chunk.failed or (run.message if run is not None else "")
    lost = chunk.run and run is None
    return ChunkView(
        begins=chunk.begins,
        ends=chunk.ends,
        state=state,
        run=chunk.run,
        message="its run is not recorded any more" if lost else "" if state == ChunkState.DONE else said,
    )


def chunks_of(pipeline: Pipeline, backfill: Backfill, values: Mapping[str, str]) -> tuple[Chunk, ...]:
    """The chunks of a backfill of it, oldest first, with `values` for other parameters. Its file is not
    looked at; its code is that of when it was applied.

    Raises PipelineError where the text is not kept or does not take the range, InputError.
    """
    check_bounds(pipeline, _written(pipeline, "a backfill needs").file)
    return tuple(_chunk(pipeline, span, values) for span in spans(backfill))


def _chunk(pipeline: Pipeline, span: tuple[str, str], values: Mapping[str, str]) -> Chunk:
    begins, ends = span
    read = with_values(pipeline, {**values, **chunk_values(pipeline, span)})
    return Chunk(pipeline=replace(read, written=None), begins=begins, ends=ends)


def with_values(pipeline: Pipeline, values: Mapping[str, str]) -> Pipeline:
    """A kept pipeline with these values for its parameters, and its code of then. Raises PipelineError."""
    read_again = find("declarations", "yaml")  # loads YAML, which most nodes never need
    written = _written(pipeline, "other values need")
    read: Pipeline = read_again(written, folder=pipeline.folder, set_values=values)
    return replace(read, bundle=pipeline.bundle, commit=pipeline.commit)


def _written(pipeline: Pipeline, who: str) -> Written:
    if pipeline.written is None:
        raise PipelineError(
            f"pipeline {pipeline.name!r} was kept without the text of its file, which {who}",
            hint="Apply it again (`gridmill apply -f FILE`), or name its file.",
        )
    return pipeline.written
