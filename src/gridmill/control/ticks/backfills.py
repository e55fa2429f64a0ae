"""This module has the tick that starts the chunks of backfills. A run and the record of its chunk are
written in one commit."""

from math import inf

from gridmill.control.ledger import Transaction
from gridmill.control.state import Control, JobMoves, Problems, RunCreation
from gridmill.control.steps.end_attempt import defect
from gridmill.control.steps.run_forecast import run_forecasts
from gridmill.control.steps.run_lifecycle import as_altered, begin_run
from gridmill.control.steps.stored_pipelines import active_chunks, chunks_left
from gridmill.domain.backfill import Backfill, Chunk
from gridmill.domain.due_times import decide_chunk, outage_over
from gridmill.domain.frozen import replace
from gridmill.errors import GridmillError, StorageError


def keep_backfills(control: Control) -> float:
    """Process one chunk of each backfill that may have another active run. The function returns 0 if there
    may be more chunks to process. If only events can lead to more chunks, the function returns infinity."""
    backfills = list(control.ledger.snapshot.backfills.values())
    if control.alarms is None or not backfills:
        return inf
    creation, moves = control.run_creation, control.job_moves
    return 0.0 if any(_start_next(creation, control.problems, moves, one) for one in backfills) else inf


def _start_next(creation: RunCreation, problems: Problems, moves: JobMoves, backfill: Backfill) -> bool:
    ledger = creation.ledger
    chunk = decide_chunk(backfill, chunks_left(ledger, backfill), active_chunks(ledger, backfill.name))
    if chunk is None:
        return False
    transaction = ledger.begin(moves.timeline.now())
    transaction.put(_with_run(creation, problems, moves, transaction, backfill, chunk))
    ledger.stage(transaction)
    return True


def _with_run(
    creation: RunCreation,
    problems: Problems,
    moves: JobMoves,
    transaction: Transaction,
    backfill: Backfill,
    chunk: Chunk,
) -> Chunk:
    """Return the chunk with its run, which is added to the transaction, or with the reason why no run was
    started."""
    try:
        pipeline = as_altered(creation.ledger, chunk.pipeline)
        if skipped := outage_over(pipeline, chunk.begins, chunk.ends):
            return replace(chunk, skipped=skipped)
        inner = transaction.within()
        forecasts = run_forecasts(moves, pipeline, {}, ())
        run = begin_run(creation, inner, pipeline, force=backfill.force, chunk=chunk.id, forecasts=forecasts)
        transaction.join(inner)
        return replace(chunk, run=run.id)
    except StorageError:  # the store failed, not the pipeline: the next tick tries again
        raise
    except GridmillError as error:
        return replace(chunk, failed=f"{error} {error.hint}".strip())
    except Exception as error:  # noqa: BLE001  a retry would fail again and block every run
        return replace(chunk, failed=str(defect(problems, f"chunk {chunk.id}", error)))
