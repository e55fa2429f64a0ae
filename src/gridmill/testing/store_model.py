"""The simplest possible store, and random commits to compare a real one with it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any, TypeAlias

from gridmill.errors import StaleVersionError
from gridmill.model.event import Event
from gridmill.model.run import JobRun, Run
from gridmill.model.state import AttemptState, DeploymentState, JobState, RunState
from gridmill.ports.keys import is_live, key_of, parent_of
from gridmill.ports.store import Change, Delete, Noun, Put, Record, Store
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


class Model:
    """The simplest possible store: what it holds after the same commits is what any store must hold."""

    def __init__(self) -> None:
        self.records: dict[Address, Record] = {}
        self.events: list[Event] = []

    def follow(self, store: Store, changes: Sequence[Change], events: Sequence[Event] = ()) -> None:
        """Commit to both; they must agree on whether it is taken."""
        wanted = self._after(changes)
        if wanted is None:
            _assert_stale(store, changes, events)
            return
        sequences = store.commit(changes, events)
        self.records = wanted
        for event, sequence in zip(events, sequences, strict=True):
            assert (sequence == 0) == self._is_kept(event), f"{event} got sequence {sequence}"
            if sequence:
                self.events.append(replace(event, sequence=sequence))

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
        """Everything that can be read is the same."""
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


def random_changes(random: Random, model: Model) -> list[Change]:
    """Up to four changes; now and then one of them expects a wrong version."""
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
    """Up to three events, some of which may be kept already."""
    events = {}
    for _ in range(random.randint(0, 3)):
        event = an_event(random.randint(0, 40), job=random.choice("ab"))
        events[event.number] = event
    return [*events.values()]
