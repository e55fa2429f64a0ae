"""The conformance suite for record stores. The suite checks how records and events are stored and deleted.

Run each function in CHECKS on a new database. If the database can be opened again after a store was closed,
run SHARED_CHECKS too. A third-party store needs no more than this in its tests::

    @pytest.mark.parametrize("check", [*CHECKS, *SHARED_CHECKS], ids=lambda check: check.__name__)
    def test_my_store(check, tmp_path):
        check(lambda: my_store.make(tmp_path / "store"))
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any, TypeAlias

from gridmill.domain.artifact import Artifact
from gridmill.domain.deployment import Deployment
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import Event, event_id, sequence_of
from gridmill.domain.resource import Resource
from gridmill.domain.run import JobRun, Run
from gridmill.domain.site import Site
from gridmill.domain.states import AttemptState, DeploymentState, JobState, RunState
from gridmill.errors import StaleVersionError, StoreInUseError
from gridmill.ports.store import Change, Delete, Mark, Noun, Order, Put, Record, Store, key_of, parent_of
from gridmill.testing.store_model import (
    StoreModel,
    check_events_of_many_stores_at_once,
    check_many_stores_race,
    check_one_of_many_threads_makes_it,
    check_one_of_many_threads_wins,
    check_readers_see_whole_commits,
    random_changes,
    random_events,
)
from gridmill.testing.store_samples import (
    a_deployment,
    a_job_run,
    a_measurement,
    a_resource,
    a_run,
    a_site,
    an_artifact,
    an_attempt,
    an_event,
    one_of_each,
)

Opener: TypeAlias = Callable[[], Store]
"""A function that opens the same database at each call. For a store in memory, the function opens a new,
empty store."""


def check_events_come_back_in_order(open_store: Opener) -> None:
    """Checks that sequence numbers grow in the given order, and that events are read as they were stored."""
    with closing(open_store()) as store:
        batches = [[an_event(1), an_event()], [an_event(2, text="\0ä\n\u2028")], []]
        given = [store.commit([], batch) for batch in batches]
        sequences = [sequence for batch in given for sequence in batch]
        assert [len(batch) for batch in given] == [2, 1, 0]
        assert all(b > a > 0 for a, b in pairwise(sequences))
        events = [event for batch in batches for event in batch]
        kept = [replace(e, id=event_id(s)) for e, s in zip(events, sequences, strict=True)]
        assert [*store.events()] == kept


def check_names_that_have_records_are_found_with_one_call(open_store: Opener) -> None:
    """Checks the search for any number of names in one call, for each class separately."""
    with closing(open_store()) as store:
        put_new(store, *one_of_each())
        names = [f"nothing/{number}" for number in range(1001)]
        for noun in one_of_each():
            parent = parent_of(noun)
            assert store.parents(type(noun), []) == set()
            assert store.parents(type(noun), [parent]) == {parent}
            assert store.parents(type(noun), [*names, parent, parent]) == {parent}
            assert store.parents(type(noun), names) == set()


def check_a_pods_event_is_kept_once(open_store: Opener) -> None:
    """Checks that events are identified by (pod_id, number), in one commit and across commits. Events of the
    control node have the number 0 and must always be stored."""
    with closing(open_store()) as store:
        (first,) = store.commit([], [an_event(1, text="first\n")])
        again = store.commit([], [an_event(2), an_event(1, text="again\n"), an_event(2), an_event(3)])
        assert again[1] == again[2] == 0
        assert 0 < first < again[0] < again[3]
        other_pod = replace(an_event(1), pod_id="trainers-2.0")
        own = store.commit([], [an_event(), other_pod, an_event()])
        assert again[3] < own[0] < own[1] < own[2]
        assert [sequence_of(e.id) for e in store.events()] == [first, again[0], again[3], *own]
        assert store.events(limit=1)[0].body["text"] == "first\n"


def check_events_are_read_by_run_job_and_after(open_store: Opener) -> None:
    """Checks each filter for events alone and together with other filters. With `after` and `limit`, pages
    of events must have no gap and no repetition."""
    with closing(open_store()) as store:
        runs, jobs = ("weather-1", "weather-2"), ("", "a", "b")
        events = [an_event(run_id=run, job=job) for _ in range(4) for run in runs for job in jobs]
        sequences = store.commit([], events)
        kept = [replace(e, id=event_id(s)) for e, s in zip(events, sequences, strict=True)]
        for run in (None, *runs, "nobody"):
            for job in (None, *jobs, "nobody"):
                wanted = [e for e in kept if run in (None, e.run_id) and job in (None, e.job)]
                assert [*store.events(run_id=run, job=job)] == wanted
                assert _paged(store, run, job) == wanted
        assert [*store.events(after=sequences[-1])] == []
        for run in (*runs, "nobody"):
            own = [sequence_of(e.id) for e in kept if e.run_id == run]
            assert store.last_event(run) == max(own, default=0)


def _paged(store: Store, run: str | None, job: str | None) -> list[Event]:
    events: list[Event] = []
    while page := store.events(
        run_id=run, job=job, after=sequence_of(events[-1].id) if events else 0, limit=3
    ):
        assert len(page) <= 3
        assert not events or page[0].id > events[-1].id
        events += page
    return events


def check_events_of_old_runs_go_and_sequences_go_on(open_store: Opener) -> None:
    """Checks that dropping events deletes only events of the named runs, and can be repeated. No sequence
    number may be used twice."""
    store = open_store()
    store.commit((), [an_event(1, run_id="old-1"), an_event(2, run_id="new-1")])
    (last,) = store.commit((), [an_event(3, run_id="old-2")])
    for _ in range(2):
        store.drop_events(["old-1", "old-2", "none-1"])
    assert [event.run_id for event in store.events()] == ["new-1", "old-2"], "the newest of all stays"
    assert [event.run_id for event in store.events(run_id="old-1")] == []
    (again,) = store.commit((), [an_event(4, run_id="new-1")])
    assert again > last
    store.drop_events(["old-2"])
    assert [event.number for event in store.events()] == [2, 4]
    store.drop_events([])
    store.close()


Check: TypeAlias = Callable[[Opener], None]


def put_new(store: Store, *nouns: Noun) -> None:
    """Commits records that do not exist yet."""
    store.commit([Put(noun=noun, expected=0) for noun in nouns])


def everything(store: Store) -> tuple[Any, ...]:
    """Returns all data of a store, for comparison."""
    records = [record for noun in one_of_each() for record in store.list(type(noun))]
    events = [*store.events(limit=10**6)]
    return records, events, dict(store.counters()), {key_of(record.noun) for record in store.live()}


def _refused(store: Store, changes: Sequence[Change], events: Sequence[Event] = ()) -> None:
    """Checks that the commit is refused as stale and changes nothing."""
    before = everything(store)
    try:
        store.commit(changes, events)
    except StaleVersionError:
        assert everything(store) == before, "a refused commit left something behind"
        return
    raise AssertionError(f"a stale commit was taken: {changes}")


# --- records


def check_every_noun_comes_back_as_it_was(open_store: Opener) -> None:
    """Checks that each stored record is equal when it is read, and that its version is 1."""
    with closing(open_store()) as store:
        put_new(store, *one_of_each())
        for noun in one_of_each():
            assert store.get(type(noun), key_of(noun)) == Record(noun=noun, version=1)
            assert [*store.list(type(noun))] == [Record(noun=noun, version=1)]


def check_what_is_not_there_is_none(open_store: Opener) -> None:
    """Checks that each method of an empty store returns an empty result. Records of different classes must
    not share keys."""
    with closing(open_store()) as store:
        assert store.commit([]) == ()
        assert everything(store) == ([], [], {}, set())
        put_new(store, a_resource("x"))
        assert store.get(Site, "x") is None
        assert store.get(Resource, "X") is None


def check_put_raises_the_version_by_one(open_store: Opener) -> None:
    """Checks that versions count from 1, and that a read returns the newest record."""
    with closing(open_store()) as store:
        for expected in range(5):
            noun = a_resource(gpus=expected)
            store.commit([Put(noun=noun, expected=expected)])
            assert store.get(Resource, noun.name) == Record(noun=noun, version=expected + 1)


def check_a_wrong_version_is_refused(open_store: Opener) -> None:
    """Checks versions that are too old, versions that are too new, and versions of a record that does not
    exist."""
    with closing(open_store()) as store:
        noun, other = a_resource(), a_resource("others")
        store.commit([Put(noun=noun, expected=0)])
        store.commit([Put(noun=noun, expected=1)])
        for expected in (0, 1, 3):
            _refused(store, [Put(noun=noun, expected=expected)])
            _refused(store, [Delete(noun=Resource, key=noun.name, expected=expected)])
        _refused(store, [Put(noun=other, expected=1)])
        _refused(store, [Delete(noun=Resource, key=other.name, expected=1)])
        _refused(store, [Delete(noun=Resource, key=other.name, expected=0)])


def check_a_deleted_noun_can_be_put_again(open_store: Opener) -> None:
    """Checks that a record that is put after it was deleted is a new record, at the end of the order."""
    with closing(open_store()) as store:
        put_new(store, a_resource("a"), a_resource("b"))
        store.commit([Delete(noun=Resource, key="a", expected=1)])
        assert store.get(Resource, "a") is None
        _refused(store, [Put(noun=a_resource("a"), expected=1)])
        put_new(store, a_resource("a"))
        assert [(key_of(r.noun), r.version) for r in store.list(Resource)] == [("b", 1), ("a", 1)]


def check_a_stale_change_in_the_middle_leaves_nothing(open_store: Opener) -> None:
    """Checks that either all changes and events of a commit are stored or none, whatever the position of the
    stale change."""
    with closing(open_store()) as store:
        put_new(store, a_resource("a"), a_resource("b"), a_resource("c"))
        good: list[Change] = [
            Put(noun=a_run(5), expected=0),
            Put(noun=a_resource("a", gpus=1), expected=1),
            Delete(noun=Resource, key="b", expected=1),
        ]
        for bad in (
            Put(noun=a_resource("c"), expected=0),
            Put(noun=a_resource("c"), expected=2),
            Delete(noun=Resource, key="c", expected=2),
        ):
            for place in range(len(good) + 1):
                _refused(store, [*good[:place], bad, *good[place:]], [an_event(1), an_event()])
        store.commit(good, [an_event(1)])
        assert [key_of(r.noun) for r in store.list(Resource)] == ["a", "c"]


def check_changes_of_one_record_apply_in_order(open_store: Opener) -> None:
    """Checks that each change in a commit depends on the changes before it."""
    with closing(open_store()) as store:
        key = a_resource().name
        store.commit(
            [
                Put(noun=a_resource(gpus=1), expected=0),
                Put(noun=a_resource(gpus=2), expected=1),
                Delete(noun=Resource, key=key, expected=2),
                Put(noun=a_resource(gpus=3), expected=0),
            ]
        )
        assert store.get(Resource, key) == Record(noun=a_resource(gpus=3), version=1)
        _refused(store, [Put(noun=a_resource(), expected=1), Put(noun=a_resource(), expected=1)])


def check_list_keeps_the_order_of_first_puts(open_store: Opener) -> None:
    """Checks that later puts do not change the order of records. The arguments `newest_first`, `limit` and
    `parent` must work alone and together."""
    with closing(open_store()) as store:
        names = ("weather/b", "weather/a")
        versions = [an_artifact(number, name) for number in range(1, 6) for name in names]
        for version in versions:
            put_new(store, version)
        store.commit([Put(noun=replace(versions[0], removed=True), expected=1)])

        def ids(**how: Any) -> list[str]:  # noqa: ANN401
            return [key_of(record.noun) for record in store.list(Artifact, **how)]

        in_order = [version.id for version in versions]
        of_a = [version.id for version in versions if version.name == "weather/a"]
        assert ids() == in_order
        assert ids(newest_first=True) == in_order[::-1]
        assert ids(limit=3) == in_order[:3]
        assert ids(limit=3, newest_first=True) == in_order[:-4:-1]
        assert ids(limit=0) == []
        assert ids(parent="weather/a") == of_a
        assert ids(parent="weather/a", newest_first=True, limit=1) == of_a[-1:]
        assert ids(parent="") == ids(parent="nobody") == []


def check_pages_have_what_exists_throughout_once_and_in_order(open_store: Opener) -> None:
    """Checks pages of any size in any order, while records are put, changed and deleted between two
    pages."""
    random = Random(7)
    for order in Order:
        for size in (1, 2, 3, 7, 50):
            with closing(open_store()) as store:
                _check_pages(store, random, order, size)


def _check_pages(store: Store, random: Random, order: Order, size: int) -> None:
    """Checks pages with names that collations sort in another order than their code points."""
    letters = "aAbBzZ-_0é"
    names = [f"{random.choice(letters)}{random.choice(letters)}{number}" for number in range(24)]
    # the records exist already, because earlier checks have used their names
    here = {key_of(record.noun): record.version for record in store.list(Resource)}
    store.commit([Delete(noun=Resource, key=name, expected=version) for name, version in here.items()])
    put_new(store, *(a_resource(name) for name in names))
    throughout, made = [*names], 0
    found: list[str] = []
    mark: Mark | None = None
    while page := store.page(Resource, order=order, after=mark, limit=size):
        assert len(page) <= size
        found += [key_of(record.noun) for _, record in page]
        mark = page[-1][0]
        gone = throughout.pop(random.randrange(len(throughout))) if len(throughout) > 4 else None
        if gone is not None:
            store.commit([Delete(noun=Resource, key=gone, expected=1)])
        for _ in range(random.randint(0, 1) if made < 40 else 0):
            made += 1
            put_new(store, a_resource(f"{random.choice(letters)}new{made}"))
    assert len(set(found)) == len(found), "something came twice"
    there = [name for name in found if name in throughout]
    in_order = sorted(throughout) if order == Order.BY_KEY else throughout
    assert there == (in_order[::-1] if order == Order.NEWEST_FIRST else in_order)


def check_pages_are_of_one_parent(open_store: Opener) -> None:
    """Checks that a page contains only the records of the given `parent`. Each entry of a page must have the
    key with which the next page can be requested."""
    with closing(open_store()) as store:
        put_new(store, *(a_job_run(f"weather-{n % 2}", name=f"j{n}") for n in range(6)))
        first = store.page(JobRun, order=Order.NEWEST_FIRST, limit=2, parent="weather-1")
        more = store.page(JobRun, order=Order.NEWEST_FIRST, limit=2, parent="weather-1", after=first[-1][0])
        found = [key_of(record.noun) for _, record in (*first, *more)]
        assert found == ["weather-1/j5", "weather-1/j3", "weather-1/j1"]
        assert not store.page(JobRun, order=Order.BY_KEY, limit=2, parent="nobody")


def check_every_class_is_listed_by_its_parent(open_store: Opener) -> None:
    """`list(parent=...)` uses `keys.parent_of`."""
    with closing(open_store()) as store:
        put_new(store, *one_of_each())
        for noun in one_of_each():
            assert [record.noun for record in store.list(type(noun), parent=parent_of(noun))] == [noun]
            assert not store.list(type(noun), parent="nobody")


# --- live records


def check_live_is_what_the_control_node_keeps_in_memory(open_store: Opener) -> None:
    """Checks the live records: sites, resources, runs with all their jobs, running attempts, and deployments
    that have not ended."""
    with closing(open_store()) as store:
        live = (
            a_site(),
            a_resource(),
            a_run(1),
            a_run(2, state=RunState.STOPPING),
            a_job_run("weather-1", "first", state=JobState.SUCCEEDED),
            a_job_run("weather-1", "second"),
            a_job_run("weather-2", "first"),
            an_attempt(1),
            an_attempt(2, state=AttemptState.PLACED),
            a_deployment(1),
            a_deployment(2, state=DeploymentState.RELEASING),
        )
        over = (
            a_run(3, state=RunState.SUCCEEDED),
            a_job_run("weather-3", "first"),
            an_attempt(3, state=AttemptState.LOST),
            a_deployment(3, state=DeploymentState.GONE),
            an_artifact(),
            a_measurement(),
            Pipeline(name="weather", jobs=()),
        )
        put_new(store, *over, *reversed(live))
        assert [record.noun for record in store.live()] == [*reversed(live)]


def check_live_follows_changes(open_store: Opener) -> None:
    """Checks that the jobs of a run that has ended are no longer live. If the run is resumed, its jobs must
    be live again, with their versions."""
    with closing(open_store()) as store:
        run, job, attempt = a_run(), a_job_run(), an_attempt()
        put_new(store, run, job, attempt)
        store.commit([Put(noun=replace(job, priority=1), expected=1)])
        ended = replace(run, state=RunState.FAILED)
        store.commit([Put(noun=ended, expected=1)])
        _assert_live(store, [attempt])
        store.commit([Put(noun=replace(attempt, state=AttemptState.FAILED), expected=1)])
        _assert_live(store, [])
        store.commit([Put(noun=run, expected=2)])
        _assert_live(store, [run, replace(job, priority=1)])
        assert {r.version for r in store.live()} == {3, 2}


def _assert_live(store: Store, nouns: Iterable[Noun]) -> None:
    found = {key_of(record.noun): record.noun for record in store.live()}
    assert found == {key_of(noun): noun for noun in nouns}


def check_counters_never_go_back(open_store: Opener) -> None:
    """Checks that the numbers of runs, deployments and `order` are the highest numbers ever used, also after
    a record was deleted."""
    with closing(open_store()) as store:
        assert store.counters() == {}
        put_new(store, a_run(3), a_run(12), a_run(2, pipeline="a-b-3"), a_deployment(10), a_deployment(9))
        used = {"weather": 12, "a-b-3": 2, "trainers": 10, "order": 12}
        assert store.counters() == used
        store.commit([Put(noun=replace(a_run(3), state=RunState.FAILED), expected=1)])
        store.commit([Delete(noun=Run, key="weather-12", expected=1)])
        store.commit([Delete(noun=Deployment, key="trainers-10", expected=1)])
        assert store.counters() == used
        _refused(store, [Put(noun=a_run(50), expected=0), Put(noun=a_run(2), expected=7)])


# --- random commits


def check_it_agrees_with_a_model(open_store: Opener) -> None:
    """Checks that the store equals the simplest possible store after a few hundred random commits, which may
    be accepted or refused."""
    random = Random(7)
    with closing(open_store()) as store:
        model = StoreModel()
        for _ in range(300):
            model.follow(store, random_changes(random, model), random_events(random))
        model.compare(store)


# --- stores that share a database


def check_it_is_there_after_reopening(open_store: Opener) -> None:
    """Checks that records, versions, order, events, sequence numbers and counters are stored durably."""
    with closing(open_store()) as store:
        put_new(store, *one_of_each(), a_resource("b"), a_resource("a"))
        (sequence,) = store.commit([Put(noun=a_resource("b", gpus=1), expected=1)], [an_event(1)])
        before = everything(store)
    with closing(open_store()) as store:
        assert everything(store) == before
        later, again = store.commit([], [an_event(2), an_event(1)])
        assert (later > sequence, again) == (True, 0)
        store.close()  # the end of the block closes the store once more, because closing must be repeatable


def check_two_stores_conflict(open_store: Opener) -> None:
    """Checks that two stores on one database see each other's commits, and that only one of them can change
    a version."""
    with closing(open_store()) as one, closing(open_store()) as other:
        put_new(one, a_resource())
        assert other.get(Resource, a_resource().name) == Record(noun=a_resource(), version=1)
        other.commit([Put(noun=a_resource(gpus=1), expected=1)], [an_event(1)])
        _refused(one, [Put(noun=a_resource(gpus=2), expected=1)], [an_event(2)])
        assert one.commit([], [an_event(1)]) == (0,)
        assert one.get(Resource, a_resource().name) == Record(noun=a_resource(gpus=1), version=2)


def _refusal(store: Store) -> str:
    """Returns the error of a store that another process owns, or an empty text if no process owns the
    store."""
    try:
        store.own("the second")
    except StoreInUseError as error:
        return str(error)
    return ""


def check_one_control_node_owns_it(open_store: Opener) -> None:
    """Checks that a second owner is refused with the name of the first owner, and can still read. After a
    store was closed, another process can own it."""
    one, other = open_store(), open_store()
    with closing(other):
        one.own("the first")
        one.own("the first")
        put_new(one, a_resource())
        assert "the first" in _refusal(other)
        assert other.get(Resource, a_resource().name)
        one.close()
        other.own("the second")
        put_new(other, a_run())


def check_its_space_can_be_given_back(open_store: Opener) -> None:
    """Checks that releasing space loses no data, can be repeated, and stops early if this is requested."""
    with closing(open_store()) as one:
        put_new(one, a_run())
        one.commit([], [an_event(number) for number in range(1, 200)])
        one.drop_events([an_event(1).run_id])
        one.release_space(lambda: False)
        after = one.release_space()
        assert one.release_space().size_bytes <= after.size_bytes
        assert one.space().free_bytes >= 0
        assert one.get(Run, a_run().id) == Record(noun=a_run(), version=1)


CHECKS: tuple[Check, ...] = (
    check_every_noun_comes_back_as_it_was,
    check_what_is_not_there_is_none,
    check_put_raises_the_version_by_one,
    check_a_wrong_version_is_refused,
    check_a_deleted_noun_can_be_put_again,
    check_a_stale_change_in_the_middle_leaves_nothing,
    check_changes_of_one_record_apply_in_order,
    check_list_keeps_the_order_of_first_puts,
    check_pages_have_what_exists_throughout_once_and_in_order,
    check_pages_are_of_one_parent,
    check_every_class_is_listed_by_its_parent,
    check_live_is_what_the_control_node_keeps_in_memory,
    check_live_follows_changes,
    check_counters_never_go_back,
    check_events_come_back_in_order,
    check_names_that_have_records_are_found_with_one_call,
    check_a_pods_event_is_kept_once,
    check_events_of_old_runs_go_and_sequences_go_on,
    check_events_are_read_by_run_job_and_after,
    check_one_of_many_threads_wins,
    check_one_of_many_threads_makes_it,
    check_readers_see_whole_commits,
    check_its_space_can_be_given_back,
    check_it_agrees_with_a_model,
)
"""Checks for every store."""

OWNER_CHECKS: tuple[Check, ...] = (check_one_control_node_owns_it,)
"""The checks for record stores that several homes can reach."""

SHARED_CHECKS: tuple[Check, ...] = (
    check_it_is_there_after_reopening,
    check_two_stores_conflict,
    check_many_stores_race,
    check_events_of_many_stores_at_once,
)
"""The checks for record stores whose database can be opened again, or by several stores."""
