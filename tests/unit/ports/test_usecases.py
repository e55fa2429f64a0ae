"""The table of use cases: complete, consistent, and each implemented once."""

from dataclasses import is_dataclass
from inspect import signature
from typing import get_origin

import pytest

from gridmill.control.usecases.service import Service
from gridmill.domain.artifact import Alias
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.views import RunView
from gridmill.errors import InputError, NotFoundError
from gridmill.ports.grid import Grid
from gridmill.ports.usecase import ResponseForm, Role, UseCase
from gridmill.ports.usecases import USE_CASES, use_case
from gridmill.testing.fake_grid import FakeGrid

ROWS = pytest.mark.parametrize("row", USE_CASES.values(), ids=list(USE_CASES))


def test_each_method_of_the_grid_is_a_row_and_each_row_a_method() -> None:
    methods = {name for name in dir(Grid) if not name.startswith("_")}
    assert set(USE_CASES) == methods


@ROWS
def test_a_row_is_implemented_once_in_the_service_and_in_the_fake_with_the_signature(row: UseCase) -> None:
    """The fake need not have each: where it has none, lists are empty."""
    for grid in (Service, FakeGrid):
        homes = [one.__name__ for one in grid.__mro__ if row.name in vars(one)]
        if grid is FakeGrid and not homes:
            continue
        assert len(homes) == 1, homes
        assert signature(getattr(grid, row.name)) == signature(getattr(Grid, row.name))


@ROWS
def test_what_a_row_says_of_arguments_is_said_of_arguments_that_there_are(row: UseCase) -> None:
    fields = {f"{place.argument}.{place.field}" for place in row.places if place.field}
    assert set(row.body) <= set(row.takes)
    assert set(row.limits) | set(row.sent) <= set(row.takes) | fields
    for place in row.places:
        assert place.argument in row.takes
        assert not place.field or (
            place.argument in row.body and place.field in dir(row.takes[place.argument])
        )


@ROWS
def test_a_row_reads_or_changes_as_its_method_and_role_say(row: UseCase) -> None:
    if row.method == "GET":
        assert row.role is Role.VIEWER
        assert not row.body
        assert row.form is not ResponseForm.NOTHING
    nouns = [name for name, hint in row.takes.items() if is_dataclass(hint)]
    assert set(nouns) <= set(row.body), "a noun does not fit into a path or a query"


@ROWS
def test_the_help_of_a_row_is_one_sentence_or_two(row: UseCase) -> None:
    assert row.help.endswith(".")
    assert "Raises" not in row.help
    assert row.help[0].isupper()


def test_the_fake_records_what_changed_something() -> None:
    grid = FakeGrid()
    pipeline = Pipeline(name="demo", jobs=(Job(name="first", command=CommandSpec(run="true")),))
    grid.apply(pipeline)
    grid.start_run(pipeline)
    grid.plan_run(pipeline)
    grid.runs()
    with pytest.raises(NotFoundError):
        grid.resume("demo-2")
    grid.remove_run("demo-1", dry_run=True)
    grid.set_alias(Alias(id="demo/first@prod", name="demo/first", alias="prod", number=1))
    grid.remove_run("demo-1")
    grid.shutdown(all=True)
    assert grid.calls == [
        "apply demo",
        "start_run demo",
        "set_alias demo/first@prod",
        "remove_run demo-1",
        "shutdown",
    ]


def test_no_two_rows_have_one_request_or_one_operation() -> None:
    assert len({(row.method, row.route) for row in USE_CASES.values()}) == len(USE_CASES)
    assert len({row.operation for row in USE_CASES.values()}) == len(USE_CASES)


def test_lists_and_streams_have_one_form_each() -> None:
    streams = [row for row in USE_CASES.values() if row.form is ResponseForm.STREAM]
    assert [row.name for row in streams] == ["events", "logs"]
    assert all({"after", "limit", "wait_seconds"} <= set(row.queries) for row in streams)
    lists = [row for row in USE_CASES.values() if row.form is ResponseForm.LIST]
    assert {"runs", "jobs", "artifacts", "pipelines", "load_tasks"} <= {row.name for row in lists}
    assert all({"limit", "cursor"} <= set(row.queries) & set(row.limits) for row in lists)
    whole = [row.name for row in USE_CASES.values() if get_origin(row.gives) is tuple and row not in streams]
    assert whole == ["configure_resource", "offers", "images", "costs", "usage", "clean", "verify"]


def test_the_rows_that_start_a_run_answer_with_it() -> None:
    starts = [row for row in USE_CASES.values() if row.starts_run]
    assert [row.name for row in starts] == ["start_run", "resume", "probe"]
    assert all(row.gives is RunView and row.role is Role.OPERATOR for row in starts)


def test_a_row_gives_the_parts_of_a_request() -> None:
    row = use_case("set_alias")
    assert row.route == "/aliases/{alias_id:path}"
    assert row.filled(("p/j@prod",)) == "/aliases/p/j@prod"
    assert row.queries == {"expected": "expected"}
    assert use_case("release").route == "/deployments/{name}"
    assert use_case("artifacts").queries == {one: one for one in ("kind", "name", "limit", "cursor")}
    assert use_case("runs").queries["states"] == "state"


def test_arguments_are_bound_as_the_method_binds_them() -> None:
    assert use_case("stop_run").arguments(("r-1",), {"job": "a"}) == {"run_id": "r-1", "job": "a"}
    with pytest.raises(TypeError, match="jbo"):
        use_case("stop_run").arguments(("r-1",), {"jbo": "a"})
    with pytest.raises(TypeError, match="run_id"):
        use_case("run").arguments((), {})
    with pytest.raises(InputError, match="unknown use case 'close'"):
        use_case("close")
