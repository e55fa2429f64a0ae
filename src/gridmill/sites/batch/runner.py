"""Runs one attempt in the container of a batch service.

The runner reads the manifest of the attempt from the bucket and places the inputs. The runner starts an
ordinary pod, acts as the control node of this pod, and uploads the events of the pod to the bucket. When the
attempt has ended, the runner uploads the result or the last checkpoints, and then the record of the end. The
home need not be reachable meanwhile.
"""

import logging
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gridmill.codec import encode, fingerprint, from_builtins, to_builtins
from gridmill.domain.farm_protocol import Manifest
from gridmill.domain.pod_protocol import (
    Ack,
    AttemptOrder,
    AttemptOutcome,
    Events,
    EventType,
    Hello,
    PodEvent,
    PodOrder,
    SecretRequest,
    SecretValues,
    Start,
    Stop,
    Welcome,
)
from gridmill.domain.states import AttemptState, Cause
from gridmill.domain.storage_uri import below
from gridmill.errors import (
    ConflictError,
    GridmillError,
    InputError,
    NotFoundError,
    StorageError,
    UnavailableError,
)
from gridmill.ports.link import LinkServer
from gridmill.sites.attempt_inputs import BUNDLES, counts
from gridmill.sites.batch.exchange import Exchange, repeated, waiting_for_access
from gridmill.sites.batch.manifest import (
    BatchCheckpoints,
    BatchEnd,
    BatchManifest,
    checkpoints_object,
    end_object,
    events_object,
    manifest_object,
    secret_request_object,
    secret_values_object,
    started_object,
)
from gridmill.sites.batch.ranks import Ranks
from gridmill.transfer.chunk_manifest import scan
from gridmill.transfer.errors import TransferRefusedError

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_POD = "batch-1.0"
_TURN_SECONDS = 0.2
_END_SECONDS = 20.0
_GRACE_SECONDS = 5.0
_SHORT_SECONDS = 1.0
_SHARE = 20
"""Uploads of checkpoints take at most a twentieth of the time."""


def local_order(manifest: BatchManifest, root: Path) -> AttemptOrder:
    """Returns the order of the attempt in the form that the pod in the container needs. `root` is the
    storage root in the container."""
    order = replace(manifest.order, gpu_indices=tuple(range(manifest.capacity.gpus)), root=str(root))
    if manifest.shared_root:
        return replace(order, root=manifest.shared_root)
    bundle = str(below(root, f"{BUNDLES}/{order.bundle}.tar.gz")) if order.bundle_path else ""
    return replace(order, bundle_path=bundle, contents_uri="")


