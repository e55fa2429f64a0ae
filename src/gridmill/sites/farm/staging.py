"""Uploads the inputs of attempts to a farm and downloads their outputs to the home."""

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock

from gridmill.codec import from_builtins
from gridmill.domain.farm_protocol import Manifest, PlaceTree
from gridmill.domain.pod_protocol import (
    AttemptOrder,
    AttemptOutcome,
    Events,
    EventType,
    PodEvent,
    ServiceUpdate,
)
from gridmill.domain.route import AttemptTransfers, Staging, Transfer
from gridmill.domain.service_features import ViewOrder, ViewOrders
from gridmill.domain.serving import ServiceOrder
from gridmill.domain.states import AttemptState
from gridmill.domain.storage_uri import below
from gridmill.domain.version_manifest import contents_uri
from gridmill.errors import (
    AwayError,
    ConflictError,
    DataError,
    GridmillError,
    InterruptedRunError,
    NotFoundError,
    UnavailableError,
    explained,
    to_body,
)
from gridmill.sites.attempt_inputs import (
    BUNDLES,
    InputTree,
    InputTrees,
    KnownFolders,
    counts,
    farm_checkpoint_uri,
    farm_input,
    read_by,
    read_sent,
)
from gridmill.sites.farm.attempt_notes import (
    AttemptLog,
    AttemptNote,
    ended,
    lost_note,
    not_started,
    with_transfers,
)
from gridmill.sites.farm.carrier_choice import BucketEndpoints
from gridmill.sites.farm.checkpoints import CheckpointDownloads
from gridmill.sites.farm.cleanup import FarmCleanup
from gridmill.sites.farm.client import FarmClient
from gridmill.sites.farm.download import ResultDownload
from gridmill.sites.farm.early_inputs import EarlyInputs
from gridmill.sites.farm.errors import FarmStorageError
from gridmill.sites.farm.logged_rows import LoggedRows, with_log
from gridmill.sites.farm.result_export import MachineExports
from gridmill.sites.farm.service_orders import check_serves, order_at_farm, sent_files_uri, view_at_farm
from gridmill.transfer.contents import list_contents, write_contents
from gridmill.transfer.engine import ChunkEndpoint, TransferLimits, push
from gridmill.transfer.errors import TransferRefusedError
from gridmill.transfer.in_flight import ChunksInFlight
from gridmill.transfer.link_priority import LinkPriority
from gridmill.transfer.paths import chunk_sizes
from gridmill.transfer.progress import TransferProgress, TransferState
from gridmill.transfer.verify import check_order, seal

_LOG = logging.getLogger(__name__)


_TIMES = 3
_TROUBLE_SECONDS, _REFUSED_SECONDS = 600.0, 86_400.0
_PATIENCE_SECONDS = 5.0
"""The timeout of one request in seconds. Callers repeat the request while the connection to the farm is
being opened."""


