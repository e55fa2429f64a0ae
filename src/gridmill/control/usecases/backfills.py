"""This module has the use cases of backfills: start, stop, show."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.steps.pipeline_folders import note_origin
from gridmill.control.steps.run_lifecycle import check_names, resources_used
from gridmill.control.steps.stored_pipelines import active_chunks, chunks_left, chunks_of
from gridmill.control.usecases.base import UseCases
from gridmill.domain.backfill import Backfill, BackfillView, Chunk, ChunkState, ChunkView, spans
from gridmill.domain.due_times import chunk_ids, is_chunk_kept, state_of
from gridmill.domain.frozen import replace
from gridmill.domain.graph import order
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run import Run
from gridmill.errors import ConflictError, InputError, NotFoundError, UnavailableError
from gridmill.ports.pages import PAGE_ITEMS, Page, page_of_views, page_request


class BackfillUseCases(UseCases):
    """The use cases of the backfills of pipelines."""

    def backfills(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[BackfillView]:
        """Return the backfills, by name."""
        request = page_request(tuple, "backfills", limit, cursor)
        with self._node.lock:
            backfills, view = (
                self._ledger.snapshot.backfills.values(),
                partial(backfill_view, self._ledger),
            )
            return page_of_views(request, backfills, lambda one: (one.name,), view)

    def backfill(self, name: str) -> BackfillView:
        """Return one backfill with its chunks."""
        with self._node.lock:
            return backfill_view(self._ledger, self._backfill(name))

    def stop_backfill(self, name: str) -> BackfillView:
        """Stop a backfill, so that it starts no more chunks."""
        with self._node.changing() as transaction:
            transaction.put(replace(self._backfill(name), stopped=True))
        return self.backfill(name)

    def backfill_pipeline(self, backfill: Backfill, values: Mapping[str, str]) -> BackfillView:
        """Start a backfill of a stored pipeline."""
        record = self._ledger.store.get(Pipeline, backfill.name)
        if record is None or not isinstance(record.noun, Pipeline):
            raise NotFoundError(
                f"there is no pipeline {backfill.name!r}",
                hint="`gridmill list pipelines` shows them; `gridmill apply -f FILE` stores one.",
            )
        return self.start_backfill(backfill, chunks_of(record.noun, backfill, values))

    def start_backfill(self, backfill: Backfill, chunks: tuple[Chunk, ...] = ()) -> BackfillView:
        """Start a backfill, or continue a backfill with the same range."""
        if self._control.alarms is None:
            raise UnavailableError(
                "a backfill needs a permanent control node",
                hint="Start a permanent control node: `gridmill up`.",
            )
        for chunk in chunks:
            _check_chunk(backfill, chunk)
        if chunks and tuple((chunk.begins, chunk.ends) for chunk in chunks) != spans(backfill):
            raise InputError("the chunks do not match the range and length of the backfill", place="chunks")
        with self._node.changing() as transaction:
            self._check(chunks)
            for chunk in chunks[:1]:
                note_origin(self._ledger, self._control.storage, transaction, chunk.pipeline, adopt=False)
            self._discard_chunks(transaction, backfill)
            self._put_chunks(transaction, backfill, chunks or self._existing_chunks(backfill))
            transaction.put(replace(backfill, stopped=False))
        return self.backfill(backfill.name)

    def _check(self, chunks: Sequence[Chunk]) -> None:
        """Raise the errors that the start of the first run would raise. Only one chunk is checked, because
        all chunks are made from the same file."""
        for pipeline in [chunk.pipeline for chunk in chunks[:1]]:
            order(pipeline)
            check_names(pipeline)
            resources = {r.name: r for r in (*self._ledger.snapshot.resources.values(), *pipeline.resources)}
            resources_used(self._ledger, pipeline, resources)

    def _discard_chunks(self, transaction: Transaction, backfill: Backfill) -> None:
        """Delete the chunks of another range. Raises ConflictError while the backfill over that range is
        active."""
        before = self._ledger.snapshot.backfills.get(backfill.name)
        if before is None or chunk_ids(before) == chunk_ids(backfill):
            return
        left = chunks_left(self._ledger, before)
        if not before.stopped and (left or active_chunks(self._ledger, before.name)):
            raise ConflictError(
                f"a backfill of {before.name!r} from {before.begins} to {before.ends} is active",
                hint=f"Wait for its end, or `gridmill stop backfill {before.name}`.",
            )
        wanted = chunk_ids(backfill)
        for chunk in (one for one in left if one.id not in wanted):
            transaction.delete(Chunk, chunk.id)

    def _existing_chunks(self, backfill: Backfill) -> tuple[Chunk, ...]:
        all_by_id = all_chunks(self._ledger, backfill.name)
        result = tuple(all_by_id[id] for id in chunk_ids(backfill) if id in all_by_id)
        if not result:
            raise NotFoundError(f"there is no backfill {backfill.name!r} over that range")
        return result

    def _put_chunks(self, transaction: Transaction, backfill: Backfill, chunks: Sequence[Chunk]) -> None:
        """Store the chunks of the range as they are declared now, so that runs are started for them. Chunks
        that are done or running are left out."""
        existing, runs = (
            all_chunks(self._ledger, backfill.name),
            runs_of(self._ledger, backfill.name),
        )
        for chunk in chunks:
            before = existing.get(chunk.id)
            if before is not None and is_chunk_kept(before, runs.get(before.run), force=backfill.force):
                continue
            if before is not None:
                self._ledger.fetch(Chunk, chunk.id)
            transaction.put(replace(chunk, run="", skipped="", failed=""))

    def _backfill(self, name: str) -> Backfill:
        backfill = self._ledger.snapshot.backfills.get(name)
        if backfill is None:
            raise NotFoundError(
                f"there is no backfill {name!r}",
                hint="`gridmill list backfills` shows them; "
                "`gridmill start backfill PIPELINE --from ... --to ... --every ...` makes one.",
            )
        return backfill


def _check_chunk(backfill: Backfill, chunk: Chunk) -> None:
    pipeline: Pipeline = chunk.pipeline
    if pipeline.name != backfill.name:
        raise InputError(f"pipeline {pipeline.name!r} is not {backfill.name!r}", place="chunks")


def backfill_view(ledger: Ledger, backfill: Backfill) -> BackfillView:
    """Return the current state of a backfill, from its runs. If the run of a chunk was resumed, the state of
    the chunk follows from the newest result of this run."""
    chunks, runs = all_chunks(ledger, backfill.name), runs_of(ledger, backfill.name)
    views = tuple(_view(chunks[id], runs) for id in chunk_ids(backfill) if id in chunks)
    return BackfillView(backfill=backfill, chunks=views, counts=dict(Counter(view.state for view in views)))


def all_chunks(ledger: Ledger, name: str) -> Mapping[str, Chunk]:
    """Return all chunks of the backfills of that pipeline, by id."""
    records = ledger.store.list(Chunk, parent=name)
    return {record.noun.id: record.noun for record in records if isinstance(record.noun, Chunk)}


def runs_of(ledger: Ledger, name: str) -> Mapping[str, Run]:
    """Return the runs of that pipeline, by id."""
    records = ledger.store.list(Run, parent=name)
    return {record.noun.id: record.noun for record in records if isinstance(record.noun, Run)}


def _view(chunk: Chunk, runs: Mapping[str, Run]) -> ChunkView:
    run = runs.get(chunk.run)
    state = state_of(chunk, run)
    skipped = chunk.skipped or chunk.failed or (run.message if run is not None else "")
    lost = chunk.run and run is None
    return ChunkView(
        begins=chunk.begins,
        ends=chunk.ends,
        state=state,
        run=chunk.run,
        message="its run is not recorded any more" if lost else "" if state == ChunkState.DONE else skipped,
    )
