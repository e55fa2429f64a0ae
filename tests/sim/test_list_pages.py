"""The lists of the control node, walked page by page while records are created and deleted, on each store."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from test_races import command, service, simulation

from gridmill.domain.artifact import Alias, Artifact
from gridmill.domain.job import JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import Event, event_id
from gridmill.domain.resource import Resource
from gridmill.domain.run import Run
from gridmill.domain.states import RunState
from gridmill.errors import InputError, NotFoundError
from gridmill.ports.pages import Page
from gridmill.ports.store import Delete, Put, Store, key_of
from gridmill.stores import memory, sql
from gridmill.testing.store_samples import a_run, an_artifact


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "postgresql":
        return sql.make(request.getfixturevalue("postgresql_url"))
    return memory.make() if request.param == "memory" else sql.make(tmp_path / "store.db")


def run(number: int) -> Run:
    state = RunState.FAILED if number % 3 else RunState.SUCCEEDED
    return replace(a_run(number), state=state, ended=1.0)


def version(number: int) -> Artifact:
    return replace(an_artifact(number), removed=number % 4 == 0)


def alias(number: int) -> Alias:
    name = f"{'aZ-_'[number % 4]}{number}"
    return Alias(id=f"w/m@{name}", name="w/m", alias=name, number=1)


LISTS: dict[str, tuple[Callable[[int], Any], dict[str, Any], Callable[[Any], bool], bool]] = {
    "runs": (run, {}, lambda one: True, True),
    "failed runs": (run, {"states": (RunState.FAILED,)}, lambda one: one.state == RunState.FAILED, True),
    "artifacts": (version, {}, lambda one: not one.removed, True),
    "aliases": (alias, {}, lambda one: True, False),
    "pipelines": (lambda n: Pipeline(name=f"p{n}", jobs=(command("a"),)), {}, lambda one: True, False),
}


@pytest.mark.parametrize("what", LISTS)
@pytest.mark.parametrize("size", [1, 4, 30])
def test_what_exists_throughout_is_in_the_pages_once_and_in_order(store: Store, what: str, size: int) -> None:
    make, arguments, selects, newest_first = LISTS[what]
    random = Random(size)
    with closing(store):
        use = getattr(service(simulation(store=store)), what.split()[-1])
        throughout = [make(number) for number in range(1, 26)]
        store.commit([Put(noun=one, expected=0) for one in throughout])
        found, cursor, number = list[Any](), None, 100
        while True:
            page: Page[Any] = use(limit=size, cursor=cursor, **arguments)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
            if len(throughout) > 8:
                gone = throughout.pop(random.randrange(len(throughout)))
                store.commit([Delete(noun=type(gone), key=key_of(gone), expected=1)])
            if number < 110:
                number += 1
                store.commit([Put(noun=make(number), expected=0)])
        assert len({key_of(one) for one in found}) == len(found)
        wanted = [one for one in throughout if selects(one)]
        wanted = wanted[::-1] if newest_first else sorted(wanted, key=key_of)
        assert [one for one in found if one in wanted] == wanted


def test_the_jobs_of_a_run_have_pages_while_it_is_active_and_after_it() -> None:
    grid = simulation()
    cases = service(grid)
    names = [f"j{number}" for number in range(7)]
    view = cases.start_run(Pipeline(name="w", jobs=tuple(map(command, names))))
    for _ in range(2):
        pages, cursor = list[Page[Any]](), None
        while not pages or cursor is not None:
            pages.append(cases.jobs(view.run.id, limit=3, cursor=cursor))
            cursor = pages[-1].next_cursor
        assert [[one.job.job.name for one in page.items] for page in pages] == [
            names[:3],
            names[3:6],
            names[6:],
        ]
        assert tuple(one for page in pages for one in page.items) == cases.run(view.run.id).jobs
        assert grid.run_until(lambda: cases.run(view.run.id).run.ended is not None)
    with pytest.raises(InputError, match="cursor does not belong"):
        cases.runs(cursor=pages[0].next_cursor)
    with pytest.raises(NotFoundError, match="no run 'w-2'"):
        cases.jobs("w-2")


def test_lists_of_what_is_in_memory_have_pages_too() -> None:
    cases = service(simulation())
    for name in "cabd":
        cases.configure_resource(Resource(name=name, type=JobKind.COMMAND))
    first = cases.resources(limit=3)
    cases.remove_resource("c")
    cases.configure_resource(Resource(name="bb", type=JobKind.COMMAND))
    rest = cases.resources(limit=1000, cursor=first.next_cursor)
    assert [one.name for one in first.items if not one.default][:3] == ["a", "b", "c"]
    assert "d" in [one.name for one in rest.items]
    with pytest.raises(InputError, match="not between 1 and 1000"):
        cases.resources(limit=1001)


def test_a_page_of_events_is_bounded_in_bytes_and_begins_after_an_id() -> None:
    grid = simulation()
    text = "x" * 300_000
    events = [Event(time=1.0, type="log", run_id="w-1", job="a", body={"text": text}) for _ in range(7)]
    large = Event(time=1.0, type="log", run_id="w-1", job="a", body={"text": 5 * text})
    grid.store.commit([Put(noun=a_run(pipeline="w"), expected=0)], [*events, large, *events])
    found, after, counts = list[Event](), "", list[int]()
    while page := service(grid).events("w-1", after=after):
        found += page
        counts.append(len(page))
        after = page[-1].id
    assert counts == [3, 3, 1, 1, 3, 3, 1]
    assert [one.id for one in found] == [event_id(number) for number in range(1, 16)]
    assert len(service(grid).events("w-1", limit=2)) == 2
    with pytest.raises(NotFoundError, match="no run 'w-2'"):
        service(grid).events("w-2")
    with pytest.raises(NotFoundError, match="run w-1 has no job 'b'"):
        service(grid).events("w-1", job="b")
    with pytest.raises(InputError, match="'3' is not the id of an event"):
        service(grid).events("w-1", after="3")