class HomeAttemptData:
    """Transfers the data of attempts between the storage root of this home and a farm. This class is safe to
    call from several threads."""

    def __init__(
        self,
        farm: FarmClient,
        root: Path,
        bundles: Path,
        notes: Path,
        limit_bytes_per_second: float | None = None,
        carriers: BucketEndpoints | None = None,
        exports: MachineExports | None = None,
        trouble_seconds: float = _TROUBLE_SECONDS,
        refused_seconds: float = _REFUSED_SECONDS,
    ) -> None:
        """`notes` is the folder for records that are needed after a restart. If `carriers` is not given, all
        data is transferred over the connection to the farm. If `exports` is given, the farm may upload the
        results of attempts to a bucket while this home is away.

        If a disk at the farm fails, the transfer is retried for `trouble_seconds`. If a bucket refuses
        access, the transfer is retried for `refused_seconds`, because a person must correct a key or a
        clock.
        """
        self._bucket_endpoints, self.exports = carriers, exports
        self._farm, self._home_root = farm, root
        self._noted, self._known = AttemptLog(notes / "attempts"), KnownFolders(notes / "hashes")
        self._terms = TransferLimits(
            patience_seconds=_PATIENCE_SECONDS, limit_bytes_per_second=limit_bytes_per_second
        )
        self.limit_bytes_per_second = limit_bytes_per_second
        self._downloads = ResultDownload(
            farm, root, notes.parent.name, self._known, self._endpoint, self._terms
        )
        self.trees = InputTrees(root, bundles, self._known)
        self._root = ""
        self._progress: dict[str, tuple[str, TransferProgress]] = {}
        self._stops: dict[str, Event] = {}
        self._back: dict[str, Transfer] = {}
        self._problem_since: dict[str, tuple[bool, float]] = {}
        self._trouble_seconds, self._refused_seconds = trouble_seconds, refused_seconds
        self._left: set[str] = set()
        self._held_up: dict[str, str] = {}
        self._closed = Event()
        self._locks: dict[str, Lock] = {}
        self._guard = Lock()
        self._in_flight = ChunksInFlight()
        self._link = LinkPriority()
        self.early = EarlyInputs(farm, self.trees, self._link, self._endpoint, self._terms)
        self.logs = LoggedRows(farm, root, self._noted, self._fetch_logs, self._lock_of)
        self.checkpoints = CheckpointDownloads(
            farm, root, self._noted, self._known, self._fetch_checkpoints, self._lock_of, self.logs.take_last
        )
        self.cleanup = FarmCleanup(farm, self._noted, self._lock_of)

    def note(self, order: AttemptOrder, pod_id: str = "") -> None:
        """See AttemptData."""
        mine, before = counts(order), self._noted.find(order.attempt_id)
        note = AttemptNote(
            token=order.token,
            output_uri=order.output_uri if mine else "",
            checkpoint_uri=order.checkpoint_uri if mine else "",
            farm_checkpoints=farm_checkpoint_uri(order) if mine else "",
            part=order.part is not None,
            upload=before.upload if before is not None else Transfer(),
            early=before.early if before is not None else Transfer(),
            carried=before.carried if before is not None else "",
            staging=order.staging,
            pod_id=pod_id,
            alike=tuple(entry.artifact.output.uri for entry in order.earlier if entry.artifact.output.uri),
            log_uri=before.log_uri if before is not None else "",
            log_writer=before.log_writer if before is not None else "",
        )
        if order.service is not None:
            note = with_log(note, order.service, self._home_root)
        self._noted.write(order.attempt_id, note)
        stop = self._stops.get(order.attempt_id)
        # a set event is from an earlier session of this process, and would stop this attempt at once
        if stop is None or stop.is_set():
            self._stops[order.attempt_id] = Event()

    def refuse(self, attempt_id: str, why: GridmillError) -> None:
        """See AttemptData."""
        note = self._noted.find(attempt_id)
        if note is not None:
            self._noted.write(attempt_id, replace(note, refusal=to_body(why)))

    def upload_inputs(self, order: AttemptOrder) -> AttemptOrder:
        """See AttemptData. A second call for the same attempt waits for the first call, and then has no data
        left to transfer."""
        with (
            self._lock_of(order.attempt_id),
            self._telling(order.attempt_id, _by("to", order.staging)) as progress,
        ):
            self._refuse_ended(order.attempt_id)
            self._count_early(order.attempt_id)
            if order.service is not None:
                check_serves(self._farm.status(), order.service)
            order = check_order(order, self._home_root, _LOG.info)
            try:
                if order.checkpoint_uri and counts(order):
                    self.checkpoints.take_over(order.checkpoint_uri, order.attempt_id)
                self.cleanup.first(read_by(order))
                with self._bearing(order.attempt_id, results=False):
                    for tree in self.trees.of(order):
                        self._transfer(tree, order.attempt_id, order.staging, progress)
                    note = self._noted.find(order.attempt_id)
                    views = self._send_views(order.views, order.attempt_id, note, progress)
            finally:
                self._record_transfer(order.attempt_id, progress.look(), progress.spent_seconds)
            self.checkpoints.carried(order.attempt_id)
        self.early.release(order.attempt_id)
        if self.exports is not None:
            self.exports.starts(order, self._pod_of(order.attempt_id))
        farm_root = self._farm_root()
        bundle = f"{farm_root}/{BUNDLES}/{order.bundle}.tar.gz" if order.bundle_path else ""
        return replace(
            order,
            root=farm_root,
            bundle_path=bundle,
            checkpoint_uri=farm_checkpoint_uri(order),
            inputs=tuple(map(farm_input, order.inputs)),
            earlier=tuple(map(farm_input, order.earlier if order.job.dataset is not None else ())),
            contents_uri="",  # the home lists the results itself, after they arrived
            service=order.service and self._service_at_farm(order.service, order.output_uri),
            views=views,
        )

    def upload_service(self, update: ServiceUpdate) -> ServiceUpdate:
        """See AttemptData."""
        attempt_id, note = update.attempt_id, self._noted.find(update.attempt_id)
        if note is None:
            raise InterruptedRunError(f"{attempt_id} was never started here")
        try:
            with self._lock_of(attempt_id), self._telling(attempt_id, _by("to", note.staging)) as progress:
                self._refuse_ended(attempt_id)
                note = self.logs.begin(attempt_id, update.order)
                with self._bearing(attempt_id, results=False):
                    for tree in self.trees.of_service(update.order):
                        self._transfer(tree, attempt_id, note.staging, progress)
                    views = self._send_views(update.views, attempt_id, note, progress)
        except (AwayError, InterruptedRunError):
            raise
        except GridmillError as error:
            # the service goes on, so that only this message shows why the update is not in effect
            self._held_up[attempt_id] = f"the update was not transferred to the site: {explained(error)}"
            raise
        return replace(update, order=self._service_at_farm(update.order, note.output_uri), views=views)

    def _send_views(
        self, orders: ViewOrders | None, attempt_id: str, note: AttemptNote | None, progress: TransferProgress
    ) -> ViewOrders | None:
        """Transfers the files of the views of a service, as far as the home has complete views, and returns
        the orders that the pod at the farm needs. Their time is the present time, so that the pod learns how
        its clock differs."""
        if orders is None or note is None:
            return None
        views: list[ViewOrder] = []
        for one in orders.views:
            sent = read_sent(Path(one.folder))
            uri = sent_files_uri(self._home_root, one.folder, attempt_id)
            if sent is not None and sent.files():
                tree = self.trees.of_view(Path(one.folder), sent, uri)
                self._transfer(tree, attempt_id, note.staging, progress)
            views.append(view_at_farm(one, self._home_root, self._farm_root(), note.output_uri, sent, uri))
        return replace(orders, views=tuple(views), sent_at=time.time())

    def _service_at_farm(self, order: ServiceOrder, output_uri: str) -> ServiceOrder:
        return order_at_farm(order, self._home_root, self._farm_root(), output_uri)

    def _refuse_ended(self, attempt_id: str) -> None:
        """Raises an error if the attempt has ended, because space that the attempt reserves at the farm now
        would never be released."""
        note = self._noted.find(attempt_id)
        if note is not None and not note.is_open:
            raise InterruptedRunError(f"{attempt_id} has ended")

    def _pod_of(self, attempt_id: str) -> str:
        note = self._noted.find(attempt_id)
        return "" if note is None else note.pod_id

    def _count_early(self, attempt_id: str) -> None:
        """Ends the early transfer of the attempt's inputs, and notes how many bytes it sent."""
        early, note = self.early.started(attempt_id), self._noted.find(attempt_id)
        if note is not None and early.transferred_bytes:
            self._noted.write(attempt_id, replace(note, early=note.early + early))

    def _record_transfer(self, attempt_id: str, seen: TransferState, seconds: float) -> None:
        """Records how many bytes were transferred. A retry finds these bytes at the farm and does not count
        them again."""
        note = self._noted.find(attempt_id)
        if note is None:
            return
        carried = note.upload.transferred_bytes + seen.transferred_bytes
        transfer = Transfer(
            transferred_bytes=carried,
            reused_bytes=max(0, seen.total_bytes - carried - note.early.transferred_bytes),
            seconds=note.upload.seconds + seconds,
        )
        self._noted.write(attempt_id, replace(note, upload=transfer))

    def _lock_of(self, attempt_id: str) -> Lock:
        with self._guard:
            return self._locks.setdefault(attempt_id, Lock())

    @contextmanager
    def _telling(self, attempt_id: str, direction: str) -> Iterator[TransferProgress]:
        """Shows the progress of the transfer inside the `with` block, and the reason if the transfer cannot
        continue. If the farm cannot be reached, the site reports this problem.

        Raises UnavailableError if `close` interrupted the transfer.
        """
        progress = TransferProgress()
        self._progress[attempt_id] = direction, progress
        try:
            with self._link.first():
                yield progress
        except AwayError:
            raise
        except InterruptedRunError as error:
            if self._closed.is_set():
                raise UnavailableError("the site is closed and starts no more transfers") from error
            raise
        except UnavailableError as error:
            self._held_up[attempt_id] = f"the transfer of data of {attempt_id} waits: {explained(error)}"
            raise
        else:
            self._held_up.pop(attempt_id, None)
        finally:
            self._progress.pop(attempt_id, None)

    def held_up(self) -> dict[str, str]:
        """Returns the reasons why data of attempts cannot be transferred now, by attempt."""
        return self.logs.problems() | self._held_up

    def progress(self, attempt_id: str) -> tuple[str, TransferState] | None:
        """Returns the direction and the progress of the attempt's transfer, or None if there is no transfer.
        The direction is `to` or `through a bucket to` for uploads to the farm, and `from` for downloads."""
        progress_of_attempt = self._progress.get(attempt_id)
        return (
            (progress_of_attempt[0], progress_of_attempt[1].look())
            if progress_of_attempt is not None
            else None
        )

    def _farm_root(self) -> str:
        if not self._root:
            self._root = self._farm.status().root
        return self._root

    def _transfer(
        self, tree: InputTree, attempt_id: str, staging: Staging, progress: TransferProgress
    ) -> None:
        """Sends chunks until the farm has all of them, because the farm may evict a chunk after it reported
        that it has the chunk. If another attempt is already sending a chunk, this function waits for that
        chunk."""
        place = PlaceTree(uri=tree.uri, manifest=tree.manifest, attempt_id=attempt_id, writable=tree.writable)
        sizes, tried = chunk_sizes(tree.manifest), 0
        stop = self._stops.get(attempt_id, self._closed)
        # chunks that existed at the farm or that this attempt sent, so that no retry counts them again
        counted = set[str]()
        while tried < _TIMES:
            told = self._farm.place(place)
            lacking = sizes.keys() & told
            there_bytes = sum(sizes[chunk] for chunk in sizes.keys() - lacking - counted)
            progress.expect(there_bytes, there_bytes)
            counted |= sizes.keys() - lacking
            if not told:
                return
            with self._in_flight.taken(lacking) as mine:
                if mine or not lacking:
                    tried += 1
                    counted |= mine
                    carrier = self._endpoint(staging, tree.manifest)
                    with progress.travelling():
                        push(
                            tree.manifest,
                            tree.path,
                            carrier,
                            progress=progress,
                            terms=self._terms,
                            stop=stop,
                            # None, because an empty set means here that all chunks are sent
                            only=mine or None,
                        )
            self._in_flight.wait(lacking - mine, stop)
        raise UnavailableError(
            f"the farm deleted chunks of {tree.uri} while they were sent",
            hint="The quota of this tenant at the farm may be too small.",
        )

    def _endpoint(self, staging: Staging, manifest: Manifest) -> ChunkEndpoint:
        return (
            self._bucket_endpoints.endpoint(staging, chunk_sizes(manifest))
            if self._bucket_endpoints is not None
            else self._farm
        )

    def tidy_buckets(self) -> None:
        """Starts deleting the objects that earlier processes of this home left in buckets."""
        if self._bucket_endpoints is not None:
            self._bucket_endpoints.start()

    def clear_buckets(self) -> None:
        """Deletes the objects of this site in buckets after the site was removed."""
        if self._bucket_endpoints is not None:
            self._bucket_endpoints.clear()

    def close(self) -> None:
        """Stops all transfers. Chunks that have arrived are kept. May be repeated."""
        self._closed.set()
        for stop in tuple(self._stops.values()):
            stop.set()
        self.early.close()
        self.checkpoints.close()
        self.logs.close()
        self.cleanup.close()
        if self._bucket_endpoints is not None:
            self._bucket_endpoints.close()

    # --- transfers to the home

    def download_results(self, events: Events) -> Events:
        """See AttemptData."""
        return Events(events=tuple(map(self._brought, events.events)))

    def _brought(self, event: PodEvent) -> PodEvent:
        if event.type != EventType.ENDED:
            return event
        note = self._noted.find(event.attempt_id)
        if note is None:
            return lost_note(event) if self._noted.is_damaged(event.attempt_id) else event
        self.checkpoints.hurry(event.attempt_id)
        direction = _by("from", note.staging)
        with self._lock_of(event.attempt_id), self._telling(event.attempt_id, direction) as progress:
            note = self._noted.find(event.attempt_id)
            if note is None:
                return event
            if not event.token:  # an event without a token means that the pod never got the attempt
                event = not_started(event, note)
            elif note.end_event is not None:
                return replace(event, body=note.end_event)
            else:
                self._take_last_log(event.attempt_id, note)
                event = self._with_results(event, note, progress)
                event = with_transfers(event, self._attempt_transfers(event.attempt_id, note))
            # the farm keeps files that were not transferred for a time
            is_there = event.attempt_id not in self._left
            if self.exports is not None:
                self.exports.came_home(event)
            self._noted.write(event.attempt_id, replace(note, end_event=event.body, is_there=is_there))
            self._stops.pop(event.attempt_id, None)
            self._problem_since.pop(event.attempt_id, None)
            self.logs.end(event.attempt_id)
        self.cleanup.soon()
        return event

    def _take_last_log(self, attempt_id: str, note: AttemptNote) -> None:
        """Takes the rest of the request log of an ended attempt. If this cannot be done in a limited time,
        for example because the disk of this home is full, the farm keeps it for a time. Raises
        UnavailableError if the call should be repeated."""
        try:
            with self._bearing(attempt_id):
                self.logs.take_last(attempt_id, note)
        except InterruptedRunError:
            raise
        except GridmillError as error:
            if self.logs.is_to_repeat(attempt_id, error, self._trouble_seconds):
                raise
            _LOG.warning("request_log_not_transferred attempt=%s reason=%s", attempt_id, error)
            self._left.add(attempt_id)

    def confirm(self, attempt_id: str) -> None:
        """See AttemptData."""
        if self.exports is not None:
            self.exports.settle(attempt_id)

    def _attempt_transfers(self, attempt_id: str, note: AttemptNote) -> AttemptTransfers:
        back = self._back.pop(attempt_id, Transfer())
        trip = self._farm.round_trip_seconds
        return AttemptTransfers(
            upload=note.upload,
            download=back,
            staging=note.staging,
            round_trip_seconds=trip,
            early=note.early,
        )

    def _with_results(self, event: PodEvent, note: AttemptNote, progress: TransferProgress) -> PodEvent:
        """Downloads the results of an ended attempt. Raises UnavailableError if the call should be repeated.
        If the results can never be transferred, the returned event reports that the attempt failed."""
        outcome = from_builtins(event.body["outcome"], AttemptOutcome)
        done = outcome.state == AttemptState.SUCCEEDED
        must = note.part or any(output.uri for output in outcome.outputs)
        try:
            if done and note.output_uri:
                with self._bearing(event.attempt_id):
                    self._fetch(note, event.attempt_id, progress)
                if not note.part:
                    self._list(note.output_uri)
        except NotFoundError as error:
            if must:
                event = ended(
                    event,
                    AttemptState.LOST,
                    f"the results of the attempt do not exist at the farm any more: {error}",
                )
        # unavailable now, because another rank of its gang still writes to the folder
        except ConflictError as error:
            raise UnavailableError(error.message) from error
        except (UnavailableError, InterruptedRunError):
            raise
        except GridmillError as error:
            message = f"the results of the attempt cannot be downloaded: {error}"
            event = ended(event, AttemptState.FAILED, message, hint=error.hint)
        if note.checkpoint_uri:
            self._keep_checkpoints(note, event.attempt_id, done=done)
        return event

    def _keep_checkpoints(self, note: AttemptNote, attempt_id: str, *, done: bool) -> None:
        if done:
            return shutil.rmtree(below(self._home_root, note.checkpoint_uri), ignore_errors=True)
        try:
            with self._bearing(attempt_id):
                self._fetch_checkpoints(attempt_id, note)
        except NotFoundError:
            return None  # nothing to transfer, because the attempt made no files
        except (UnavailableError, InterruptedRunError):
            raise
        except GridmillError as error:
            _LOG.warning("checkpoints_not_transferred reason=%s", error)

    @contextmanager
    def _bearing(self, attempt_id: str, *, results: bool = True) -> Iterator[None]:
        """Limits the time for which a transfer is retried if a bucket refuses access. With `results`, the
        same function also limits the retries if a disk at the farm fails.

        After the time limit, the results stay at the farm. Raises UnavailableError before the time limit,
        and DataError after it.
        """
        try:
            yield
        except (FarmStorageError, TransferRefusedError) as error:
            if not results and isinstance(error, FarmStorageError):
                raise
            refused, now = isinstance(error, TransferRefusedError), time.monotonic()
            was, since = self._problem_since.get(attempt_id, (refused, now))
            since = since if was == refused else now
            self._problem_since[attempt_id] = refused, since
            if now - since >= (self._refused_seconds if refused else self._trouble_seconds):
                if results:
                    self._left.add(attempt_id)
                raise DataError(error.message, hint=error.hint, place=error.place) from error
            if refused:
                raise UnavailableError(error.message, hint=error.hint, place=error.place) from error
            raise
        except UnavailableError:
            self._problem_since.pop(attempt_id, None)
            raise

    def _fetch(self, note: AttemptNote, attempt_id: str, progress: TransferProgress) -> None:
        """Downloads the output folder of the attempt, either completely or not at all. Raises NotFoundError
        if the output folder does not exist at the farm."""

        def came(crossing: Transfer) -> None:
            self._back[attempt_id] = self._back.get(attempt_id, Transfer()) + crossing

        uri, alike = note.output_uri, (note.output_uri, *note.alike)
        self._downloads.fetch(
            uri, uri, note.staging, alike=alike, progress=progress, stop=self._closed, came=came
        )

    def _list(self, uri: str) -> None:
        """Lists the downloaded files with their hashes, so that the version's manifest can use them."""
        folder = below(self._home_root, uri)
        contents = list_contents(folder)
        write_contents(below(self._home_root, contents_uri(uri)), contents)
        seal(folder, contents)

    def _fetch_checkpoints(
        self, attempt_id: str, note: AttemptNote, manifest: Manifest | None = None, stop: Event | None = None
    ) -> None:
        farm_uri, home_uri = note.farm_checkpoints, note.checkpoint_uri
        stop = stop or self._closed
        with self._link.first():
            self._downloads.fetch(
                farm_uri, home_uri, note.staging, manifest=manifest, alike=(home_uri,), stop=stop
            )

    def _fetch_logs(self, there: str, uri: str, staging: Staging, manifest: Manifest) -> None:
        with self._link.first():
            self._downloads.fetch(there, uri, staging, manifest=manifest, stop=self._closed)

    def leave(self, pod_id: str) -> None:
        """Ends the uploads for the attempts of a pod that has ended."""
        for attempt_id, note in self._noted.open().items():
            if note.pod_id == pod_id:
                self.abandon(attempt_id)

    def abandon(self, attempt_id: str) -> None:
        """See AttemptData. Stops the transfers of the attempt. Chunks that have arrived are kept for the
        next attempt."""
        self._held_up.pop(attempt_id, None)
        stop = self._stops.get(attempt_id)
        if stop is not None:
            stop.set()


def _by(direction: str, staging: Staging) -> str:
    return direction if staging == Staging.DIRECT else f"through a bucket {direction}"
