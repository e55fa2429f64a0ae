"""Injects faults into commits to the record store: a commit fails before or after it was made, is repeated,
or the process is killed."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from enum import StrEnum
from random import Random
from typing import Any, Protocol

from gridmill.domain.pod_protocol import Event
from gridmill.domain.usage import StoreSpace
from gridmill.errors import InputError, StorageError
from gridmill.ports.store import Change, DamagedRecord, Mark, Order, Record, Store


class Fault(StrEnum):
    """The fault that is injected into one commit."""

    NONE = "none"
    FAIL_BEFORE = "fail-before"
    """Nothing is written, and StorageError is raised."""
    FAIL_AFTER = "fail-after"
    """Everything is written, but StorageError is raised."""
    REPEAT = "repeat"
    """The commit is sent twice, as by a client that lost the first answer. The second answer is returned."""
    KILL_BEFORE = "before-commit"
    """This process receives SIGKILL before the write."""
    KILL_AFTER = "after-commit"
    """This process receives SIGKILL after the write."""


class FaultSchedule(Protocol):
    """Selects the fault for each commit, in order."""

    def next(self) -> Fault:
        """Returns the fault for the next commit."""


class FaultScript:
    """Injects the given faults in order. Later commits have no faults."""

    def __init__(self, *faults: Fault) -> None:
        self._faults = iter(faults)

    def next(self) -> Fault:
        """Returns the fault for the next commit; see FaultSchedule."""
        return next(self._faults, Fault.NONE)


class FaultySchedule:
    """Selects random faults, which are the same for the same seed. The other arguments are the probabilities
    of the faults."""

    def __init__(
        self, seed: int, *, fail_before: float = 0.0, fail_after: float = 0.0, repeat: float = 0.0
    ) -> None:
        self._random = Random(seed)
        faults = (Fault.FAIL_BEFORE, Fault.FAIL_AFTER, Fault.REPEAT, Fault.NONE)
        weights = (fail_before, fail_after, repeat, 1.0 - fail_before - fail_after - repeat)
        self._faults, self._weights = faults, weights

    def next(self) -> Fault:
        """Returns the fault for the next commit; see FaultSchedule."""
        return self._random.choices(self._faults, self._weights)[0]


class KillAt:
    """Kills the process at the Nth commit, counted from 1. The parameter is the text `before-commit:N` or
    `after-commit:N`. Raises InputError."""

    def __init__(self, fault: str) -> None:
        where, _, number = fault.partition(":")
        if where not in (Fault.KILL_BEFORE, Fault.KILL_AFTER) or not number.isdecimal() or int(number) < 1:
            raise InputError(
                f"{fault!r} is not a fault", hint="Write before-commit:N or after-commit:N, with N from 1."
            )
        self._fault, self._left = Fault(where), int(number)

    def next(self) -> Fault:
        """Returns the fault for the next commit; see FaultSchedule."""
        self._left -= 1
        return self._fault if self._left == 0 else Fault.NONE


def kill_self() -> None:
    """Ends this process in the same way as a power failure: without signal handlers, and without flushing
    buffers."""
    os.kill(os.getpid(), signal.SIGKILL)


class FaultyStore:
    """A record store whose commits have the faults that `schedule` selects. The schedule can be replaced.
    Reads have no faults."""

    def __init__(self, store: Store, schedule: FaultSchedule, kill: Callable[[], None] = kill_self) -> None:
        self.store = store
        self.schedule = schedule
        self._kill = kill
        self._lock = threading.Lock()

    def own(self, owner: str) -> None:
        """See Store."""
        self.store.own(owner)

    def commit(self, changes: Sequence[Change], events: Sequence[Event] = ()) -> tuple[int, ...]:
        """See Store."""
        with self._lock:
            fault = self.schedule.next()
        self._before(fault)
        sequences = self.store.commit(changes, events)
        if fault == Fault.REPEAT:
            sequences = self.store.commit(changes, events)
        self._after(fault)
        return sequences

    def _before(self, fault: Fault) -> None:
        if fault == Fault.KILL_BEFORE:
            self._kill()
        if fault == Fault.FAIL_BEFORE:
            raise StorageError("injected: failed before the commit")

    def _after(self, fault: Fault) -> None:
        if fault == Fault.KILL_AFTER:
            self._kill()
        if fault == Fault.FAIL_AFTER:
            raise StorageError("injected: failed after the commit")

    def get(self, noun: type[Any], key: str) -> Record | None:
        """See Store."""
        return self.store.get(noun, key)

    def live(self) -> Iterable[Record]:
        """See Store."""
        return self.store.live()

    def list(
        self,
        noun: type[Any],
        *,
        parent: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[Record]:
        """See Store."""
        return self.store.list(noun, parent=parent, limit=limit, newest_first=newest_first)

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
        return self.store.page(noun, order=order, after=after, limit=limit, parent=parent)

    def parents(self, noun: type[Any], among: Sequence[str]) -> Set[str]:
        """See Store."""
        return self.store.parents(noun, among)

    def events(
        self, *, run_id: str | None = None, job: str | None = None, after: int = 0, limit: int = 1000
    ) -> Sequence[Event]:
        """See Store."""
        return self.store.events(run_id=run_id, job=job, after=after, limit=limit)

    def last_event(self, run_id: str) -> int:
        """See Store."""
        return self.store.last_event(run_id)

    def drop_events(self, run_ids: Sequence[str]) -> None:
        """See Store."""
        self.store.drop_events(run_ids)

    def space(self) -> StoreSpace:
        """See Store."""
        return self.store.space()

    def release_space(self, goes_on: Callable[[], bool] = lambda: True) -> StoreSpace:
        """See Store."""
        return self.store.release_space(goes_on)

    def counters(self) -> Mapping[str, int]:
        """See Store."""
        return self.store.counters()

    def use_numbers(self, used: Mapping[str, int]) -> None:
        """See Store."""
        self.store.use_numbers(used)

    def damage(self) -> Sequence[DamagedRecord]:
        """See Store."""
        return self.store.damage()

    def take_new_damage(self) -> Sequence[DamagedRecord]:
        """See Store."""
        return self.store.take_new_damage()

    def check(self) -> Sequence[DamagedRecord]:
        """See Store."""
        return self.store.check()

    def mark_told(self) -> None:
        """See Store."""
        self.store.mark_told()

    def close(self) -> None:
        """See Store."""
        self.store.close()


def with_faults(store: Store, fault: str) -> Store:
    """Returns the given store, or a store that kills this process at a commit (`before-commit:N` or
    `after-commit:N`).

    Raises InputError for any other `fault`.
    """
    return FaultyStore(store, KillAt(fault)) if fault else store
