"""What every store must do when several threads, or several stores on one database, work at once."""

import threading
from collections.abc import Callable, Sequence
from contextlib import closing

from gridmill.errors import StaleVersionError
from gridmill.model.resource import Resource
from gridmill.ports.store import Change, Put, Record, Store
from gridmill.testing.store_samples import a_resource, a_run, an_event

_THREADS = 6
_PATIENCE_SECONDS = 60.0


def check_one_of_many_threads_wins(open_store: Callable[[], Store]) -> None:
    """Of those that change the same version at the same time exactly one succeeds, round after round."""
    with closing(open_store()) as store:
        store.commit([Put(noun=a_resource(), expected=0)])
        for version in range(1, 11):
            winners = _race(Put(noun=a_resource(gpus=version), expected=version), [store] * _THREADS)
            assert winners == 1
        assert store.get(Resource, a_resource().name) == Record(noun=a_resource(gpus=10), version=11)


def check_one_of_many_threads_makes_it(open_store: Callable[[], Store]) -> None:
    """The same for records that are not there yet."""
    with closing(open_store()) as store:
        for number in range(1, 11):
            assert _race(Put(noun=a_run(number), expected=0), [store] * _THREADS) == 1


def _race(change: Change, stores: Sequence[Store]) -> int:
    """How many of the stores, each in a thread, could commit their change and an event of their own."""
    start = threading.Barrier(len(stores))
    won: list[int] = []
    errors: list[BaseException] = []

    def take_part(index: int, store: Store) -> None:
        try:
            start.wait(_PATIENCE_SECONDS)
            store.commit([change], [an_event()])
            won.append(index)
        except StaleVersionError:
            pass
        except BaseException as error:  # for the thread that waits for us
            errors.append(error)
            raise

    threads = [threading.Thread(target=take_part, args=pair) for pair in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE_SECONDS)
        assert not thread.is_alive(), "a commit hangs"
    assert not errors, errors
    return len(won)


def check_readers_see_whole_commits(open_store: Callable[[], Store]) -> None:
    """While one thread writes pairs, others never see half a pair, and never an event out of order."""
    with closing(open_store()) as store:
        store.commit([Put(noun=a_resource(name), expected=0) for name in "ab"])
        done = threading.Event()
        problems: list[str] = []

        def read() -> None:
            last = 0
            while not done.is_set():
                gpus = {r.noun.gpus for r in store.list(Resource) if isinstance(r.noun, Resource)}
                numbers = [event.number for event in store.events(after=last)]
                if len(gpus) != 1 or numbers != [*range(last + 1, last + 1 + len(numbers))]:
                    problems.append(f"{gpus} {last} {numbers}")
                last += len(numbers)

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
    """Commits of several stores at once: one winner each round, its event kept, no sequence given twice."""
    stores = [open_store() for _ in range(3)]
    try:
        stores[0].commit([Put(noun=a_resource(), expected=0)])
        for version in range(1, 11):
            winners = _race(Put(noun=a_resource(gpus=version), expected=version), stores)
            assert winners == 1
        sequences = [event.sequence for event in stores[1].events()]
        assert len(sequences) == len(set(sequences)) == 10
    finally:
        for store in stores:
            store.close()
