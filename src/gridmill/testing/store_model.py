"""The simplest possible record store, random commits to compare a real store with it, and checks of
concurrency.

The checks of concurrency use several threads at the same time, or several stores on one database.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any, TypeAlias

from gridmill.domain.pod_protocol import Event, event_id, sequence_of
from gridmill.domain.resource import Resource
from gridmill.domain.run import JobRun, Run
from gridmill.domain.states import AttemptState, DeploymentState, JobState, RunState
from gridmill.errors import StaleVersionError
from gridmill.ports.store import Change, Delete, Noun, Put, Record, Store, is_live, key_of, parent_of
from gridmill.testing.store_samples import (
    a_deployment,
    a_job_run,
    a_resource,
    a_run,
    an_artifact,
    an_attempt,
    an_event,
    one_of_each,
)

Address: TypeAlias = tuple[type[Any], str]


class StoreModel:
    """The simplest possible record store. After the same commits, any real store must contain the same
    records."""

    def __init__(self) -> None:
        self.records: dict[Address, Record] = {}
        self.events: list[Event] = []

    def follow(self, store: Store, changes: Sequence[Change], events: Sequence[Event] = ()) -> None:
        """Makes the same commit in both stores. Both stores must agree on whether the commit is accepted."""
        wanted = self._after(changes)
        if wanted is None:
            _assert_stale(store, changes, events)
            return
        sequences = store.commit(changes, events)
        self.records = wanted
        for event, sequence in zip(events, sequences, strict=True):
            assert (sequence == 0) == self._is_kept(event), f"{event} got sequence {sequence}"
            if sequence:
                self.events.append(replace(event, id=event_id(sequence)))

    def _is_kept(self, event: Event) -> bool:
        same = ((e.pod_id, e.number) == (event.pod_id, event.number) for e in self.events)
        return event.number > 0 and any(same)

    def _after(self, changes: Sequence[Change]) -> dict[Address, Record] | None:
        records = dict(self.records)
        for change in changes:
            put = change.noun if isinstance(change, Put) else None
            key = (
                (type(change.noun), key_of(change.noun))
                if isinstance(change, Put)
                else (change.noun, change.key)
            )
            version = records[key].version if key in records else 0
            if version != change.expected or (put is None and version == 0):
                return None
            if put is None:
                del records[key]
            else:
                records[key] = Record(noun=put, version=version + 1)
        return records

    def compare(self, store: Store) -> None:
        """Compares everything that can be read. Both stores must return the same values."""
        for noun in {kind for kind, _ in self.records} | {type(noun) for noun in one_of_each()}:
            mine = [record for (kind, _), record in self.records.items() if kind is noun]
            assert [*store.list(noun)] == mine
            for parent in {parent_of(record.noun) for record in mine}:
                children = [record for record in mine if parent_of(record.noun) == parent]
                assert [*store.list(noun, parent=parent)] == children
                newest = [*islice(reversed(children), 2)]
                assert [*store.list(noun, parent=parent, newest_first=True, limit=2)] == newest
        assert [*store.events(limit=10**6)] == self.events
        assert {_name(r): r for r in store.live()} == {_name(r): r for r in self._live()}

    def _live(self) -> Iterable[Record]:
        for record in self.records.values():
            run = record
            if isinstance(record.noun, JobRun):
                run = self.records.get((Run, record.noun.run_id), record)
                if run is record:
                    continue
            if is_live(run.noun):
                yield record


def _name(record: Record) -> tuple[str, str]:
    return type(record.noun).__name__, key_of(record.noun)


def _assert_stale(store: Store, changes: Sequence[Change], events: Sequence[Event]) -> None:
    try:
        store.commit(changes, events)
    except StaleVersionError:
        return
    raise AssertionError(f"a stale commit was taken: {changes}")


def random_changes(random: Random, model: StoreModel) -> list[Change]:
    """Returns up to four random changes. Some of the changes expect a wrong version."""
    changes: list[Change] = []
    for _ in range(random.randint(0, 4)):
        noun = _random_noun(random)
        record = model.records.get((type(noun), key_of(noun)))
        expected = (record.version if record else 0) + random.choice((0,) * 9 + (1,))
        if record and random.random() < 0.2:
            changes.append(Delete(noun=type(noun), key=key_of(noun), expected=expected))
        else:
            changes.append(Put(noun=noun, expected=expected))
    return changes


def _random_noun(random: Random) -> Noun:
    number = random.randint(1, 3)
    match random.randrange(6):
        case 0:
            return a_resource(f"r{number}", gpus=random.randint(0, 9))
        case 1:
            return a_run(number, state=random.choice([*RunState]))
        case 2:
            return a_job_run(f"weather-{number}", random.choice("ab"), state=random.choice([*JobState]))
        case 3:
            return an_attempt(number, state=random.choice([*AttemptState]))
        case 4:
            return a_deployment(number, state=random.choice([*DeploymentState]))
        case _:
            return an_artifact(number, random.choice(("weather/a", "weather/b")))


def random_events(random: Random) -> list[Event]:
    """Returns up to three random events, some of which may already be stored."""
    events = {}
    for _ in range(random.randint(0, 3)):
        event = an_event(random.randint(0, 40), job=random.choice("ab"))
        events[event.number] = event
    return [*events.values()]


_THREADS = 6
_BATCHES = 20
_PATIENCE_SECONDS = 120.0


def check_one_of_many_threads_wins(open_store: Callable[[], Store]) -> None:
    """Checks that exactly one of several threads succeeds if all of them change the same version of a record
    at the same time."""
    with closing(open_store()) as store:
        store.commit([Put(noun=a_resource(), expected=0)])
        for version in range(1, 11):
            winners = _race(Put(noun=a_resource(gpus=version), expected=version), [store] * _THREADS)
            assert winners == 1
        assert store.get(Resource, a_resource().name) == Record(noun=a_resource(gpus=10), version=11)


def check_one_of_many_threads_makes_it(open_store: Callable[[], Store]) -> None:
    """Checks that exactly one of several threads succeeds if all of them create the same record at the same
    time."""
    with closing(open_store()) as store:
        for number in range(1, 11):
            assert _race(Put(noun=a_run(number), expected=0), [store] * _THREADS) == 1


def check_readers_see_whole_commits(open_store: Callable[[], Store]) -> None:
    """Checks that readers never see only one record of a pair, or an event out of order, while another
    thread writes pairs of records."""
    with closing(open_store()) as store:
        store.commit([Put(noun=a_resource(name), expected=0) for name in "ab"])
        done = threading.Event()
        problems: list[str] = []

        def read() -> None:
            last, number = 0, 0
            while not done.is_set():
                gpus = {r.noun.gpus for r in store.list(Resource) if isinstance(r.noun, Resource)}
                if len(gpus) != 1:
                    problems.append(f"half a commit: {gpus}")
                for event in store.events(after=last):
                    if event.number != number + 1:
                        problems.append(f"event {event.number} comes after {number}")
                    last, number = sequence_of(event.id), event.number

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for version in range(1, 101):
            pair = [Put(noun=a_resource(name, gpus=version), expected=version) for name in "ab"]
            store.commit(pair, [an_event(version)])
        done.set()
        for reader in readers:
            reader.join(_PATIENCE_SECONDS)
        assert not problems, problems[:3]


def check_many_stores_race(open_store: Callable[[], Store]) -> None:
    """Checks several stores that commit at the same time: exactly one succeeds in each round, its event is
    stored, and no sequence number is used twice."""
    stores = [open_store() for _ in range(3)]
    try:
        stores[0].commit([Put(noun=a_resource(), expected=0)])
        for version in range(1, 11):
            winners = _race(Put(noun=a_resource(gpus=version), expected=version), stores)
            assert winners == 1
        sequences = [sequence_of(event.id) for event in stores[1].events()]
        assert len(sequences) == len(set(sequences)) == 10
    finally:
        for store in stores:
            store.close()


def check_events_of_many_stores_at_once(open_store: Callable[[], Store]) -> None:
    """Checks that commits that contain only events never make each other fail. Readers that use `after` must
    not miss any of these events."""
    stores = [open_store() for _ in range(3)]
    try:

        def keep(index: int) -> None:
            for _ in range(_BATCHES):
                stores[index].commit([], [an_event(), an_event()])

        def read(wanted: int) -> None:
            deadline = time.monotonic() + _PATIENCE_SECONDS
            seen: list[int] = []
            while len(seen) < wanted and time.monotonic() < deadline:
                seen += [sequence_of(event.id) for event in stores[0].events(after=seen[-1] if seen else 0)]
            assert seen == [sequence_of(event.id) for event in stores[0].events()], "a reader missed an event"

        wanted = 2 * _BATCHES * len(stores)
        _at_once(lambda index: keep(index) if index < len(stores) else read(wanted), len(stores) + 1)
        assert len(stores[0].events()) == wanted
    finally:
        for store in stores:
            store.close()


def _race(change: Change, stores: Sequence[Store]) -> int:
    """Returns how many of the stores, each in its own thread, could commit the change and an event."""
    won: list[int] = []

    def take_part(index: int) -> None:
        try:
            stores[index].commit([change], [an_event()])
            won.append(index)
        except StaleVersionError:
            pass

    _at_once(take_part, len(stores))
    return len(won)


def _at_once(act: Callable[[int], None], count: int) -> None:
    """Calls `act` in this number of threads, which start at the same time. Raises the first error of any of
    the threads."""
    start = threading.Barrier(count)

    def take_part(index: int) -> None:
        start.wait(_PATIENCE_SECONDS)
        act(index)

    with ThreadPoolExecutor(count) as threads:
        for outcome in [threads.submit(take_part, index) for index in range(count)]:
            outcome.result(_PATIENCE_SECONDS)
