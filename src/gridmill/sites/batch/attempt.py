"""Drives one attempt at a batch site: uploads its inputs, submits its job, follows the job and downloads its
results."""

import logging
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gridmill.codec import encode, from_builtins, to_builtins
from gridmill.domain.batch_use import BatchUse
from gridmill.domain.gang import member_id
from gridmill.domain.pod_protocol import (
    AttemptOutcome,
    Events,
    EventType,
    PodEvent,
    SecretRequest,
    SecretValues,
)
from gridmill.domain.route import AttemptTransfers, Staging, Transfer
from gridmill.domain.states import AttemptState, Cause
from gridmill.errors import (
    ConflictError,
    GridmillError,
    InterruptedRunError,
    RefusedError,
    UnavailableError,
    explained,
)
from gridmill.ports.batch import (
    BatchJob,
    BatchPhase,
    QueueProblem,
    node_id,
    whole_id,
)
from gridmill.private_files import write_private
from gridmill.sites.attempt_inputs import counts
from gridmill.sites.batch.attempt_record import (
    DIAGNOSIS_SECONDS,
    LAST_OBJECTS_SECONDS,
    LOST_SECONDS,
    AttemptPhase,
    BatchAttemptRecord,
    lost_outcome,
    may_submit,
    progress_text,
    queue_verdict,
    stopped,
    was_alone,
    with_own_files,
)
from gridmill.sites.batch.context import SiteContext, check_account, manifest_of, request_of, use_of
from gridmill.sites.batch.exchange import Exchange
from gridmill.sites.batch.journal import PodJournal
from gridmill.sites.batch.manifest import (
    BatchEnd,
    InputFolder,
    end_object,
    events_folder,
    manifest_object,
    number_of,
    secret_request_object,
    secret_values_object,
)
from gridmill.sites.batch.results import Moving, download_result, keep_checkpoints
from gridmill.sites.batch.settings import for_resource
from gridmill.transfer.errors import TransferRefusedError
from gridmill.transfer.progress import TransferProgress, TransferState
from gridmill.transfer.verify import check_order

_LOG = logging.getLogger(__name__)
_CANCEL_AGAIN_SECONDS = 30.0
_LAST_SECONDS = 20.0
"""The job of an attempt that has ended is cancelled if it does not end within this number of seconds."""
_SLOWING_SECONDS, _SLOWEST = 600.0, 6.0


