"""A record store in memory, which is lost when its process ends. A MemoryStore is for tests, simulations and
dry runs."""

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import field, replace
from itertools import islice
from operator import itemgetter
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import Event, event_id, sequence_of
from gridmill.domain.run import JobRun, Run
from gridmill.domain.usage import StoreSpace
from gridmill.ports.store import (
    Change,
    DamagedRecord,
    Mark,
    Noun,
    Order,
    Put,
    Record,
    Store,
    is_live,
    key_of,
    parent_of,
)
from gridmill.stores.compare_and_set import Address, address_of, check_versions, numbers_used


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredRecord:
    record: Record
    position: int
    parent: str


def _position(kept: _StoredRecord) -> int:
    return kept.position


@dataclass(slots=True)
class MemoryStore:
    """Implements `gridmill.ports.store.Store` with dictionaries under one lock."""

    _records: dict[type[Any], dict[str, _StoredRecord]] = field(default_factory=dict)
    _children: dict[Address, set[str]] = field(default_factory=dict)
    _events: list[Event] = field(default_factory=list)
    _events_of_runs: dict[str, list[Event]] = field(default_factory=dict)
    _numbers: set[tuple[str, int]] = field(default_factory=set)
    _used: dict[str, int] = field(default_factory=dict)
    _positions: int = 0
    _sequence: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def own(self, owner: str) -> None:
        """Does nothing, because no other process can use this store. See Store."""

    def commit(self, changes: Sequence[Change], events: Sequence[Event] = ()) -> tuple[int, ...]:
        """See Store."""
        with self._lock:
            check_versions(changes, self._version)
            for change in changes:
                self._apply(change)
            for name, number in numbers_used(changes).items():
                self._used[name] = max(number, self._used.get(name, 0))
            return tuple(self._keep(event) for event in events)

    def get(self, noun: type[Any], key: str) -> Record | None:
        """See Store."""
        with self._lock:
            kept = self._records.get(noun, {}).get(key)
            return kept.record if kept else None

    def live(self) -> Iterable[Record]:
        """See Store."""
        with self._lock:
            runs = {key for key, kept in self._records.get(Run, {}).items() if is_live(kept.record.noun)}
            records = [
                kept
                for noun, by_key in self._records.items()
                if noun is not JobRun
                for kept in by_key.values()
                if is_live(kept.record.noun)
            ]
            jobs = self._records.get(JobRun, {})
            records += [jobs[key] for run_id in runs for key in self._children.get((JobRun, run_id), ())]
            return [kept.record for kept in sorted(records, key=_position)]

    def list(
        self,
        noun: type[Any],
        *,
        parent: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[Record]:
        """See Store."""
        with self._lock:
            by_key = self._records.get(noun, {})
            records = [*by_key.values()]
            if parent is not None:
                records = [by_key[key] for key in self._children.get((noun, parent), ())]
                records.sort(key=_position)
            ordered = reversed(records) if newest_first else iter(records)
            return [kept.record for kept in islice(ordered, limit)]

    def page(
        self,
        noun: type[Any],
        *,
        order: Order,
        after: Mark | None = None,
        limit: int,
        parent: str | None = None,
    ) -> Sequence[tuple[Mark, Record]]:
        """See Store."""
        with self._lock:
            found = [
                (key if order == Order.BY_KEY else kept.position, kept.record)
                for key, kept in self._records.get(noun, {}).items()
                if parent in (None, kept.parent)
            ]
        newest_first = order == Order.NEWEST_FIRST
        found.sort(key=itemgetter(0), reverse=newest_first)
        left = (one for one in found if after is None or _follows(one[0], after, newest_first=newest_first))
        return [*islice(left, limit)]

    def parents(self, noun: type[Any], among: Sequence[str]) -> Set[str]:
        """See Store."""
        with self._lock:
            return {parent for parent in among if self._children.get((noun, parent))}

    def events(
        self, *, run_id: str | None = None, job: str | None = None, after: int = 0, limit: int = 1000
    ) -> Sequence[Event]:
        """See Store."""
        with self._lock:
            kept = self._events if run_id is None else self._events_of_runs.get(run_id, [])
            start = bisect_right(kept, event_id(after), key=lambda event: event.id)
            newer = islice(kept, start, None)
            return [*islice((event for event in newer if job in (None, event.job)), limit)]

    def last_event(self, run_id: str) -> int:
        """See Store."""
        with self._lock:
            kept = self._events_of_runs.get(run_id)
            return sequence_of(kept[-1].id) if kept else 0

    def drop_events(self, run_ids: Sequence[str]) -> None:
        """See Store."""
        with self._lock:
            newest = self._events[-1].id if self._events else ""
            gone = {*run_ids}
            self._events = [e for e in self._events if e.run_id not in gone or e.id == newest]
            for run_id in gone:
                kept = [event for event in self._events_of_runs.get(run_id, ()) if event.id == newest]
                self._events_of_runs[run_id] = kept

    def space(self) -> StoreSpace:
        """Returns a space of 0, because nothing is on the disk."""
        return StoreSpace()

    def release_space(self, goes_on: Callable[[], bool] = lambda: True) -> StoreSpace:
        """Does nothing, because nothing is on the disk."""
        return StoreSpace()

    def counters(self) -> Mapping[str, int]:
        """See Store."""
        with self._lock:
            return dict(self._used)

    def use_numbers(self, used: Mapping[str, int]) -> None:
        """See Store."""
        with self._lock:
            self._used |= {name: max(number, self._used.get(name, 0)) for name, number in used.items()}

    def damage(self) -> Sequence[DamagedRecord]:
        """Returns no damage, because nothing is on the disk. See Store."""
        return ()

    def take_new_damage(self) -> Sequence[DamagedRecord]:
        """See Store."""
        return ()

    def check(self) -> Sequence[DamagedRecord]:
        """See Store."""
        return ()

    def mark_told(self) -> None:
        """See Store."""

    def close(self) -> None:
        """See Store. The records stay in memory until the store object itself is deleted."""

    def _version(self, address: Address) -> int:
        record = self.get(*address)
        return record.version if record else 0

    def _apply(self, change: Change) -> None:
        noun, key = address_of(change)
        old = self._records.setdefault(noun, {}).get(key)
        if old is not None:
            self._children[noun, old.parent].discard(key)
        if isinstance(change, Put):
            self._put(change.noun, old, change.expected + 1)
        else:
            del self._records[noun][key]

    def _put(self, noun: Noun, old: _StoredRecord | None, version: int) -> None:
        self._positions += 1
        position = old.position if old else self._positions
        kept = _StoredRecord(
            record=Record(noun=noun, version=version), position=position, parent=parent_of(noun)
        )
        self._records[type(noun)][key_of(noun)] = kept
        self._children.setdefault((type(noun), kept.parent), set()).add(key_of(noun))

    def _keep(self, event: Event) -> int:
        if event.number > 0:
            if (event.pod_id, event.number) in self._numbers:
                return 0
            self._numbers.add((event.pod_id, event.number))
        self._sequence += 1
        kept = replace(event, id=event_id(self._sequence))
        self._events.append(kept)
        self._events_of_runs.setdefault(kept.run_id, []).append(kept)
        return self._sequence


def _follows(mark: Any, after: Any, *, newest_first: bool) -> bool:  # noqa: ANN401  both are of one type
    return bool(mark < after if newest_first else mark > after)


def make() -> Store:
    """An empty store."""
    return MemoryStore()
