"""Uploads the results of ended attempts to a bucket while their home is away, so that they outlast the
machine.

The home gives the farm signed URLs when an attempt starts, and renews them while it is in contact. The URLs
are only in memory: after a restart of the farm, the home gives them again. The index of a result is uploaded
after its parts, so that a result with an index is complete.

A machine that is about to end (a notice of the provider, or its longest time) does not wait as long: results
that the home has not taken, and the newest checkpoints of running attempts, are uploaded after a few seconds
without a request of the home.

The watcher of a rented machine lets a job run without contact to its home only if its result can be exported.
Therefore the farm first writes an empty object with one URL of each attempt, which no part of its result
uses. If the bucket takes it, the farm lists the attempt in the file `exportable`.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from gridmill.codec import encode, fingerprint, from_builtins
from gridmill.domain.farm_protocol import (
    BucketObject,
    ChunkSlice,
    ExportedCheckpoint,
    ExportedResult,
    Manifest,
    ResultExport,
)
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import AttemptOutcome, EventType, PodEvent
from gridmill.domain.states import AttemptState
from gridmill.errors import GridmillError, InputError, NotFoundError, UnavailableError
from gridmill.farm.deployment import check_id
from gridmill.farm.files import TenantFiles
from gridmill.transfer.paths import check_path, chunk_sizes
from gridmill.transfer.signed_urls import sliced

Uploading = Callable[[], AbstractContextManager[None]]
_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 1.0
_RETRY_SECONDS = 15.0
_TOUCH_SECONDS = 20.0
_CLOSE_SECONDS = 5.0
_PATIENCE_SECONDS = 2.0
"""A tick waits for this time for the buckets, so that the watcher sees soon which results can be exported."""
_HOLD_SECONDS = 600.0
"""If uploads to the bucket fail for this time, further uploads do not keep the machine from ending itself."""
_ENDING_SECONDS = 10.0
"""If the home sends nothing for this time, it does not take the results from a machine that is about to
end."""
EXPORTABLE, EXPORTING, ENDING = "exportable", "exporting", "ending"
"""The files below `farm` in the farm's home that the watcher of a rented machine reads, and the file that it
writes when the machine is about to end."""
LEAST_PART_BYTES = 64 << 20
MOST_PART_BYTES = 5 << 30
"""The largest object that one PUT request can make at S3 ("Amazon S3 quotas", 5 GiB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportGrant:
    """The permission of a tenant to export the result of an attempt."""

    tenant: str
    attempt_id: str
    export: ResultExport = field(repr=False)


class ExportGrants:
    """The permissions of all tenants, in memory. This class is safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._grants: dict[tuple[str, str], ExportGrant] = {}
        self._done: set[tuple[str, str]] = set()
        self._checked: set[tuple[str, str]] = set()

    def put(self, grant: ExportGrant) -> None:
        """Adds or renews a permission."""
        with self._lock:
            self._grants[grant.tenant, grant.attempt_id] = grant

    def done(self, grant: ExportGrant) -> None:
        """Ends the export of a result that was uploaded."""
        with self._lock:
            self._done.add((grant.tenant, grant.attempt_id))

    def drop(self, tenant: str, attempt_id: str) -> None:
        """Deletes a permission, because the result is at home. May be repeated."""
        with self._lock:
            self._grants.pop((tenant, attempt_id), None)
            self._done.discard((tenant, attempt_id))
            self._checked.discard((tenant, attempt_id))

    def checked(self, grant: ExportGrant) -> None:
        """Notes that the bucket has taken an object with a URL of this permission."""
        with self._lock:
            self._checked.add((grant.tenant, grant.attempt_id))

    def is_checked(self, grant: ExportGrant) -> bool:
        """Returns whether the bucket has taken an object with a URL of this permission."""
        with self._lock:
            return (grant.tenant, grant.attempt_id) in self._checked

    def left(self) -> tuple[ExportGrant, ...]:
        """Returns the permissions whose result was not uploaded."""
        with self._lock:
            return tuple(grant for key, grant in self._grants.items() if key not in self._done)


MOST_OBJECTS = 64


def checked(grant: ExportGrant) -> ExportGrant:
    """Returns the permission. Raises InputError if an id, the path or the number of URLs is not valid."""
    check_id(grant.attempt_id)
    check_id(grant.export.pod_id)
    for uri in filter(None, (grant.export.uri, grant.export.checkpoint_uri)):
        check_path(uri)
    for urls in (grant.export.urls, *grant.export.checkpoint_urls):
        if not 1 < len(urls) <= MOST_OBJECTS:
            raise InputError(f"a result needs 2 to {MOST_OBJECTS} objects", place="urls")
    return grant


def due(grant: ExportGrant, silent_seconds: float, *, is_ending: bool) -> bool:
    """Returns whether the result of an ended attempt is uploaded now, because its home has been silent for so
    long. `is_ending` is whether the machine is about to end."""
    after = min(grant.export.after_seconds, _ENDING_SECONDS) if is_ending else grant.export.after_seconds
    return silent_seconds >= after


def packed(manifest: Manifest | None, most_parts: int) -> tuple[tuple[ChunkSlice, ...], ...]:
    """Distributes the chunks of a result to at most `most_parts` objects. Raises InputError if the result is
    too large."""
    sizes = {} if manifest is None else chunk_sizes(manifest)
    total = sum(sizes.values())
    # one chunk less than the limit of a part may stay free in each part
    largest = max(sizes.values(), default=0)
    part_bytes = max(LEAST_PART_BYTES, -(-total // max(1, most_parts)) + largest)
    if part_bytes > MOST_PART_BYTES:
        raise InputError(f"a result of {total} bytes does not fit into {most_parts} objects of a bucket")
    parts: list[list[tuple[str, int]]] = []
    room = 0
    for chunk, size in sizes.items():
        if size > room:
            parts.append([])
            room = part_bytes
        parts[-1].append((chunk, size))
        room -= size
    return tuple(sliced(part) for part in parts)


def export(
    files: TenantFiles,
    words: Callable[[str], tuple[PodEvent, ...]],
    grant: ExportGrant,
    uploading: Uploading,
) -> bool:
    """Uploads the result of the attempt if the attempt has ended. Returns whether it was uploaded. The upload
    is inside the context of `uploading`.

    Raises UnavailableError if the call should be repeated, and another GridmillError if the bucket refuses
    the request, or if the result is too large.
    """
    wanted = grant.export
    events = tuple(one for one in words(wanted.pod_id) if one.attempt_id == grant.attempt_id)
    end = next((one for one in events if one.type == EventType.ENDED), None)
    if end is None:
        return False
    manifest = None
    if wanted.uri and from_builtins(end.body["outcome"], AttemptOutcome).state == AttemptState.SUCCEEDED:
        with suppress(NotFoundError):  # a command may make no files
            manifest = files.scan(wanted.uri)
    with uploading():
        parts = _put_parts(files, manifest, part_urls(wanted.urls))
        result = ExportedResult(attempt_id=grant.attempt_id, events=events, manifest=manifest, parts=parts)
        files.put_object(wanted.urls[-1], encode(result))
    return True


def part_urls(urls: Sequence[str]) -> Sequence[str]:
    """Returns the URLs for the parts of a result. The last but one is for the check of the bucket, so that a
    check after a restart of the farm does not overwrite a part of a complete result. The last one is for the
    index."""
    return urls[:-2] or urls[:-1]


class CheckpointExports:
    """Uploads the checkpoints of running attempts, each of them once."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._uploaded: dict[tuple[str, str], str] = {}
        """The fingerprint of the last uploaded checkpoint of each attempt."""
        self._counts: Counter[tuple[str, str]] = Counter()

    def export(self, files: TenantFiles, grant: ExportGrant, uploading: Uploading) -> bool:
        """Uploads the checkpoints of the attempt if they have changed since the last upload, inside the
        context of `uploading`. Returns whether they were uploaded. Raises as `export`. A folder that is being
        written is uploaded later."""
        wanted, key = grant.export, (grant.tenant, grant.attempt_id)
        if not (wanted.checkpoint_uri and wanted.checkpoint_urls):
            return False
        try:
            manifest = files.scan(wanted.checkpoint_uri)
            is_steady = manifest == files.scan(wanted.checkpoint_uri)
        except NotFoundError:
            return False
        mark = fingerprint(manifest)
        if not manifest.files or mark == self._uploaded.get(key):
            return False
        if not is_steady:
            raise UnavailableError("the checkpoint is being written", place=wanted.checkpoint_uri)
        urls = wanted.checkpoint_urls[self._counts[key] % len(wanted.checkpoint_urls)]
        self._counts[key] += 1
        number = int(self._now() * 1000)
        with uploading():
            parts = _put_parts(files, manifest, urls[:-1])
            index = ExportedCheckpoint(
                attempt_id=grant.attempt_id, number=number, manifest=manifest, parts=parts
            )
            files.put_object(urls[-1], encode(index))
        self._uploaded[key] = mark
        return True


def _put_parts(
    files: TenantFiles, manifest: Manifest | None, urls: Sequence[str]
) -> tuple[tuple[ChunkSlice, ...], ...]:
    parts = packed(manifest, len(urls))
    for url, slices in zip(urls, parts, strict=False):
        files.give(BucketObject(url=url, slices=slices))
    return parts


class ExportSandbox(Protocol):
    """The files of a tenant, and the journals of its pods."""

    @property
    def files(self) -> TenantFiles:
        """The files of the tenant."""

    def last_words(self, pod: str) -> tuple[PodEvent, ...]:
        """Returns the events of a pod that the home has not confirmed."""


class ExportableFile:
    """The file with the ids of the attempts whose results can be exported, one on each line. Its time of
    change shows that the farm works."""

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path, self._monotonic = path, monotonic
        self._text = ""
        self._touch_at = monotonic()
        self._path.unlink(missing_ok=True)  # an earlier process of the farm had other URLs

    def write(self, attempt_ids: Iterable[str]) -> None:
        """Writes the ids if they have changed, and otherwise changes the time of the file every 20 s. Raises
        OSError."""
        text = "".join(f"{one}\n" for one in sorted(attempt_ids))
        if text != self._text:
            draft = self._path.with_name(f"{self._path.name}.new")
            draft.write_text(text)
            draft.replace(self._path)
        elif not text or self._monotonic() < self._touch_at:
            return
        self._path.touch()
        self._text, self._touch_at = text, self._monotonic() + _TOUCH_SECONDS


def server_of(grant: ExportGrant) -> str:
    """Returns the server of the bucket for a result."""
    return urlsplit(grant.export.urls[-1]).netloc


@dataclass(frozen=True, slots=True, kw_only=True)
class _Upload:
    """Work with one bucket in a thread of its own. The result is False if a request failed."""

    thread: threading.Thread
    is_well: list[bool]


class ResultExporter:
    """The thread that exports results. The requests to each server of buckets have their own thread, so that
    a bucket that does not answer does not delay the others."""

    def __init__(
        self,
        grants: ExportGrants,
        silent_seconds: Callable[[str], float],
        sandbox_of: Callable[[str], ExportSandbox],
        folder: Path,
        monotonic: Callable[[], float] = time.monotonic,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        """`silent_seconds` returns the seconds since the last request of a tenant. `sandbox_of` returns the
        sandbox of a tenant. `folder` gets the files `exportable` and `exporting`; the time of change of
        `exporting` shows that a result is being uploaded. The file `ending` is in it while the machine is
        about to end. A tick waits for the buckets for `patience_seconds`."""
        self._grants, self._silent_seconds = grants, silent_seconds
        self._sandbox_of, self._mark, self._ending = sandbox_of, folder / EXPORTING, folder / ENDING
        self._patience_seconds = patience_seconds
        self._uploads: dict[str, _Upload] = {}
        self._rest_until: dict[str, float] = {}
        """The times before which a server that failed is not used again."""
        self._holding = 0
        self._lock = threading.Lock()
        self._checkpoints = CheckpointExports()
        self._monotonic = monotonic
        self._failing_since: dict[str, float] = {}
        """The time of the first of the failed uploads to each server since the last successful one."""
        self._exportable = ExportableFile(folder / EXPORTABLE)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gridmill-export", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stops the thread. May be repeated."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            try:
                self.tick(rests=not self._ending.exists())
            except Exception:  # noqa: BLE001  the outermost loop: the next turn may succeed
                _LOG.exception("results_not_exported")

    def tick(self, *, rests: bool = False) -> bool:
        """Checks the bucket of new attempts, and uploads the results that are due. Returns False if a request
        to a bucket failed and is tried again. With `rests`, a bucket that failed is not used for 15 s."""
        grants = self._grants.left()
        by_server: dict[str, list[ExportGrant]] = {}
        for grant in grants:
            by_server.setdefault(server_of(grant), []).append(grant)
        for server, some in by_server.items():
            rest = self._rest_until.get(server, 0.0) if rests else 0.0
            if server not in self._uploads and rest <= self._monotonic():
                self._uploads[server] = self._started(some)
        is_well = self._finished()
        self._show({one.attempt_id for one in grants if self._grants.is_checked(one)})
        return is_well

    def _started(self, grants: Sequence[ExportGrant]) -> _Upload:
        is_well: list[bool] = []
        thread = threading.Thread(
            target=lambda: is_well.append(self._upload(grants)), name="gridmill-bucket", daemon=True
        )
        thread.start()
        return _Upload(thread=thread, is_well=is_well)

    def _finished(self) -> bool:
        """Waits for the buckets for a time. Returns False if a request has failed."""
        until = time.monotonic() + self._patience_seconds
        failed = False
        for server, upload in tuple(self._uploads.items()):
            upload.thread.join(max(0.0, until - time.monotonic()))
            if upload.thread.is_alive():
                continue
            del self._uploads[server]
            self._rest_until.pop(server, None)
            if upload.is_well != [True]:
                failed = True
                self._rest_until[server] = self._monotonic() + _RETRY_SECONDS
        return not failed

    def _upload(self, grants: Sequence[ExportGrant]) -> bool:
        """Makes the requests to one server of buckets. Returns False if one failed."""
        checks = [self._check(one) for one in grants if not self._over.is_set()]
        is_well = all(checks)
        is_ending = self._ending.exists()
        for grant in grants:
            silent_seconds = self._silent_seconds(grant.tenant)
            if not self._over.is_set() and due(grant, silent_seconds, is_ending=is_ending):
                is_well &= self._export(grant, is_ending=is_ending)
        return is_well

    def _show(self, attempt_ids: Iterable[str]) -> None:
        """Shows the watcher the attempts whose results can be exported. On a full disk, results are exported
        nevertheless."""
        try:
            self._exportable.write(attempt_ids)
        except OSError as error:
            _LOG.warning("exportable_not_written reason=%s", error)

    def _check(self, grant: ExportGrant) -> bool:
        if self._grants.is_checked(grant):
            return True
        try:
            self._sandbox_of(grant.tenant).files.put_object(grant.export.urls[-2], b"")
        except (GridmillError, OSError) as error:
            _LOG.warning("bucket_takes_no_result attempt=%s reason=%s", grant.attempt_id, error)
            return False
        self._grants.checked(grant)
        return True

    def _export(self, grant: ExportGrant, *, is_ending: bool) -> bool:
        try:
            sandbox = self._sandbox_of(grant.tenant)
            uploading = partial(self._uploading, grant)
            if export(sandbox.files, sandbox.last_words, grant, uploading):
                _LOG.info("result_exported attempt=%s", grant.attempt_id)
                self._grants.done(grant)
            elif is_ending and self._checkpoints.export(sandbox.files, grant, uploading):
                _LOG.info("checkpoint_exported attempt=%s", grant.attempt_id)
        except (GridmillError, OSError) as error:
            _LOG.warning("result_not_exported attempt=%s reason=%s", grant.attempt_id, error)
            return False
        return True

    @contextmanager
    def _uploading(self, grant: ExportGrant) -> Iterator[None]:
        """Keeps the machine from ending itself inside the `with` block, unless the bucket never took an
        object of the attempt, or has failed for long."""
        began, server = self._monotonic(), server_of(grant)
        since = self._failing_since.get(server, began)
        holds = self._grants.is_checked(grant) and began - since < _HOLD_SECONDS
        try:
            with self._held() if holds else nullcontext():
                yield
        except (GridmillError, OSError):
            self._failing_since[server] = since
            raise
        self._failing_since.pop(server, None)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Shows the watcher inside the `with` block that a result is being uploaded."""
        with self._lock:
            self._holding += 1
        try:
            with touching(self._mark, self._over):
                yield
        finally:
            with self._lock:
                self._holding -= 1
                if not self._holding:
                    with suppress(OSError):
                        self._mark.unlink(missing_ok=True)


@contextmanager
def touching(path: Path, over: threading.Event) -> Iterator[None]:
    """Changes the time of the file again and again inside the `with` block."""
    ended = threading.Event()

    def run() -> None:
        while not (ended.is_set() or over.is_set()):
            with suppress(OSError):
                path.touch()
            ended.wait(_TOUCH_SECONDS)

    thread = threading.Thread(target=run, name="gridmill-exporting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
