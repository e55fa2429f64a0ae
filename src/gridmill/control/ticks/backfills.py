"""This module has the tick that starts the chunks of backfills. A run and the record of its chunk are
written in one commit."""

from math import inf

from gridmill.control.ledger import Transaction
from gridmill.control.state import Control
from gridmill.control.steps.end_attempt import defect
from gridmill.control.steps.run_lifecycle import as_altered, begin_run
from gridmill.control.steps.stored_pipelines import active_chunks, chunks_left
from gridmill.domain.backfill import Backfill, Chunk
from gridmill.domain.due_times import next_chunk, outage_over
from gridmill.domain.frozen import replace
from gridmill.errors import GridmillError, StorageError


def keep_backfills(control: Control) -> float:
    """Process one chunk of each backfill that may have another active run. The function returns 0 if there
    may be more chunks to process. If only events can lead to more chunks, the function returns infinity."""
    if control.alarms is None:
        return inf
    backfills = list(control.ledger.snapshot.backfills.values())
    return 0.0 if any(_start_next(control, backfill) for backfill in backfills) else inf


def _start_next(control: Control, backfill: Backfill) -> bool:
    chunk = next_chunk(
        backfill, chunks_left(control.ledger, backfill), active_chunks(control.ledger, backfill.name)
    )
    if chunk is None:
        return False
    transaction = control.ledger.begin(control.timeline.now())
    transaction.put(_dealt_with(control, transaction, backfill, chunk))
    control.ledger.stage(transaction)
    return True


def _dealt_with(control: Control, transaction: Transaction, backfill: Backfill, chunk: Chunk) -> Chunk:
    """Return the chunk with its run, which is added to the transaction, or with the reason why no run was
    started."""
    try:
        pipeline = as_altered(control.ledger, chunk.pipeline)
        skipped = outage_over(pipeline, chunk.begins, chunk.ends)
        if skipped:
            return replace(chunk, skipped=skipped)
        inner = transaction.within()
        run = begin_run(control, inner, pipeline, force=backfill.force, chunk=chunk.id)
        transaction.join(inner)
        return replace(chunk, run=run.id)
    except StorageError:  # the store failed, not the pipeline: the next tick tries again
        raise
    except GridmillError as error:
        return replace(chunk, failed=f"{error} {error.hint}".strip())
    except Exception as error:  # noqa: BLE001  a retry would fail again and block every run
        return replace(chunk, failed=str(defect(control.problems, f"chunk {chunk.id}", error)))
