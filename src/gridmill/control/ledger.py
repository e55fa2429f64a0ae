"""This module has the class `Ledger`, which consists of the store and a copy of its records in memory. Each
transaction changes both together."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any, TypeAlias, TypeVar, cast

from gridmill.control.event_tails import EventTails
from gridmill.domain.artifact import Alias, Artifact, Latest
from gridmill.domain.backfill import Chunk
from gridmill.domain.deployment import Deployment
from gridmill.domain.job_log import LogRecord
from gridmill.domain.lease import Lease
from gridmill.domain.pipeline import Origin
from gridmill.domain.pod_protocol import Event
from gridmill.domain.provenance import CodeList, Provenance
from gridmill.domain.resource import Measurement
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.service_size import Calibration
from gridmill.domain.sink_overrides import Alterations
from gridmill.domain.states import FINISHED_RUNS, LIVE_ATTEMPTS, DeploymentState
from gridmill.errors import NotFoundError
from gridmill.ports.logs import LogStore
from gridmill.ports.store import Delete, Noun, Put, Store, key_of, parent_of
from gridmill.scheduler.snapshot import Snapshot

N = TypeVar("N")
Key: TypeAlias = tuple[type[Any], str]
"""The class and the key of a record."""

REMEMBERED = 4096
"""The number of the newest written records that are held in memory, for the kinds of records that each job
looks up. Because these records are in memory, they do not have to be read from the store again."""
HISTORY_PER_START = 5000
"""The number of measurements that are read when the control node starts; older measurements hardly change
the size of a job."""


class Transaction:
    """Changes and events that are committed together. A read within a transaction also returns the changes
    of this transaction."""

    def __init__(self, ledger: "Ledger | Transaction", now: float) -> None:
        self._ledger = ledger
        self.now = now
        self.nouns: dict[Key, Noun] = {}
        self.deletes: dict[Key, Delete] = {}
        self.events: list[Event] = []
        self.logs: list[LogRecord] = []
        self.before: dict[Callable[[], None], None] = {}
        self.after: list[Callable[[], None]] = []

    def get(self, kind: type[N], key: str) -> N | None:
        """Return the record as this transaction will store it. The result is None if the record is not
        live."""
        pending = self.nouns.get((kind, key))
        return cast(N, pending) if pending is not None else self._ledger.find(kind, key)

    def put(self, *nouns: Noun) -> None:
        """Write records to the transaction. A change in the state of a run or job also adds an event."""
        for noun in nouns:
            key = (type(noun), key_of(noun))
            self._add_state_event(noun, self.get(*key))
            self.nouns[key] = noun

    def delete(self, kind: type[Any], key: str) -> None:
        """Delete a record that is in memory."""
        self.deletes[(kind, key)] = Delete(noun=kind, key=key, expected=self._ledger.version(kind, key))

    def find(self, kind: type[N], key: str) -> N | None:
        """Return the record as this transaction will store it (see `get`). This method is called by nested
        transactions."""
        return self.get(kind, key)

    def version(self, kind: type[Any], key: str) -> int:
        """Return the version number of a record in memory. The result is 0 if the record is not in
        memory."""
        return self._ledger.version(kind, key)

    def within(self) -> "Transaction":
        """Return a nested transaction. The method `join` adds the changes of the nested transaction to this
        transaction. Without a call of `join`, the nested transaction has no effect."""
        return Transaction(self, self.now)

    def join(self, inner: "Transaction") -> None:
        """Add the changes of a nested transaction."""
        self.nouns.update(inner.nouns)
        self.deletes.update(inner.deletes)
        self.events.extend(inner.events)
        self.logs.extend(inner.logs)
        self.before.update(inner.before)
        self.after.extend(inner.after)

    def first(self, act: Callable[[], None]) -> None:
        """Register the function `act`, which is called before the commit. If the same function is registered
        several times, it is called only once."""
        self.before[act] = None

    def then(self, act: Callable[[], None]) -> None:
        """Call `act` after the commit of the transaction, so that no effect outside the store happens before
        its record is written."""
        self.after.append(act)

    def _add_state_event(self, noun: Noun, old: Noun | None) -> None:
        if not isinstance(noun, Run | JobRun):
            return
        before = old if isinstance(old, Run | JobRun) else None
        if before is not None and (before.state, before.message) == (noun.state, noun.message):
            return
        what, run_id, job = (
            ("run", noun.id, "") if isinstance(noun, Run) else ("job", noun.run_id, noun.job.name)
        )
        body = {"what": what, "id": noun.id, "state": noun.state.value, "message": noun.message}
        self.events.append(Event(time=self.now, type="state", run_id=run_id, job=job, body=body))


class Ledger:
    """The store of a control node and its copy in memory. The `Ledger` is the only writer of the store. If
    the versions of records in the store differ from the versions in memory, a commit fails and the `Ledger`
    loads all records from the store again.

    A tick stages the transactions of its steps. Staging a transaction changes the memory immediately, so
    that the next step sees the changes. One commit then writes all staged transactions to the store. The
    effects of the transactions are executed only after this commit. If the commit fails, the records in
    memory return to their earlier state. The thread that stages transactions holds the node's lock until it
    has written these transactions to the store.
    """

    def __init__(self, store: Store, logs: LogStore, owner: str = "") -> None:
        """`owner` is the control node that will write to the store. Without an owner, the store is only
        read."""
        self.store = store
        self.logs = logs
        self.tails = EventTails()
        self.owner = owner
        self.snapshot = Snapshot()
        self.doubtful = True
        self.text_size = 0
        """The number of characters of log text in the last commit."""
        self._versions: dict[Key, int] = {}
        self._written: dict[Key, tuple[Noun, int]] = {}
        self._staged: Transaction | None = None
        self._before: dict[Key, tuple[object | None, int]] = {}
        self._stager = 0
        self._without_provenance: set[str] = set()
        self.listeners: list[Callable[[], None]] = []
        self.followers: list[Callable[[Collection[Noun], Collection[Key]], None]] = []

    def load(self) -> None:
        """Read all live records from the store. The `Ledger` loads the records at the start, and after a
        commit whose success is unknown.

        Raises StoreInUseError if another control node owns the store.
        """
        if self.owner:
            self.store.own(self.owner)
        snapshot, versions = Snapshot(), {}
        for measurement in reversed(self.store.list(Measurement, limit=HISTORY_PER_START, newest_first=True)):
            snapshot.put(measurement.noun)
        for record in self.store.live():
            snapshot.put(record.noun)
            versions[(type(record.noun), key_of(record.noun))] = record.version
        self.snapshot, self._versions, self.doubtful = snapshot, versions, False
        self._written.clear()
        self._staged = None
        self._before.clear()
        self._without_provenance.clear()
        self.tails.clear()

    def look_for_provenances(self, names: Sequence[str]) -> None:
        """Find with one query for which of these names the store has no Provenance. The result of this call
        replaces the result of the previous call."""
        staged = {noun.name for noun in self._own_staged().values() if isinstance(noun, Provenance)}
        self._without_provenance = {*names} - self.store.parents(Provenance, names) - staged

    def has_no_provenance(self, name: str) -> bool:
        """Return whether the store is known to have no Provenance of that name."""
        return name in self._without_provenance

    def find(self, kind: type[N], key: str) -> N | None:
        """Return a live record from memory."""
        return cast("N | None", self.snapshot.find(kind, key))

    def version(self, kind: type[Any], key: str) -> int:
        """Return the version number of a record in memory. The result is 0 if the record is not in
        memory."""
        return self._versions.get((kind, key), 0)

    def fetch(self, kind: type[N], key: str) -> N:
        """Return a record from the store, ready to be changed. Raises NotFoundError."""
        result = self.look_up(kind, key)
        if result is None:
            raise NotFoundError(f"there is no {kind.__name__.lower()} {key!r}")
        return result

    def look_up(self, kind: type[N], key: str) -> N | None:
        """Return a record from the store, ready to be changed. The result is None if there is no such
        record."""
        if (staged := self._own_staged().get((kind, key))) is not None:
            return cast(N, staged)
        written = self._written.get((kind, key))
        if written is None:
            record = self.store.get(kind, key)
            if record is None:
                return None
            written = record.noun, record.version
        noun, self._versions[(kind, key)] = written
        return cast(N, noun)

    def read(self, kind: type[N], key: str) -> N | None:
        """Return a live or finished record, either the staged record or, if it is not staged, the record in
        the store."""
        if (staged := self._own_staged().get((kind, key))) is not None:
            return cast(N, staged)
        record = self.store.get(kind, key)
        return record.noun if record is not None and isinstance(record.noun, kind) else None

    def read_all(
        self,
        kind: type[N],
        *,
        parent: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> tuple[N, ...]:
        """Return records from the store, after all staged records were written."""
        staged = self._own_staged().values()
        if any(isinstance(noun, kind) and parent in (None, parent_of(noun)) for noun in staged):
            self.flush()
        records = self.store.list(kind, parent=parent, limit=limit, newest_first=newest_first)
        return tuple(record.noun for record in records if isinstance(record.noun, kind))

    def _own_staged(self) -> Mapping[Key, Noun]:
        """Return the staged records of this thread. The result is empty for a thread that reads without the
        lock, because it sees only committed records."""
        return self._staged.nouns if self._staged is not None and self._stager == get_ident() else {}

    def begin(self, now: float) -> Transaction:
        """Return an empty transaction, which can change the store and its copy in memory."""
        return Transaction(self, now)

    def commit(self, transaction: Transaction) -> None:
        """Commit the transaction, update the records in memory, and then execute the effects of the
        transaction. Raises the errors of the store. If the commit fails, none of the effects of the
        transaction, such as messages to pods, is executed."""
        self.stage(transaction)
        self.flush()

    def stage(self, transaction: Transaction) -> None:
        """Apply a transaction to the records in memory. The next `flush` writes the transaction to the
        store."""
        if transaction.deletes and self._staged is not None:
            self.flush()  # flushed first, because deletes compare with the versions in the store
        if self._staged is None:
            self._staged, self._stager = Transaction(self, transaction.now), get_ident()
        self._staged.join(transaction)
        for key, noun in transaction.nouns.items():
            self._note_before(key)
            self._versions[key] = self._before[key][1] + 1
            self._written.pop(key, None)
            over = self._ended_with(*key) if _is_over(noun) else ()
            if isinstance(noun, Latest | Provenance):
                self._remember(key, noun)
            # left out, because a committed measurement cannot be removed from the history
            if not isinstance(noun, Measurement):
                self.snapshot.put(noun)
            for old in over:
                self._versions.pop(old, None)
        for key in transaction.deletes:
            self._note_before(key)
            self._versions.pop(key, None)
            self._written.pop(key, None)
            self.snapshot.remove(*key)

    def flush(self) -> None:
        """Write all staged transactions in one commit, then execute their effects. Raises the errors of the
        store; if an error is raised, no effect was executed, and the memory returns to its earlier state."""
        while self._staged is not None:
            staged, self._staged = self._staged, None
            if staged.nouns or staged.events or staged.deletes or staged.logs:
                self._write(staged)
            for act in staged.after:
                act()

    @contextmanager
    def staging(self) -> Iterator[None]:
        """Return a context manager that writes all staged transactions to the store at its end. The
        transactions are written even if a step failed, because the transactions of earlier steps are
        complete."""
        try:
            yield
        finally:
            if not self.doubtful:
                self.flush()

    def _write(self, staged: Transaction) -> None:
        before = self._before
        puts = [Put(noun=noun, expected=before[key][1]) for key, noun in staged.nouns.items()]
        try:
            for act in staged.before:
                act()
            self.text_size = sum(record.packed_size or len(record.text) for record in staged.logs)
            if staged.logs:  # before the commit: if a text is sent again, it is stored only once
                self.logs.append(staged.logs)
            sequences = self.store.commit([*puts, *staged.deletes.values()], staged.events)
        except BaseException:
            self.doubtful = True
            self.tails.clear()
            self._take_back()
            raise
        self._before = {}
        self.tails.add(staged.events, sequences)
        for (kind, key), noun in staged.nouns.items():
            if kind is Measurement:
                self.snapshot.put(noun)
            elif kind is Run and _is_over(noun):
                self.logs.finish(key)
        for follower in self.followers:
            follower(staged.nouns.values(), staged.deletes.keys())
        for listener in self.listeners:
            listener()

    def _take_back(self) -> None:
        for key, (noun, version) in self._before.items():
            if noun is not None:
                self._versions[key] = version
                self.snapshot.put(noun)
            else:
                self._versions.pop(key, None)
                self.snapshot.remove(*key)
        self._before = {}
        self._written.clear()

    def _note_before(self, key: Key) -> None:
        if key not in self._before:
            self._before[key] = (self.snapshot.find(*key), self._versions.get(key, 0))

    def _ended_with(self, kind: type[Any], key: str) -> Sequence[Key]:
        """Return the keys of the records that are no longer live when this record ends. The result has the
        key of the record itself and, if the record is a run, the keys of its jobs."""
        if kind is not Run:
            return [(kind, key)]
        over: list[Key] = [(kind, key), *((JobRun, job.id) for job in self.snapshot.job_runs_of(key))]
        for old in over:
            self._note_before(old)
        return over

    def _remember(self, key: Key, noun: Noun) -> None:
        """Hold a record in memory that will be looked up soon: when its job ends, or when the job runs the
        next time. Records that garbage collection deletes from the store directly are not held in memory."""
        if isinstance(noun, Provenance):
            self._without_provenance.discard(noun.name)
        if isinstance(noun, Latest) or (isinstance(noun, Provenance) and not noun.artifact):
            self._written[key] = noun, self._versions[key]
        if len(self._written) > REMEMBERED:
            del self._written[next(iter(self._written))]


_ONCE_WRITTEN = frozenset(
    (Artifact, Alias, Alterations, Measurement, Latest, Origin, Provenance, CodeList, Calibration)
)
"""The classes of records that are not live: they are read from the store when they are needed."""


def _is_over(noun: Noun) -> bool:
    if type(noun) in _ONCE_WRITTEN:
        return True
    match noun:
        case Attempt():
            return noun.state not in LIVE_ATTEMPTS
        case Run():
            return noun.state in FINISHED_RUNS
        case Chunk():
            return not noun.left
        case Deployment():
            return noun.state == DeploymentState.GONE
        case Lease():
            return not noun.is_open
        case _:
            return False
