"""The ledger: the store and its copy in memory, changed together in one transaction per change."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from gridmill.domain.artifact import Alias, Artifact, Latest
from gridmill.domain.backfill import Chunk
from gridmill.domain.deployment import Deployment
from gridmill.domain.pipeline import Origin
from gridmill.domain.pod_protocol import Event
from gridmill.domain.provenance import CodeList, Provenance
from gridmill.domain.resource import Measurement
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.sink_overrides import Alterations
from gridmill.domain.states import FINISHED_RUNS, LIVE_ATTEMPTS, DeploymentState
from gridmill.errors import NotFoundError
from gridmill.ports.store import Delete, Noun, Put, Store, key_of
from gridmill.scheduler.snapshot import Snapshot

N = TypeVar("N")

REMEMBERED = 4096
"""Records that were written last, of kinds that each job looks up: they are not read from the store again."""
HISTORY_PER_START = 5000
"""Measurements read when the control node starts; older ones hardly change a size."""


class Transaction:
    """Changes and events that will be committed together; reads see what was put before."""

    def __init__(self, ledger: "Ledger | Transaction", now: float) -> None:
        self._ledger = ledger
        self.now = now
        self.nouns: dict[tuple[type[Any], str], Noun] = {}
        self.deletes: dict[tuple[type[Any], str], Delete] = {}
        self.events: list[Event] = []
        self.before: dict[Callable[[], None], None] = {}
        self.after: list[Callable[[], None]] = []

    def get(self, kind: type[N], key: str) -> N | None:
        """The noun as this transaction will leave it; only what is live is known."""
        pending = self.nouns.get((kind, key))
        return cast(N, pending) if pending is not None else self._ledger.find(kind, key)

    def put(self, *nouns: Noun) -> None:
        """Write nouns; a change of state of a run or job becomes an event."""
        for noun in nouns:
            key = (type(noun), key_of(noun))
            self._tell(noun, self.get(*key))
            self.nouns[key] = noun

    def delete(self, kind: type[Any], key: str) -> None:
        """Remove a noun that is in memory."""
        self.deletes[(kind, key)] = Delete(noun=kind, key=key, expected=self._ledger.version(kind, key))

    def find(self, kind: type[N], key: str) -> N | None:
        """See get: what a transaction within this one starts from."""
        return self.get(kind, key)

    def version(self, kind: type[Any], key: str) -> int:
        """See Ledger."""
        return self._ledger.version(kind, key)

    def within(self) -> "Transaction":
        """A transaction that becomes part of this one when it is joined, and else is as if never begun."""
        return Transaction(self, self.now)

    def join(self, inner: "Transaction") -> None:
        """Take over what was put within."""
        self.nouns.update(inner.nouns)
        self.deletes.update(inner.deletes)
        self.events.extend(inner.events)
        self.before.update(inner.before)
        self.after.extend(inner.after)

    def first(self, act: Callable[[], None]) -> None:
        """Do `act` before this is committed, once, however often it was said."""
        self.before[act] = None

    def then(self, act: Callable[[], None]) -> None:
        """Do `act` once this is committed: the world is touched only after the record."""
        self.after.append(act)

    def _tell(self, noun: Noun, old: Noun | None) -> None:
        if not isinstance(noun, Run | JobRun):
            return
        before = old if isinstance(old, Run | JobRun) else None
        if before is not None and (before.state, before.message) == (noun.state, noun.message):
            return
        what, run_id, job = (
            ("run", noun.id, "") if isinstance(noun, Run) else ("job", noun.run_id, noun.job.name)
        )
        body = {"what": what, "id": noun.id, "state": noun.state.value, "message": noun.message}
        self.events.append(Event(sequence=0, time=self.now, type="state", run_id=run_id, job=job, body=body))


class Ledger:
    """One writer per store: the versions it holds are the store's, or a commit fails and it loads again."""

    def __init__(self, store: Store, owner: str = "") -> None:
        """`owner` names the control node that will write; without one the store is only read."""
        self.store = store
        self.owner = owner
        self.snapshot = Snapshot()
        self.doubtful = True
        self._versions: dict[tuple[type[Any], str], int] = {}
        self._written: dict[tuple[type[Any], str], tuple[Noun, int]] = {}
        self.listeners: list[Callable[[], None]] = []

    def load(self) -> None:
        """Read everything that is live. Also after a commit whose fate is not known.

        Raises StoreInUseError when another control node has the store now.
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

    def find(self, kind: type[N], key: str) -> N | None:
        """A live noun from memory."""
        return cast("N | None", self.snapshot.find(kind, key))

    def version(self, kind: type[Any], key: str) -> int:
        """The version of a record in memory; 0 when it is not."""
        return self._versions.get((kind, key), 0)

    def fetch(self, kind: type[N], key: str) -> N:
        """A noun from the store, made ready to be changed. Raises NotFoundError."""
        found = self.look_up(kind, key)
        if found is None:
            raise NotFoundError(f"there is no {kind.__name__.lower()} {key!r}")
        return found

    def look_up(self, kind: type[N], key: str) -> N | None:
        """A noun from the store, made ready to be changed; None where there is none."""
        known = self._written.get((kind, key))
        if known is None:
            record = self.store.get(kind, key)
            if record is None:
                return None
            known = record.noun, record.version
        noun, self._versions[(kind, key)] = known
        return cast(N, noun)

    def begin(self, now: float) -> Transaction:
        """An empty transaction."""
        return Transaction(self, now)

    def commit(self, transaction: Transaction) -> None:
        """Commit, take over in memory, then act. Raises what the store raises; then nothing was acted."""
        nouns = transaction.nouns
        if nouns or transaction.events or transaction.deletes:
            self._write(transaction)
            for key, noun in nouns.items():
                self._take_over(key, noun)
            for kind, name in transaction.deletes:
                self._versions.pop((kind, name), None)
                self._written.pop((kind, name), None)
                self.snapshot.remove(kind, name)
            for listener in self.listeners:
                listener()
        for act in transaction.after:
            act()

    def _write(self, transaction: Transaction) -> None:
        puts = [Put(noun=n, expected=self._versions.get(k, 0)) for k, n in transaction.nouns.items()]
        try:
            for act in transaction.before:
                act()
            self.store.commit([*puts, *transaction.deletes.values()], transaction.events)
        except BaseException:
            self.doubtful = True
            raise

    def _take_over(self, key: tuple[type[Any], str], noun: Noun) -> None:
        self._versions[key] = self._versions.get(key, 0) + 1
        self._written.pop(key, None)
        forget: Sequence[tuple[type[Any], str]] = ()
        if isinstance(noun, Run) and noun.state in FINISHED_RUNS:
            forget = [key, *((JobRun, job.id) for job in self.snapshot.job_runs_of(noun.id))]
        elif _is_over(noun):
            forget = [key]
            self._remember(key, noun)
        self.snapshot.put(noun)
        for old in forget:
            self._versions.pop(old, None)

    def _remember(self, key: tuple[type[Any], str], noun: Noun) -> None:
        """What is looked up soon, when the job ends or runs next. What cleaning deletes beside the ledger is
        not among it."""
        if isinstance(noun, Latest) or (isinstance(noun, Provenance) and not noun.artifact):
            self._written[key] = noun, self._versions[key]
        if len(self._written) > REMEMBERED:
            del self._written[next(iter(self._written))]


def _is_over(noun: Noun) -> bool:
    match noun:
        case Artifact() | Alias() | Alterations() | Measurement() | Latest() | Origin():
            return True
        case Provenance() | CodeList():
            return True
        case Chunk():
            return not noun.left
        case Attempt():
            return noun.state not in LIVE_ATTEMPTS
        case Deployment():
            return noun.state == DeploymentState.GONE
        case _:
            return False