class AttemptDriver:
    """The driver of one attempt, which executes its next step on request. `step` is called by one thread at a
    time; all other methods may be called by any thread and return at once."""

    def __init__(
        self, context: SiteContext, record: BatchAttemptRecord, journal: PodJournal, path: Path
    ) -> None:
        """`path` is the file of the record in the home."""
        self._context, self._path = context, path
        self.record, self.journal = record, journal
        self.lock = threading.Lock()
        self.problem = ""
        self.due = 0.0
        self.is_busy = False
        self.secret_request: SecretRequest | None = None
        """The request of the container for the values of secrets. The pod sends this request to the control
        node."""
        self.secret_values: SecretValues | None = None
        """The encrypted answer of the control node. The next step uploads this answer to the bucket."""
        self._progress: tuple[str, TransferProgress] | None = None
        self._stop = threading.Event()
        self._ended_since: float | None = None
        self._over_since: float | None = None
        self._cancelled_at: float | None = None
        self._diagnosed_at = 0.0
        self._queue_problem: QueueProblem | None = None
        self._is_asked_for_secrets = self._has_secrets = False

    @property
    def id(self) -> str:
        """The id of the attempt."""
        return self.record.order.attempt_id

    @property
    def has_ended(self) -> bool:
        """Whether the end of the attempt is in the journal, and the bucket has no object of the attempt any
        more."""
        return self.record.phase is AttemptPhase.ENDED

    @property
    def _data(self) -> Exchange:
        """The bucket with the chunks of the attempt."""
        return self._context.exchange.at(self.record.chunks)

    def save(self, record: BatchAttemptRecord) -> None:
        """Store the record. Raises StorageError."""
        try:
            write_private(self._path, encode(record))
        except OSError as error:
            raise UnavailableError(f"cannot be written: {error.strerror}", place=str(self._path)) from error
        self.record = record

    def _note(self, record: BatchAttemptRecord) -> None:
        """Use the record even if it cannot be stored, because a job must not continue only because the disk
        is full. A new process gets or finds the same values again."""
        with suppress(UnavailableError):
            self.save(record)
        self.record = record

    def request_stop(self, reason: str) -> None:
        """End the attempt soon."""
        with self.lock:
            if not self.record.stop:
                self._note(replace(self.record, stop=reason))
        self._stop.set()
        self.due = 0.0

    def ask_again(self) -> None:
        """Request the values of secrets again. The connection to the control node was lost, and the request
        or its answer may be lost too."""
        if not self._has_secrets:
            self._is_asked_for_secrets = False

    def transfer(self) -> tuple[str, TransferState] | None:
        """Return the direction and the progress of the present transfer."""
        progress = self._progress
        return (progress[0], progress[1].look()) if progress is not None else None

    def interrupt(self) -> None:
        """Stop all transfers, because the site is closed."""
        self._stop.set()

    def step(self) -> None:
        """Execute the next step, and store the time of the step after it. Temporary errors are shown as the
        problem of the attempt."""
        try:
            try:
                self._advance()
            except (InterruptedRunError, UnavailableError):
                raise
            except GridmillError as error:
                self._fail(error)
        except InterruptedRunError:
            self.due = 0.0
        except GridmillError as error:
            self._wait(error)

    def _wait(self, error: GridmillError) -> None:
        self.problem = f"{self.id} waits: {explained(error)}"
        self.due = self._context.monotonic() + 2 * self._context.parsed.poll_seconds

    def _fail(self, error: GridmillError) -> None:
        """Handle an error that a repeated call does not solve. While a job exists, the attempt waits if the
        service or the bucket refuses access, because a person can restore the access, and the job goes on
        meanwhile. After any other error, the attempt ends as soon as its job has ended."""
        outcome = AttemptOutcome(
            state=AttemptState.FAILED, cause=Cause.INPUT, message=error.message, hint=error.hint
        )
        if self.journal.has_ended(self.id):
            return self._wait(error)
        if self.record.phase is not AttemptPhase.SUBMITTED:
            return self._end_by_home(outcome)
        if isinstance(error, RefusedError | TransferRefusedError | ConflictError):
            return self._wait(error)
        if self.record.verdict is None:  # kept, so that also a new process ends the job
            verdict = stopped(self.record.stop) if self.record.stop else outcome
            with self.lock:
                self.save(replace(self.record, verdict=verdict))
        job = self._context.jobs(self.record.job_id)
        if (job is not None and job.phase is BatchPhase.ENDED) or self._is_missing():
            return self._end_by_home(self.record.verdict or outcome)
        self._wait(error)
        return self._cancel()

    def _advance(self) -> None:
        if self.journal.has_ended(self.id):
            return self._clean_up()
        phase = self.record.phase
        if phase is AttemptPhase.SUBMITTED:
            return self._follow()
        if self.record.stop and not self.record.asked:
            return self._end_by_home(stopped(self.record.stop))
        if phase is AttemptPhase.NEW:
            self._stage()
        return self._submit() if self.record.nodes == 1 else self._submit_rank()

    # --- submission

    def _stage(self) -> None:
        """Upload the inputs and the manifest to the bucket."""
        context, order = self._context, self.record.order
        with self._moving("to") as progress:
            order = check_order(order, context.root, _LOG.info)
            inputs: list[InputFolder] = []
            began = context.monotonic()
            trees = () if context.parsed.shared_root else context.trees.of(order, for_each_rank=True)
            for tree in trees:
                self._data.upload(tree.manifest, tree.path, progress, self._stop)
                inputs.append(InputFolder(uri=tree.uri, manifest=tree.manifest, writable=tree.writable))
            seen = progress.look()
        manifest = manifest_of(self.record, context, tuple(inputs))
        context.exchange.write(manifest_object(self.id), manifest)
        upload = Transfer(
            transferred_bytes=seen.transferred_bytes,
            reused_bytes=max(0, seen.total_bytes - seen.transferred_bytes),
            seconds=context.monotonic() - began,
        )
        with self.lock:
            self.save(replace(self.record, phase=AttemptPhase.STAGED, upload=upload))

    def _submit_rank(self) -> None:
        """Submit the job of a gang as rank 0, when the inputs of all ranks are in the bucket. Any other rank
        becomes a node of this job."""
        gang = self.record.order.gang
        assert gang is not None
        if gang.rank == 0 and (self.record.asked or may_submit(self._others())):
            return self._submit()
        head = self._context.records(gang.id)
        if gang.rank and head is not None and head.phase is AttemptPhase.SUBMITTED:
            job_id = node_id(whole_id(head.job_id), gang.rank)
            with self.lock:
                self.save(
                    replace(
                        self.record,
                        phase=AttemptPhase.SUBMITTED,
                        job_id=job_id,
                        submitted=head.submitted,
                        account=head.account,
                    )
                )
            return None
        self.due = self._context.monotonic() + min(1.0, self._context.parsed.poll_seconds)
        return None

    def _others(self) -> tuple[BatchAttemptRecord | None, ...]:
        """Return the records of the other ranks of the gang."""
        gang = self.record.order.gang
        ranks = range(len(gang.members)) if gang is not None else ()
        names = (member_id(gang.id, rank) for rank in ranks if gang is not None and rank != gang.rank)
        return tuple(map(self._context.records, names))

    def _submit(self) -> None:
        """Submit the job, unless the service has the job from an earlier submission whose answer was lost."""
        service = self._context.service
        known = self._find() if self.record.asked else None
        if known is None:
            if self.record.stop:
                return self._end_by_home(stopped(self.record.stop))
            account = service.account()
            with self.lock:
                self.save(replace(self.record, asked=True, account=account))
            known = service.submit(request_of(self.record, self._context))
        now = self._context.now()
        job_id = known if self.record.nodes == 1 else node_id(known, 0)
        with self.lock:
            self.save(replace(self.record, phase=AttemptPhase.SUBMITTED, job_id=job_id, submitted=now))
        self.problem = ""
        return None

    def _find(self) -> str | None:
        """Return the id of the job. While the service does not answer, the job may exist, so the attempt must
        not end. Raises UnavailableError."""
        try:
            check_account(self.record, self._context)
            return self._context.service.find(self.record.name)
        except UnavailableError:
            raise
        except GridmillError as error:
            raise UnavailableError(error.message, hint=error.hint, place=error.place) from error

    # --- while the job exists

    def _follow(self) -> None:
        self._follow_rank_0()
        # before the bucket is read, because a job costs money also while the bucket does not answer
        cancel_error = self._cancel_if_asked()
        self._bring_events()
        self._ask_for_secrets()
        end = self._context.exchange.read(end_object(self.id), BatchEnd)
        if end is not None and (not end.interrupted or self.record.stop or self.record.verdict):
            self._bring_events()
            return self._finish(end)
        job = self._context.jobs(self.record.job_id)
        if job is None:
            if self._is_missing():
                return self._conclude(lost_outcome(None))
        elif job.phase is BatchPhase.ENDED:
            return self._after_job(job, end)
        else:
            self._watch_queue(job)
        if cancel_error is not None:
            raise cancel_error
        age = self._context.now() - self.record.submitted
        pace = min(_SLOWEST, 1.0 + age / _SLOWING_SECONDS)
        self.due = self._context.monotonic() + pace * self._context.parsed.poll_seconds
        return None

    def _bring_events(self) -> None:
        """Store the events that the container has uploaded, then delete their objects."""
        bucket, known = self._context.exchange.bucket, self.journal.source(self.id)
        for page in bucket.names(f"{events_folder(self.id)}/"):
            for name in sorted(page):
                if number_of(name) > known:
                    read = self._context.exchange.read(name, Events)
                    self.journal.append(read.events if read is not None else ())
                bucket.remove(name)

    def _ask_for_secrets(self) -> None:
        if self.secret_values is not None:
            self._context.exchange.write(secret_values_object(self.id), self.secret_values)
            self.secret_values, self._has_secrets = None, True
        if self.record.order.job.secrets and not self._is_asked_for_secrets:
            found = self._context.exchange.read(secret_request_object(self.id), SecretRequest)
            if found is not None:
                self._is_asked_for_secrets, self.secret_request = True, found

    def _after_job(self, job: BatchJob, end: BatchEnd | None) -> None:
        """Store the outcome of an attempt whose job has ended, and whose container has not reported the end.
        The last objects of the container may become visible late."""
        now = self._context.monotonic()
        self._ended_since = now if self._ended_since is None else self._ended_since
        never_ran = job.started is None
        if end is None and self._follows_other_job():
            return None
        if (
            (end is None or self.record.nodes > 1)
            and not never_ran
            and now - self._ended_since < min(LAST_OBJECTS_SECONDS, 4 * self._context.parsed.poll_seconds)
        ):
            self.due = now + self._context.parsed.poll_seconds
            return None
        if self.record.verdict is not None:
            return self._conclude(self.record.verdict)
        if self.record.stop:
            return self._conclude(stopped(self.record.stop))
        if not counts(self.record.order) and not self._was_alone():
            self.due = now + self._context.parsed.poll_seconds
            return None
        outcome = from_builtins(end.event.body["outcome"], AttemptOutcome) if end is not None else None
        return self._conclude(lost_outcome(job, outcome))

    def _was_alone(self) -> bool:
        head = self._context.records(self.record.order.gang.id) if self.record.order.gang else None
        return was_alone(head, self._context.jobs(head.job_id) if head is not None else None)

    def _watch_queue(self, job: BatchJob) -> None:
        """Find the reason why the job does not start, and cancel the job after the longest time in the
        queue."""
        if job.phase is not BatchPhase.QUEUED or not counts(self.record.order):
            self.problem = ""
            return
        now = self._context.now()
        queued = now - self.record.submitted  # times of the service are from another clock
        timeout = for_resource(self._context.site, self.record.settings).queue_timeout_seconds
        is_long = queued >= min(DIAGNOSIS_SECONDS, timeout / 2)
        if is_long and now - self._diagnosed_at >= min(DIAGNOSIS_SECONDS, timeout / 2):
            self._diagnosed_at = now
            request = request_of(self.record, self._context)
            self._queue_problem = self._context.service.diagnose(job, request)
        self.problem = f"{self.id}: {progress_text(job, now, self._queue_problem)}" if is_long else ""
        verdict = queue_verdict(queued, self._queue_problem, timeout, job.status)
        if verdict is not None and self.record.verdict is None:
            with self.lock:
                self.save(replace(self.record, verdict=verdict))

    def _follow_rank_0(self) -> None:
        """Follow the job of rank 0, which may follow another job than before."""
        gang = self.record.order.gang
        head = self._context.records(gang.id) if gang is not None and gang.rank else None
        if gang is None or head is None or head.phase is not AttemptPhase.SUBMITTED:
            return
        job_id = node_id(whole_id(head.job_id), gang.rank)
        if job_id != self.record.job_id:
            with self.lock:
                self._note(replace(self.record, job_id=job_id))
            self._ended_since = self._cancelled_at = None

    def _follows_other_job(self) -> bool:
        """Return whether the attempt follows another job with its name from now on. If the answer to a
        submission was lost and the service listed its job late, a second job was submitted. The first job
        runs the attempt, and the second one does nothing."""
        found = self._find()
        other = node_id(whole_id(found), 0) if found is not None and self.record.nodes > 1 else found
        if other is None or other == self.record.job_id:
            return False
        with self.lock:
            self._note(replace(self.record, job_id=other))
        self._ended_since = self._cancelled_at = None
        return True

    def _cancel_if_asked(self) -> GridmillError | None:
        """End the job of an attempt that must end. Returns the error of the service."""
        job = self._context.jobs(self.record.job_id)
        is_over = job is not None and job.phase is BatchPhase.ENDED
        if is_over or not (self.record.stop or self.record.verdict is not None):
            return None
        try:
            self._cancel()
        except GridmillError as error:
            return error
        return None

    def _cancel(self) -> None:
        now = self._context.monotonic()
        if self._cancelled_at is None or now - self._cancelled_at >= _CANCEL_AGAIN_SECONDS:
            verdict = self.record.verdict.message if self.record.verdict else ""
            why = self.record.stop or verdict or "its attempt has ended"
            self._context.service.cancel(self.record.job_id, f"Gridmill: {why}"[:200])
            self._cancelled_at = now

    # --- results

    def _finish(self, end: BatchEnd) -> None:
        """Download the results, and then report the end that the container wrote."""
        order, event = self.record.order, end.event
        outcome = from_builtins(event.body["outcome"], AttemptOutcome)
        if self.record.verdict is not None and outcome.state is not AttemptState.SUCCEEDED:
            return self._conclude(self.record.verdict)
        if end.interrupted and outcome.state is not AttemptState.SUCCEEDED:
            outcome = replace(stopped(self.record.stop), use=outcome.use)
        if self.record.nodes > 1 and order.gang is not None and not self._context.parsed.shared_root:
            outcome = with_own_files(outcome, order.gang.rank)
        download = Transfer()
        if outcome.state is AttemptState.LOST:
            # the container may have missed chunks, for example because a rule of the bucket deletes old ones
            self._data.chunks.forget_listing()
        if outcome.state is AttemptState.SUCCEEDED and counts(order) and not self._context.parsed.shared_root:
            with self._moving("from") as progress:
                outcome, download = download_result(
                    self._context, self.record, end.result, outcome, progress, self._closing()
                )
        keep_checkpoints(self._context, self.record, done=outcome.state is AttemptState.SUCCEEDED)
        transfers = AttemptTransfers(upload=self.record.upload, download=download, staging=Staging.SHARED)
        outcome = replace(outcome, transfers=transfers, batch_use=self._use())
        self._note_result(outcome)
        self.journal.append([replace(event, body={"outcome": to_builtins(outcome)})])
        return self._clean_up()

    def _closing(self) -> threading.Event:
        """Return the event that ends downloads. A stop of the attempt does not end them."""
        return threading.Event() if self.record.stop else self._stop

    def _conclude(self, outcome: AttemptOutcome) -> None:
        """End an attempt whose container has not reported its end itself."""
        keep_checkpoints(self._context, self.record, done=False)
        self._end_by_home(outcome)

    def _note_result(self, outcome: AttemptOutcome) -> None:
        """Record how the attempt has ended, which decides about the other ranks of its gang."""
        if self.record.nodes > 1:
            with self.lock:
                self.save(replace(self.record, result=outcome.state))

    def _use(self) -> BatchUse | None:
        """Return the time for which the service ran the attempt, if the service shows it."""
        job, context = self._context.jobs(self.record.job_id), self._context
        if self.record.job_id and (job is None or job.started is None):
            with suppress(GridmillError):
                job = context.service.describe([self.record.job_id]).get(self.record.job_id)
        return use_of(self.record, context, job)

    def _end_by_home(self, outcome: AttemptOutcome) -> None:
        outcome = replace(outcome, batch_use=self._use())
        self._note_result(outcome)
        event = PodEvent(
            number=0,
            attempt_id=self.id,
            token=self.record.order.token,
            time=self._context.now(),
            type=EventType.ENDED,
            body={"outcome": to_builtins(outcome)},
        )
        self.journal.append([event], is_own=True)
        self._clean_up()

    def _clean_up(self) -> None:
        """Delete the objects of an ended attempt, and wait until its job, which costs money, has ended."""
        self.problem = ""
        self.due = self._context.monotonic() + self._context.parsed.poll_seconds
        open_ranks = (one for one in self._others() if one is not None and one.result is None)
        if counts(self.record.order) and any(open_ranks):
            return  # the containers of the other ranks use objects of rank 0
        with suppress(UnavailableError):
            if self._over_since is None:
                self._context.exchange.delete_attempt(self.id)
            if self._is_job_over():
                with self.lock:
                    self.save(replace(self.record, phase=AttemptPhase.ENDED))

    def _is_job_over(self) -> bool:
        """Return whether the job of the attempt, which has ended, runs no container any more. A job that does
        not end by itself is cancelled."""
        job_id = self.record.job_id
        job = self._context.jobs(job_id)
        if not job_id or not counts(self.record.order) or (job is not None and job.phase is BatchPhase.ENDED):
            return True
        if self._is_missing():
            return True
        if self._is_late():
            self._cancel()
        return False

    def _is_missing(self) -> bool:
        """Return whether the service does not know the job any more. Raises UnavailableError if the service
        cannot know the job."""
        if self._context.missing_seconds(self.record.job_id) < LOST_SECONDS:
            return False
        check_account(self.record, self._context)
        return True

    def _is_late(self) -> bool:
        """Return whether the job should have ended by itself, because its attempt has ended."""
        now = self._context.monotonic()
        self._over_since = now if self._over_since is None else self._over_since
        return now - self._over_since >= _LAST_SECONDS

    # --- an attempt whose pod is torn down

    def end_now(self) -> bool:
        """End the job of the attempt, and return whether it has ended. Raises UnavailableError."""
        try:
            return self._end_now()
        except UnavailableError:
            raise
        except GridmillError as error:
            raise UnavailableError(error.message, hint=error.hint, place=error.place) from error

    def _end_now(self) -> bool:
        service = self._context.service
        if self.record.phase is AttemptPhase.ENDED:
            return True
        if self.record.asked and not self.record.job_id:
            self._follows_other_job()
        job_id = self.record.job_id
        if job_id:
            if not self.journal.has_ended(self.id) or self._is_late():
                self._cancel()
            job = service.describe([job_id]).get(job_id)
            if job is None:
                check_account(self.record, self._context)
            if (job is not None and job.phase is not BatchPhase.ENDED) or self._follows_other_job():
                return False
        try:
            self._context.exchange.delete_attempt(self.id)
        except GridmillError as error:
            if self.record.asked and not job_id:
                raise  # a job that the service does not list yet does nothing only without a manifest
            _LOG.warning("objects_not_deleted attempt=%s reason=%s", self.id, error)
        return True

    def forget(self) -> None:
        """Delete the record of the attempt."""
        with suppress(OSError):  # a new process deletes it
            self._path.unlink(missing_ok=True)

    def _moving(self, direction: str) -> Moving:
        return Moving(self._note_progress, direction)

    def _note_progress(self, progress: tuple[str, TransferProgress] | None) -> None:
        self._progress = progress
