"""Downloads the result and the checkpoints of an attempt from the bucket into the storage root."""

import logging
import shutil
import threading
from collections.abc import Callable

from gridmill.domain.farm_protocol import Manifest
from gridmill.domain.pod_protocol import AttemptOutcome
from gridmill.domain.route import Transfer
from gridmill.domain.states import AttemptState, Cause
from gridmill.domain.storage_uri import below
from gridmill.domain.version_manifest import contents_uri
from gridmill.errors import ConflictError, GridmillError, NotFoundError, UnavailableError
from gridmill.sites.attempt_inputs import counts
from gridmill.sites.batch.attempt_record import BatchAttemptRecord
from gridmill.sites.batch.context import SiteContext
from gridmill.sites.batch.manifest import BatchCheckpoints, checkpoints_object
from gridmill.transfer.contents import list_contents, write_contents
from gridmill.transfer.progress import TransferProgress
from gridmill.transfer.verify import seal

_LOG = logging.getLogger(__name__)
COMING = ".coming"
"""The folder below the storage root in which incomplete downloads are stored."""


class Moving:
    """Shows the progress of a transfer inside a `with` block."""

    def __init__(self, note: Callable[[tuple[str, TransferProgress] | None], None], direction: str) -> None:
        self._note, self._direction = note, direction

    def __enter__(self) -> TransferProgress:
        progress = TransferProgress()
        self._note((self._direction, progress))
        return progress

    def __exit__(self, *_: object) -> None:
        self._note(None)


def download_result(
    context: SiteContext,
    record: BatchAttemptRecord,
    result: Manifest | None,
    outcome: AttemptOutcome,
    progress: TransferProgress,
    stop: threading.Event,
) -> tuple[AttemptOutcome, Transfer]:
    """Downloads the output folder of an attempt, and lists its files with their hashes. Returns the outcome
    of the attempt, which is LOST if the bucket lacks a part of the result. Raises UnavailableError."""
    order = record.order
    if result is None:
        return outcome, Transfer()
    began = context.monotonic()
    drafts = context.root / COMING / f"batch-{context.site.name}" / record.name
    try:
        context.exchange.at(record.chunks).download(
            order.output_uri, result, context.root, drafts, progress=progress, stop=stop
        )
        if order.part is None:
            folder = below(context.root, order.output_uri)
            contents = list_contents(folder)
            write_contents(below(context.root, contents_uri(order.output_uri)), contents)
            seal(folder, contents)
    except NotFoundError as error:
        lost = AttemptOutcome(
            state=AttemptState.LOST,
            cause=Cause.LOST,
            message=f"the results of the attempt are not in the bucket any more: {error}",
        )
        return lost, Transfer()
    except ConflictError as error:
        raise UnavailableError(error.message) from error
    seen = progress.look()
    return outcome, Transfer(
        transferred_bytes=seen.transferred_bytes,
        reused_bytes=seen.present_bytes,
        seconds=context.monotonic() - began,
    )


def keep_checkpoints(context: SiteContext, record: BatchAttemptRecord, *, done: bool) -> None:
    """Download the last checkpoints, or delete the checkpoints of a job that has succeeded."""
    order = record.order
    if not order.checkpoint_uri or not counts(order) or context.parsed.shared_root:
        return
    if done:
        return shutil.rmtree(below(context.root, order.checkpoint_uri), ignore_errors=True)
    found = context.exchange.read(checkpoints_object(order.attempt_id), BatchCheckpoints)
    if found is None:
        return
    drafts = context.root / COMING / f"batch-{context.site.name}" / f"{record.name}-checkpoints"
    try:
        data = context.exchange.at(record.chunks)
        data.download(order.checkpoint_uri, found.manifest, context.root, drafts)
    except UnavailableError:
        raise
    except GridmillError as error:
        _LOG.warning("checkpoints_not_transferred attempt=%s reason=%s", order.attempt_id, error)
