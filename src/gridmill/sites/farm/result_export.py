"""Takes the results of attempts on rented machines from a bucket, after the machine has ended while this home
was away.

When an attempt starts, this home signs URLs for a bounded number of objects below one folder of the bucket
and gives them to the machine. A record on the disk, which contains no URL, is written before. If the machine
exported a result and has ended, the result is downloaded, verified and reported once, as if the machine had
reported it. If it exported a checkpoint of an attempt that did not end, the checkpoint is downloaded, and the
next attempt continues from it. The objects are deleted when the control node has committed the end of the
attempt, and again when the URLs have expired, because until then a machine can make objects. Their names
contain the grid and the lease, so that `gridmill reap` finds them without the records.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import uuid4

from gridmill.codec import decode, encode
from gridmill.domain.farm_protocol import (
    BucketObject,
    ChunkSlice,
    ExportedCheckpoint,
    ExportedResult,
    Manifest,
    ResultExport,
)
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobKind
from gridmill.domain.lease import Lease
from gridmill.domain.pod_protocol import AttemptOrder, EventType, PodEvent
from gridmill.domain.rental_terms import AFTER_CAP_SECONDS, LONGEST_SIGNATURE_SECONDS
from gridmill.domain.route import Staging
from gridmill.domain.secret import resolved
from gridmill.domain.site import Site
from gridmill.domain.source import CREDENTIALS
from gridmill.domain.storage_uri import below
from gridmill.domain.version_manifest import contents_uri
from gridmill.errors import DataError, GridmillError, InputError, NotFoundError, StorageError
from gridmill.private_files import write_private
from gridmill.sites.attempt_inputs import counts, farm_checkpoint_uri
from gridmill.sites.farm.carrier_choice import SiteBuckets, bucket_of, no_secrets
from gridmill.sites.farm.client import FarmClient
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.contents import list_contents, write_contents
from gridmill.transfer.engine import pull
from gridmill.transfer.errors import TransferRefusedError
from gridmill.transfer.signed_urls import ANY_HOST, flows
from gridmill.transfer.stream import Chunk
from gridmill.transfer.tree_writer import TreeCheckout
from gridmill.transfer.verify import seal

if TYPE_CHECKING:
    from gridmill.transfer.bucket import BucketClient

_LOG = logging.getLogger(__name__)
PARTS, CHECKPOINT_PARTS = 63, 15
"""The numbers of objects that a result and a checkpoint may have, besides their index."""
CHECKPOINTS = 2
"""The number of checkpoints of an attempt in the bucket. The machine overwrites the older one."""
INDEX = "index"
_AFTER_SECONDS, _DEAD_MAN_SHARE = 120.0, 4
_SWEEP_SECONDS = 60.0
_GIVE_UP_SECONDS = 3600.0
_LEFT_SECONDS = 7 * 86_400.0
"""A result that nobody took is deleted this long after its URLs have expired. This home may be away for as
long."""
_RENEW_SECONDS = 300.0
_INDEX_BYTES = 256 << 20
_COMING = ".exported"
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRecord:
    """The record of objects that a machine may make. `folder` is their place below the bucket's `url`.
    `until` is the Unix time at which the URLs expire. `is_settled` is whether the result is at home or is not
    needed any more. `events` are the events of a result that was taken from the bucket; they are reported
    again if the report was lost. `came_home` has the end of an attempt whose result this home got from the
    machine itself, until the control node has committed it. `failing_since` is the Unix time at which the
    bucket first failed.
    `checkpoint_uri` is the folder of the checkpoints in this home, and `farm_checkpoints` at the farm."""

    attempt_id: str
    pod_id: str
    token: str
    url: str
    endpoint: str
    folder: str
    uri: str
    is_part: bool
    until: float
    is_settled: bool = False
    events: tuple[PodEvent, ...] = ()
    came_home: tuple[PodEvent, ...] = ()
    failing_since: float | None = None
    checkpoint_uri: str = ""
    farm_checkpoints: str = ""

    def objects(self) -> tuple[str, ...]:
        """Returns the names of all objects of a result that the machine may make."""
        return _names(self.folder, PARTS)

    def checkpoints(self) -> tuple[tuple[str, ...], ...]:
        """Returns the names of all objects of each checkpoint that the machine may make."""
        count = CHECKPOINTS if self.farm_checkpoints else 0
        return tuple(_names(f"{self.folder}/checkpoint-{at}", CHECKPOINT_PARTS) for at in range(count))


def _names(folder: str, parts: int) -> tuple[str, ...]:
    return (*(f"{folder}/{number:02d}" for number in range(parts)), f"{folder}/{INDEX}")


class ExportRecords:
    """The records of one site, one file for each attempt. This class is safe to use from several threads and
    processes of this home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, record: ExportRecord) -> None:
        """Writes or replaces a record. Raises StorageError."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_private(self._path(record.attempt_id), encode(record))
        except OSError as error:
            raise StorageError(f"cannot be written: {error.strerror}", place=str(self._folder)) from error

    def find(self, attempt_id: str) -> ExportRecord | None:
        """Returns the record of an attempt, or None."""
        with suppress(OSError, InputError):
            return decode(self._path(attempt_id).read_bytes(), ExportRecord)
        return None

    def all(self) -> tuple[ExportRecord, ...]:
        """Returns all records."""
        names = sorted(path.stem for path in self._folder.glob("*.json"))
        return tuple(record for name in names if (record := self.find(name)) is not None)

    def delete(self, record: ExportRecord) -> None:
        """Deletes a record. May be repeated."""
        with suppress(OSError):
            self._path(record.attempt_id).unlink(missing_ok=True)

    def _path(self, attempt_id: str) -> Path:
        return self._folder / f"{attempt_id}.json"


class ExportedChunks:
    """Reads the chunks of an exported folder from its objects. It implements ChunkReader."""

    def __init__(
        self, bucket: "BucketClient", names: Sequence[str], parts: Sequence[Sequence[ChunkSlice]]
    ) -> None:
        self._bucket = bucket
        objects = zip(names, parts, strict=False)
        self._places = {one.chunk: (name, one) for name, slices in objects for one in slices}

    def fetch(self, chunks: Iterable[str]) -> Iterator[Chunk]:
        """See ChunkReader. The caller checks the hashes."""
        objects: dict[str, list[ChunkSlice]] = {}
        for chunk in chunks:
            if chunk not in self._places:
                raise NotFoundError("is not in the exported result", place=f"chunk {chunk}")
            name, one = self._places[chunk]
            objects.setdefault(name, []).append(one)
        for name, slices in objects.items():
            url = self._bucket.sign("GET", name)
            for flow in flows(BucketObject(url=url, slices=tuple(slices)), ANY_HOST):
                yield flow.gathered()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTerms:
    """The terms for the exports of one machine. The machine may export results until the Unix time `until`,
    and ends itself `dead_man_seconds` after the last contact. `owner` and `lease` are parts of the names of
    its objects."""

    until: float
    dead_man_seconds: float
    owner: str
    lease: str


def terms_of(lease: Lease, seconds: float) -> ExportTerms:
    """Returns the terms for the machine of a lease that ends after this number of seconds."""
    return ExportTerms(
        until=time.time() + seconds + AFTER_CAP_SECONDS,
        dead_man_seconds=lease.terms.dead_man_seconds,
        owner=lease.owner,
        lease=lease.id,
    )


class ResultExports:
    """The exported results of one site. This class is safe to use from several threads."""

    def __init__(
        self,
        site: Site,
        tenant: str,
        root: Path,
        folder: Path,
        open_bucket: Callable[[str, str, float], "BucketClient"],
        now: Callable[[], float] = time.time,
        buckets: SiteBuckets | None = None,
    ) -> None:
        """`folder` contains the records. `open_bucket` opens a URL of a bucket at an endpoint, and signs URLs
        for a number of seconds. `buckets` are the buckets through which data is transferred to the machines
        of the site: unneeded objects in them are deleted too."""
        self._site, self._tenant, self._root = site, tenant, root
        self._folder, self._open_bucket, self._now = folder, open_bucket, now
        self._buckets = buckets
        self._records = ExportRecords(folder / "records")
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The bucket of the site for exports, or an empty text."""
        return self._site.settings.get(Staging.EXPORT, "").rstrip("/")

    def grant(self, order: AttemptOrder, pod_id: str, terms: ExportTerms) -> ResultExport:
        """Returns the permission for the machine to export the result of the attempt. The record is written
        first. May be repeated, which renews the URLs. Raises StorageError, and the errors of BucketClient."""
        record = self._records.find(order.attempt_id)
        if record is None or record.token != order.token:
            record = self._record(order, pod_id, terms)
            self._records.write(record)
        return self._signed(record, terms.dead_man_seconds)

    def _record(self, order: AttemptOrder, pod_id: str, terms: ExportTerms) -> ExportRecord:
        has_files = counts(order)
        return ExportRecord(
            attempt_id=order.attempt_id,
            pod_id=pod_id,
            token=order.token,
            url=f"{bucket_of(self._site, Staging.EXPORT)}/{self._tenant}/{self._site.name}",
            endpoint=self._site.settings.get("endpoint", ""),
            folder=f"results/{terms.owner}/{terms.lease}/{uuid4().hex}",
            uri=order.output_uri if has_files else "",
            is_part=order.part is not None,
            until=terms.until,
            checkpoint_uri=order.checkpoint_uri if has_files else "",
            farm_checkpoints=farm_checkpoint_uri(order) if has_files else "",
        )

    def _signed(self, record: ExportRecord, dead_man_seconds: float) -> ResultExport:
        seconds = min(LONGEST_SIGNATURE_SECONDS, max(1.0, record.until - self._now()))
        bucket = self._open_bucket(record.url, record.endpoint, seconds)
        return ResultExport(
            pod_id=record.pod_id,
            uri=record.uri,
            urls=tuple(bucket.sign("PUT", name) for name in record.objects()),
            after_seconds=min(_AFTER_SECONDS, dead_man_seconds / _DEAD_MAN_SHARE),
            checkpoint_uri=record.farm_checkpoints,
            checkpoint_urls=tuple(
                tuple(bucket.sign("PUT", name) for name in names) for names in record.checkpoints()
            ),
        )

    def renewed(self, pod_ids: Iterable[str], dead_man_seconds: float) -> Mapping[str, ResultExport]:
        """Returns new URLs for the attempts of these pods that may still export a result, by attempt id."""
        pods = set(pod_ids)
        some = [one for one in self._records.all() if one.pod_id in pods and not one.is_settled]
        return {one.attempt_id: self._signed(one, dead_man_seconds) for one in some}

    # --- after the end of a machine

    def collect(self, pod_id: str) -> tuple[PodEvent, ...]:
        """Returns the events of the attempts whose results a machine exported, after the results are at home.
        May be repeated. Raises UnavailableError while the bucket does not answer."""
        with self._lock:
            some = [one for one in self._records.all() if one.pod_id == pod_id]
            events = [event for one in some for event in self._collected(one)]
            return tuple(sorted(events, key=lambda event: event.number))

    def _collected(self, record: ExportRecord) -> tuple[PodEvent, ...]:
        if record.events or record.is_settled:
            return record.events
        try:
            events = self._result_or_checkpoint(record)
        except GridmillError as error:
            if not self._gives_up(record):
                raise
            _LOG.warning("exported_result_lost attempt=%s reason=%s", record.attempt_id, error)
            events = record.came_home
        self._records.write(replace(record, events=events, is_settled=True))
        return events

    def _result_or_checkpoint(self, record: ExportRecord) -> tuple[PodEvent, ...]:
        try:
            return self._taken(record)
        except NotFoundError:
            if not record.came_home:
                self._take_checkpoint(record)
            return record.came_home

    def _take_checkpoint(self, record: ExportRecord) -> None:
        """Downloads the newest checkpoint that the machine exported, unless this home has a newer one."""
        if not record.checkpoint_uri:
            return
        bucket = self._open_bucket(record.url, record.endpoint, _GIVE_UP_SECONDS)
        found: list[tuple[Sequence[str], ExportedCheckpoint]] = []
        for slot in record.checkpoints():
            with suppress(NotFoundError, InputError):  # never exported, or not written completely
                found.append((slot, decode(bucket.get(slot[-1], _INDEX_BYTES), ExportedCheckpoint)))
        for names, one in sorted(found, key=lambda pair: pair[1].number, reverse=True):
            if one.attempt_id != record.attempt_id or one.number <= self._written_ms(record.checkpoint_uri):
                continue
            try:
                reader = ExportedChunks(bucket, names, one.parts)
                self._place(record, record.checkpoint_uri, one.manifest, reader)
            except (NotFoundError, DataError) as error:  # the machine was overwriting it
                _LOG.warning("exported_checkpoint_damaged attempt=%s reason=%s", record.attempt_id, error)
                continue
            _LOG.info("exported_checkpoint_taken attempt=%s", record.attempt_id)
            return

    def _written_ms(self, uri: str) -> float:
        """Returns the Unix time in milliseconds at which a folder of this home was last written, or 0."""
        try:
            return below(self._root, uri).stat().st_mtime * 1000
        except OSError:
            return 0.0

    def _gives_up(self, record: ExportRecord) -> bool:
        """Notes that the bucket fails. Returns whether it has failed for so long that the result counts as
        lost."""
        since = record.failing_since if record.failing_since is not None else self._now()
        self._records.write(replace(record, failing_since=since))
        return self._now() - since >= _GIVE_UP_SECONDS

    def _taken(self, record: ExportRecord) -> tuple[PodEvent, ...]:
        """Downloads an exported result, and returns its events. Raises NotFoundError if the machine exported
        none, or not all of it."""
        bucket = self._open_bucket(record.url, record.endpoint, _GIVE_UP_SECONDS)
        result = decode(bucket.get(f"{record.folder}/{INDEX}", _INDEX_BYTES), ExportedResult)
        events = tuple(one for one in result.events if one.token == record.token)
        if result.attempt_id != record.attempt_id or not any(e.type == EventType.ENDED for e in events):
            raise DataError("does not belong to this attempt", place=f"{record.url}/{record.folder}")
        if record.came_home:  # with its files; the bucket has the earlier events of the attempt
            return (*(one for one in events if one.type != EventType.ENDED), *record.came_home)
        if result.manifest is not None and record.uri:
            self._write(record, result, bucket)
        return events

    def _place(self, record: ExportRecord, uri: str, manifest: Manifest, reader: ExportedChunks) -> None:
        """Downloads a folder from the bucket and stores it as `uri` in this home."""
        folder = self._folder / _COMING / record.attempt_id
        chunks = ChunkStore(folder, manifest.size_bytes + 1)
        placer = TreeCheckout(self._root, chunks, handing_over=True)
        if placer.place(uri, manifest, _COMING, writable=True):
            pull(manifest, chunks, reader)
            if placer.place(uri, manifest, _COMING, writable=True):
                raise NotFoundError("chunks of the exported folder are missing", place=uri)
        shutil.rmtree(folder, ignore_errors=True)

    def _write(self, record: ExportRecord, result: ExportedResult, bucket: "BucketClient") -> None:
        assert result.manifest is not None
        reader = ExportedChunks(bucket, record.objects(), result.parts)
        self._place(record, record.uri, result.manifest, reader)
        if not record.is_part:
            made = below(self._root, record.uri)
            contents = list_contents(made)
            write_contents(below(self._root, contents_uri(record.uri)), contents)
            seal(made, contents)

    # --- the end of the objects

    def came_home(self, event: PodEvent) -> None:
        """Notes the end of an attempt whose result is at home, before the control node gets it. If the
        control node and the machine end before the commit, `collect` returns it. Raises StorageError."""
        record = self._records.find(event.attempt_id)
        if record is not None and not record.is_settled:
            self._records.write(replace(record, came_home=(event,)))

    def settle(self, attempt_id: str) -> None:
        """Notes that the control node has committed the end of the attempt, so that its objects are
        deleted. Raises StorageError."""
        record = self._records.find(attempt_id)
        if record is not None and not record.is_settled:
            self._records.write(replace(record, is_settled=True))

    def settle_pod(self, pod_id: str) -> None:
        """Notes that no result of the attempts of a pod is needed any more."""
        for record in self._records.all():
            if record.pod_id == pod_id:
                self.settle(record.attempt_id)

    def sweep(self) -> None:
        """Deletes the objects of results that are at home, and the records whose URLs have expired."""
        for record in self._records.all():
            is_expired = self._now() > record.until + (0.0 if record.is_settled else _LEFT_SECONDS)
            if not record.is_settled and not is_expired:
                continue
            try:
                self._delete_objects(record)
            except GridmillError as error:
                _LOG.info("exports_not_deleted attempt=%s reason=%s", record.attempt_id, error)
                continue
            if is_expired:
                self._records.delete(record)

    def _delete_objects(self, record: ExportRecord) -> None:
        bucket = self._open_bucket(record.url, record.endpoint, _GIVE_UP_SECONDS)
        for name in [name for page in bucket.names(record.folder) for name in page]:
            bucket.remove(name)

    def clear(self) -> None:
        """Deletes all objects, because the site was removed. What cannot be deleted is logged."""
        for record in self._records.all():
            try:
                self._delete_objects(record)
            except GridmillError as error:
                _LOG.warning("exports_not_deleted attempt=%s reason=%s", record.attempt_id, error)
            else:
                self._records.delete(record)
        if self._buckets is not None:
            self._buckets.clear()

    def start(self) -> None:
        """Starts threads that delete objects."""
        if self._buckets is not None:
            self._buckets.start()
        self._thread = threading.Thread(target=self._run, name="gridmill-exports", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the threads. May be repeated."""
        self._over.set()
        if self._buckets is not None:
            self._buckets.close()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.sweep()
            except Exception:  # noqa: BLE001  the outermost loop: the next turn may succeed
                _LOG.exception("exports_not_deleted")
            self._over.wait(_SWEEP_SECONDS)


class MachineExports:
    """The exports of the attempts on one machine. A failure is logged, and concerns no attempt: without URLs,
    a result stays on its machine until this home is back."""

    def __init__(
        self,
        exports: ResultExports,
        farm: FarmClient,
        terms: ExportTerms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exports, self._farm, self._terms = exports, farm, terms
        self._monotonic = monotonic
        self._renew_at = monotonic()

    def starts(self, order: AttemptOrder, pod_id: str) -> None:
        """Gives the machine the URLs for the result of an attempt. In a gang, each rank reports its end in
        this way, and only rank 0 has files. A service has no result."""
        if not self._exports.url or order.job.kind is JobKind.SERVICE:
            return
        try:
            export = self._exports.grant(order, pod_id, self._terms)
            self._farm.permit_export(order.attempt_id, export)
        except GridmillError as error:
            _LOG.warning("no_export attempt=%s reason=%s", order.attempt_id, error)

    def came_home(self, event: PodEvent) -> None:
        """See ResultExports.came_home."""
        self._exports.came_home(event)

    def settle(self, attempt_id: str) -> None:
        """See ResultExports.settle. The caller does not repeat the call: if the record cannot be written, the
        objects are deleted at the end of the pod."""
        try:
            self._exports.settle(attempt_id)
        except StorageError as error:
            _LOG.warning("exports_not_settled attempt=%s reason=%s", attempt_id, error)

    def renew(self, pod_ids: Iterable[str]) -> None:
        """Gives the machine new URLs from time to time, because it forgets them if its server restarts."""
        if not self._exports.url or self._monotonic() < self._renew_at:
            return
        self._renew_at = self._monotonic() + _RENEW_SECONDS
        try:
            for attempt_id, export in self._exports.renewed(pod_ids, self._terms.dead_man_seconds).items():
                self._farm.permit_export(attempt_id, export)
        except GridmillError as error:
            _LOG.warning("exports_not_renewed reason=%s", error)


def open_bucket(
    url: str,
    endpoint: str,
    seconds: float,
    credentials: Mapping[str, str] = MappingProxyType({}),
    resolve: Callable[[str], str] = no_secrets,
) -> "BucketClient":
    """Opens a bucket. It signs URLs for this number of seconds. `credentials` are the credentials that are
    not in the environment, as references to secrets. Raises TransferRefusedError if the package is missing,
    NotFoundError and StorageError for a secret that cannot be read, and the errors of BucketClient."""
    if find_spec("obstore") is None:
        raise TransferRefusedError(
            "buckets need the package `obstore`, which is not installed",
            hint="pip install 'gridmill[objects]' at home",
        )
    from gridmill.transfer.bucket import BucketClient

    names = CREDENTIALS.get(url.partition("://")[0], ())
    # resolved for each use, so that a new value of a secret is used at once
    keys = {name: resolved(credentials[name], resolve) for name in names if name in credentials}
    options = {**({"endpoint": endpoint} if endpoint else {}), **keys}
    return BucketClient(url, options, pass_seconds=seconds)