class AttemptRunner:
    """Runs the attempt of a manifest. `folder` is an empty folder for all files of the container."""

    def __init__(
        self,
        exchange: Exchange,
        attempt_id: str,
        folder: Path,
        links: LinkServer,
        link: str,
        received: threading.Event,
        first_address: str = "",
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """The pod connects to `links` at the address `link`. `received` is set when a message arrives.
        `first_address` is the address of rank 0 for the other ranks of a gang."""
        self._exchange, self._attempt_id, self._folder = exchange, attempt_id, folder
        self._data = exchange
        """The bucket with the chunks of the attempt."""
        self._links, self._link, self._received = links, link, received
        self._first_address, self._monotonic, self._sleep = first_address, monotonic, sleep
        self._root = folder / "root"
        self._channel: int | None = None
        self._held: list[PodEvent] = []
        self._last, self._acknowledged = 0, 0
        self._end: PodEvent | None = None
        self._is_terminated = self._is_stopping = self._waits_for_secrets = False
        self._next_upload = self._next_checkpoint = 0.0
        self._uploaded = ""
        self._scanned: Manifest | None = None
        self._transfer_seconds = 0.0

    def terminate(self) -> None:
        """Ends the attempt, because the service ends the container. A signal handler may call this method."""
        self._is_terminated = True

    def run(self) -> int:
        """Runs the attempt until it has ended. Returns the exit code of the container: 0 if the attempt
        succeeded. If another container has started this attempt, the call returns 0 at once. Raises
        GridmillError if the manifest cannot be read, or the end cannot be written."""
        name = manifest_object(self._attempt_id)
        manifest = self._repeated(lambda: self._exchange.read(name, BatchManifest))
        if manifest is None:
            raise NotFoundError("the attempt has no manifest; it was cancelled", place=name)
        self._data = self._exchange.at(manifest.chunks)
        started, owner = started_object(self._attempt_id), secrets.token_hex(16)
        if not self._repeated(lambda: self._exchange.claim(started, owner)):
            return 0
        gang = manifest.order.gang
        if gang is None or len(gang.members) == 1:
            return self._run(manifest, None)
        ranks = Ranks(
            self._exchange,
            gang,
            self._first_address,
            lambda: self._is_terminated,
            self._monotonic,
            self._pause,
        )
        code = self._run(manifest, ranks)
        ranks.end(done=code == 0)
        return code

    def _run(self, manifest: BatchManifest, ranks: Ranks | None) -> int:
        try:
            if ranks is not None:
                ranks.announce()
            self._place(manifest)
            if ranks is not None:
                manifest = replace(manifest, order=replace(manifest.order, gang=ranks.gather()))
            pod = self._start_pod(manifest)
        except GridmillError as error:
            return self._not_started(manifest, error)
        except OSError as error:  # the disk of the machine is full, for example
            place = str(error.filename or self._folder)
            return self._not_started(manifest, StorageError(str(error.strerror), place=place))
        try:
            self._serve(manifest, pod, ranks)
        finally:
            _end_pod(pod)
        if self._end is None:
            self._end = self._lost_pod(manifest.order, pod.returncode)
        return self._finish(manifest, self._end)

    def _pause(self, seconds: float) -> None:
        """Waits, but only shortly after the service has asked the container to end."""
        until = self._monotonic() + seconds
        while not self._is_terminated and (rest := until - self._monotonic()) > 0:
            self._sleep(min(_SHORT_SECONDS, rest))
        if self._is_terminated:
            self._sleep(min(_SHORT_SECONDS, seconds))

    def _place(self, manifest: BatchManifest) -> None:
        """Places the inputs, or checks that the container sees the storage root of the home."""
        began = self._monotonic()
        if manifest.shared_root:
            return _check_shared_root(manifest)
        self._root.mkdir(parents=True, exist_ok=True)
        for number, tree in enumerate(manifest.inputs):
            drafts = self._folder / "drafts" / str(number)
            self._data.download(tree.uri, tree.manifest, self._root, drafts, is_writable=tree.writable)
        self._transfer_seconds += self._monotonic() - began
        return None

    def _start_pod(self, manifest: BatchManifest) -> "subprocess.Popen[bytes]":
        path, home = self._folder / "pod", self._folder / "home"
        path.mkdir(parents=True)
        home.mkdir(parents=True)
        order = PodOrder(
            pod_id=_POD,
            deployment_id=_POD.rpartition(".")[0],
            type=manifest.type,
            secret="",
            home=str(home),
            link=self._link,
            capacity=manifest.capacity,
            keep_seconds=3600.0,
        )
        (path / "order.json").write_bytes(encode(order))
        log = (path / "log").open("wb")
        with log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "gridmill.pod", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _serve(self, manifest: BatchManifest, pod: "subprocess.Popen[bytes]", ranks: Ranks | None) -> None:
        """Exchanges messages with the pod until the attempt or the pod has ended, or until another rank of
        its gang gives no sign of life."""
        order = local_order(manifest, self._root)
        while self._end is None and pod.poll() is None:
            self._received.wait(_TURN_SECONDS)
            self._received.clear()
            self._receive(order)
            if self._is_terminated and not self._is_stopping and self._channel is not None:
                self._is_stopping = True
                why = "the service ends the container"
                stop = Stop(attempt_id=order.attempt_id, reason=why, grace_seconds=_GRACE_SECONDS)
                self._links.send(self._channel, [stop])
            self._answer_secrets()
            self._upload_events(manifest.poll_seconds)
            self._upload_checkpoints(manifest)
            if ranks is not None and ranks.silent_rank is not None and self._end is None:
                message = f"rank {ranks.silent_rank} gives no sign of life"
                self._end = _ended(order, self._last + 1, _lost(message))

    def _receive(self, order: AttemptOrder) -> None:
        for received in self._links.receive():
            match received.message:
                case Hello():
                    self._channel = received.channel
                    self._links.send(received.channel, [Welcome(acknowledged=self._acknowledged)])
                    self._links.send(received.channel, [Start(order=order)])
                case Events(events=events):
                    self._hold(events)
                case SecretRequest() as request:
                    self._request_secrets(request)
                case _:
                    pass

    def _request_secrets(self, request: SecretRequest) -> None:
        self._waits_for_secrets = True
        name = secret_request_object(self._attempt_id)
        self._persistent(lambda: self._exchange.write(name, request))

    def _hold(self, events: Sequence[PodEvent]) -> None:
        for event in events:
            if event.number <= self._last:
                continue
            self._last = event.number
            if event.type is EventType.ENDED:
                self._end = event
            else:
                self._held.append(event)

    def _answer_secrets(self) -> None:
        """Sends the values of secrets to the pod when the home has answered."""
        if not self._waits_for_secrets or self._channel is None:
            return
        with suppress(UnavailableError, TransferRefusedError):
            values = self._exchange.read(secret_values_object(self._attempt_id), SecretValues)
            if values is not None:
                self._waits_for_secrets = False
                self._links.send(self._channel, [values])

    def _upload_events(self, pause_seconds: float) -> None:
        """Uploads the waiting events, and only then permits the pod to delete them."""
        now = self._monotonic()
        if not self._held or now < self._next_upload:
            return
        self._next_upload = now + pause_seconds
        last = self._held[-1].number
        try:
            self._exchange.write(events_object(self._attempt_id, last), Events(events=tuple(self._held)))
        except (UnavailableError, TransferRefusedError) as error:
            _LOG.warning("events_not_uploaded reason=%s", error)
            return
        self._held.clear()
        self._acknowledged = last
        if self._channel is not None:
            self._links.send(self._channel, [Ack(number=last)])

    def _upload_checkpoints(self, manifest: BatchManifest) -> None:
        """Uploads the checkpoints if two scans of their folder at different times are equal, which shows that
        the checkpoints are complete."""
        now = self._monotonic()
        if manifest.shared_root or not manifest.order.checkpoint_uri or now < self._next_checkpoint:
            return
        if not counts(manifest.order):
            return
        try:
            seen = self._scan_checkpoints(manifest.order)
            if seen is not None and seen == self._scanned:
                self._put_checkpoints(manifest.order, seen)
            self._scanned = seen
        except GridmillError as error:
            _LOG.info("checkpoints_not_uploaded reason=%s", error)
        took = self._monotonic() - now
        self._next_checkpoint = self._monotonic() + max(manifest.checkpoints_seconds / 2, _SHARE * took)

    def _scan_checkpoints(self, order: AttemptOrder) -> Manifest | None:
        folder = below(self._root, order.checkpoint_uri)
        found = scan(folder) if folder.is_dir() else None
        return found if found is not None and found.files else None

    def _put_checkpoints(self, order: AttemptOrder, seen: Manifest) -> None:
        mark = fingerprint(seen)
        if mark == self._uploaded:
            return
        self._data.upload(seen, below(self._root, order.checkpoint_uri))
        self._exchange.write(checkpoints_object(self._attempt_id), BatchCheckpoints(manifest=seen))
        self._uploaded = mark

    def _finish(self, manifest: BatchManifest, end: PodEvent) -> int:
        """Uploads all results of the attempt, and the end of the attempt as the last object."""
        self._next_upload = 0.0
        self._persistent(self._upload_all_events)
        outcome = from_builtins(end.body["outcome"], AttemptOutcome)
        done = outcome.state is AttemptState.SUCCEEDED
        result: Manifest | None = None
        try:
            result = self._persistent(lambda: self._upload_result(manifest, done=done))
        except GridmillError as error:
            end, done = (
                _failed(end, f"the result of the attempt cannot be uploaded: {error}", error.hint),
                False,
            )
        record = BatchEnd(
            event=end,
            result=result,
            interrupted=self._is_terminated and not done,
            seconds=self._transfer_seconds,
        )
        self._write_end(record)
        return 0 if done else 1

    def _write_end(self, record: BatchEnd) -> None:
        def write() -> None:
            # the home does not wait for the end of an attempt whose job the service has ended
            if not self._exchange.is_deleted(self._attempt_id):
                self._exchange.write(end_object(self._attempt_id), record)

        self._persistent(write)

    def _repeated(self, act: Callable[[], T]) -> T:
        return repeated(act, self._pause, self._monotonic)

    def _persistent(self, act: Callable[[], T]) -> T:
        return repeated(waiting_for_access(act), self._pause, self._monotonic)

    def _upload_all_events(self) -> None:
        if self._held and not self._exchange.is_deleted(self._attempt_id):
            events = Events(events=tuple(self._held))
            self._exchange.write(events_object(self._attempt_id, self._held[-1].number), events)
            self._held.clear()

    def _upload_result(self, manifest: BatchManifest, *, done: bool) -> Manifest | None:
        """Uploads the output folder of an attempt that succeeded, and the checkpoints of any other
        attempt."""
        order, began = manifest.order, self._monotonic()
        if manifest.shared_root or not counts(order):
            return None
        try:
            if not done:
                seen = self._scan_checkpoints(order) if order.checkpoint_uri else None
                if seen is not None:
                    self._put_checkpoints(order, seen)
                return None
            folder = below(self._root, order.output_uri)
            result = scan(folder) if folder.exists() else None
            if result is not None:
                self._data.upload(result, folder)
        except ConflictError as error:
            raise UnavailableError(error.message) from error
        self._transfer_seconds += self._monotonic() - began
        return result

    def _not_started(self, manifest: BatchManifest, error: GridmillError) -> int:
        """Writes the end of an attempt whose inputs could not be placed. If a retry can help, the attempt
        counts as lost."""
        state = (
            AttemptState.LOST if isinstance(error, UnavailableError | NotFoundError) else AttemptState.FAILED
        )
        outcome = AttemptOutcome(
            state=state,
            cause=Cause.LOST if state is AttemptState.LOST else Cause.INPUT,
            message=f"the container could not prepare the attempt: {error}",
            hint=error.hint,
        )
        self._write_end(BatchEnd(event=_ended(manifest.order, 1, outcome), interrupted=self._is_terminated))
        return 1

    def _lost_pod(self, order: AttemptOrder, code: int | None) -> PodEvent:
        log = (self._folder / "pod" / "log").read_text(errors="replace").strip()
        last = f": {log.splitlines()[-1][:300]}" if log else ""
        message = f"the pod in the container ended with exit code {code}{last}"
        return _ended(order, self._last + 1, _lost(message))


def _ended(order: AttemptOrder, number: int, outcome: AttemptOutcome) -> PodEvent:
    return PodEvent(
        number=number,
        attempt_id=order.attempt_id,
        token=order.token,
        time=time.time(),
        type=EventType.ENDED,
        body={"outcome": to_builtins(outcome)},
    )


def _lost(message: str) -> AttemptOutcome:
    return AttemptOutcome(state=AttemptState.LOST, cause=Cause.LOST, message=message)


def _failed(end: PodEvent, message: str, hint: str) -> PodEvent:
    outcome = AttemptOutcome(state=AttemptState.FAILED, cause=Cause.STORAGE, message=message, hint=hint)
    return replace(end, body={"outcome": to_builtins(outcome)})


def _end_pod(pod: "subprocess.Popen[bytes]") -> None:
    """Ends the pod with the processes of its attempt."""
    if pod.poll() is None:
        pod.terminate()
    try:
        pod.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        pod.kill()
        pod.wait()


def _check_shared_root(manifest: BatchManifest) -> None:
    """Checks that the container sees the storage root of the home. Raises InputError."""
    probe = Path(manifest.shared_root, manifest.root_mark)
    if not probe.is_file():
        raise InputError(
            f"the container does not see the storage root of the home at {manifest.shared_root}: the file "
            f"{probe} does not exist",
            hint="Mount the file system with the storage root in the container, and set `shared_root` to the "
            "path of the storage root there.",
        )
