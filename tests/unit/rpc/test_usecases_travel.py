"""Each use case arrives with its arguments, and its error comes back: over HTTP and over the local socket."""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import pytest

from gridmill.api.app import make_app
from gridmill.domain.artifact import Alias, ArtifactKind
from gridmill.domain.backfill import Backfill, Chunk
from gridmill.domain.job import CommandSpec, Job, JobKind
from gridmill.domain.lease_cost import CostBy
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.project import Project
from gridmill.domain.resource import Resource
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.sink_overrides import AlterVerb, SinkChange, SinkPart
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import JobState, RunState
from gridmill.errors import ConflictError
from gridmill.http.server import serve
from gridmill.ports.grid import Grid
from gridmill.ports.usecase import UseCase
from gridmill.ports.usecases import USE_CASES
from gridmill.rpc.client import SOCKET, connect_to
from gridmill.rpc.protocol import Hello
from gridmill.sdk.grid_http import over_tcp
from gridmill.testing.local_calls import ServedGrid

PIPELINE = Pipeline(name="demo", jobs=(Job(name="a", command=CommandSpec(run="true")),))
SAMPLES: dict[str, Any] = {
    "adopt": True,
    "again": True,
    "canary": "weather/lstm@4",
    "weight_percent": 12.5,
    "shadow": "weather/lstm@5",
    "shadow_percent": 25.0,
    "after": f"{2**40:016x}",
    "alias": Alias(id="demo/a@prod", name="demo/a", alias="prod", number=3),
    "alias_id": "demo/a@prod",
    "all": True,
    "artifact_id": "demo/a@3",
    "attempt": "demo-1.a.1",
    "backfill": Backfill(name="demo", begins="2024-01-01", ends="2024-02-01"),
    "before": "demo/a@1",
    "by": CostBy.RUN,
    "bundle": "0123abcd" * 8,
    "change": SinkChange(verb=AlterVerb.ADD, part=SinkPart.METRIC, key="n", text="count(*)"),
    "chunks": (Chunk(pipeline=PIPELINE, begins="2024-01-01", ends="2024-02-01"),),
    "cursor": "W10",
    "data": bytes(range(256)),
    "days": 0.5,
    "deployment_id": "default-1",
    "dry_run": True,
    "expected": 0,
    "force": True,
    "job": "a",
    "key": ("day", "shop & till"),
    "kind": ArtifactKind.MODEL,
    "lease_id": "lease-3",
    "least_replicas": 1,
    "limit": 7,
    "model": "weather/lstm@champion",
    "month": "2026-11",
    "run": "weather-7",
    "region": "us-",
    "instance_type": "g5.xlarge",
    "name": "demo",
    "only": ("a", "b"),
    "path": "/tmp/über folder/a.zip",
    "pipeline": PIPELINE,
    "pipelines": ("demo", "other"),
    "pods": 2,
    "port": 8000,
    "project": Project(name="team", share=2.0),
    "reference": "demo/a",
    "rate": 200.5,
    "rejects": True,
    "replace": True,
    "replicas": 3,
    "resource": Resource(name="big", type=JobKind.TRAINING, cpus=2.0),
    "rows": 3,
    "run_id": "demo-1",
    "search": "a & b?",
    "settings": ServiceSettings(host="0.0.0.0", cors_origins=("https://shop.example",), log_fraction=0.5),
    "share": 0.25,
    "since": "0f1e",
    "site": Site(name="lab", kind=SiteKind.SLURM, address="host"),
    "states": (RunState.FAILED, RunState.STOPPED),
    "tail": 5,
    "trust": True,
    "until": 2**40,
    "value": "hunter2 & äöü\n",
    "values": {"rate": "0.5", "to day": "ä"},
    "versions": ("1", "prod"),
    "wait_seconds": 0.0,
    "workers": 4,
}
OTHERS = {
    ("costs", "project"): "vision",
    ("offers", "site"): "aws",
    ("add_service_key", "key"): "app",
    ("remove_service_key", "key"): "app",
    ("start_service", "project"): "vision",
    ("start_service", "resource"): "servers",
    ("plan_service", "resource"): "servers",
    ("images", "site"): "aws",
    ("runs", "pipeline"): "demo",
    ("diff", "after"): "demo/a@2",
    ("jobs", "states"): (JobState.RUNNING, JobState.FAILED),
}
"""Arguments that have the name of another one, but not its type."""


class Listener:
    """A Grid that keeps what it is asked, and answers with an error."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in USE_CASES:
            raise AttributeError(name)

        def call(*given: Any, **named: Any) -> Any:
            self.asked.append((name, dict(USE_CASES[name].arguments(given, named))))
            raise ConflictError(f"{name} was heard")

        return call


@pytest.fixture(scope="module", params=["http", "calls"])
def way(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Listener, Grid]]:
    listener = Listener()
    if request.param == "http":
        server: Any = serve(make_app(listener))
        grid: Any = over_tcp(server.address, None)
    else:
        folder = tmp_path_factory.mktemp("s")
        server = ServedGrid(listener, folder)
        grid = connect_to(folder / SOCKET, Hello(), lambda warning: None).grid()
    yield listener, grid
    server.stop()


def arguments_of(row: UseCase) -> dict[str, Any]:
    return {name: OTHERS.get((row.name, name)) or sample(name, hint) for name, hint in row.takes.items()}


def sample(name: str, hint: Any) -> Any:
    """One by name; a record that has none is made from a text for each field that has no default value."""
    if name in SAMPLES or not is_dataclass(hint):
        return SAMPLES[name]
    needed = [one.name for one in fields(hint) if one.default is MISSING and one.default_factory is MISSING]
    return hint(**dict.fromkeys(needed, "demo"))


@pytest.mark.parametrize("row", USE_CASES.values(), ids=list(USE_CASES))
def test_all_arguments_arrive_as_they_were_given(way: tuple[Listener, Grid], row: UseCase) -> None:
    listener, grid = way
    arguments = arguments_of(row)
    with pytest.raises(ConflictError, match=f"{row.name} was heard"):
        getattr(grid, row.name)(**arguments)
    assert listener.asked[-1] == (row.name, arguments)


@pytest.mark.parametrize("row", USE_CASES.values(), ids=list(USE_CASES))
def test_arguments_that_were_not_given_have_their_default_values(
    way: tuple[Listener, Grid], row: UseCase
) -> None:
    listener, grid = way
    every = row.signature.parameters.values()
    needed = {one.name: arguments_of(row)[one.name] for one in every if one.default is one.empty}
    defaults = {one.name: one.default for one in every if one.default is not one.empty}
    with pytest.raises(ConflictError):
        getattr(grid, row.name)(**needed)
    name, asked = listener.asked[-1]
    assert (name, defaults | asked) == (row.name, defaults | needed)


def test_every_argument_has_a_sample() -> None:
    taken = {name: hint for row in USE_CASES.values() for name, hint in row.takes.items()}
    assert set(SAMPLES) <= set(taken)
    assert [name for name, hint in taken.items() if name not in SAMPLES and not is_dataclass(hint)] == []
