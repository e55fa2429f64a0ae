"""A sink is altered only by what its table has, or will have."""

from dataclasses import replace

import pytest

from gridmill.control.usecases.service import Identity, Service
from gridmill.domain.artifact import Artifact, ArtifactKind, Column, Output
from gridmill.domain.dataset import Basis, DatasetSpec
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.sink import ColumnType, Constraint, Outage, SinkSpec
from gridmill.domain.sink_overrides import AlterVerb, SinkChange
from gridmill.domain.source import Source
from gridmill.errors import InputError, PipelineError
from gridmill.sdk.client import change_of
from gridmill.stores import memory
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation

ADD = AlterVerb.ADD
SALES = SinkSpec(source=Source(path="sales.csv"), columns={"tax": ColumnType.FLOAT})
SHOPS = SinkSpec(source=Source(path="shops.csv"))
WRONG = [
    (change_of(ADD, Constraint(column="pricee", min=0)), "no 'pricee'; did you mean `price`"),
    (change_of(ADD, Constraint(unique=("id", "price"))), "no 'id'; it has shop, price, tax"),
    (change_of(ADD, Constraint(foreign_key=("shop",), references="shops")), "'shops' has no 'shop'"),
    (change_of(ADD, Outage(time="at", begins="2024-01-01", ends="2024-01-02")), "outage_window.time: "),
    (change_of(ADD, "sum(prize)", metric="revenue"), "metric: 'sales' has no 'prize'"),
]
RIGHT = [
    change_of(ADD, Constraint(column="Price", min=0)),
    change_of(ADD, Constraint(column="tax", min=0)),
    change_of(ADD, Constraint(foreign_key=("shop",), references="shops", referenced=("name",))),
    change_of(ADD, "sum(distinct price)", metric="revenue"),
    change_of(ADD, "count(*) filter (anything = 1)", metric="only the load can tell"),
    change_of(ADD, "other.csv"),
]


@pytest.fixture
def cases() -> Service:
    simulation = Simulation(store=memory.make(), behave=lambda order: Behaviour())
    simulation.declare_site()
    node = simulation.node
    node.control.ledger.load()
    made = Service(node, Identity(version="", home="", address="", embedded=True), render=str, end=str)
    jobs = (Job(name="sales", sink=SALES), Job(name="shops", sink=SHOPS))
    made.apply(Pipeline(name="p", jobs=jobs))
    return made


def loaded(cases: Service, name: str, *columns: str) -> None:
    output = Output(
        kind=ArtifactKind.SINK,
        uri=name,
        size_bytes=1,
        columns=tuple(Column(name=one, type="string") for one in columns),
    )
    version = Artifact(id=f"p/{name}@1", name=f"p/{name}", number=1, output=output, fingerprint="f")
    with cases._node.changing() as transaction:
        transaction.put(version)


@pytest.mark.parametrize(("change", "why"), WRONG)
def test_a_column_that_is_not_there_is_named_with_those_that_are(
    cases: Service, change: SinkChange, why: str
) -> None:
    loaded(cases, "sales", "shop", "price")
    loaded(cases, "shops", "name")
    with pytest.raises(InputError, match=why) as told:
        cases.alter_sink("p/sales", change)
    assert "'sales' has shop, price, tax" in told.value.hint
    assert cases.alterations().items == ()


@pytest.mark.parametrize("change", RIGHT)
def test_what_is_there_or_declared_or_sql_is_taken(cases: Service, change: SinkChange) -> None:
    loaded(cases, "sales", "shop", "price")
    loaded(cases, "shops", "name")
    assert cases.alter_sink("p/sales", change).changes == (change,)


@pytest.mark.parametrize("change", [change for change, _ in WRONG])
def test_of_what_was_never_loaded_nothing_is_known(cases: Service, change: SinkChange) -> None:
    assert cases.alter_sink("p/sales", change).changes == (change,)


BASIS = DatasetSpec(basis=Basis(table="sales", time="at", entity=("shop",)))


def test_a_run_is_refused_for_columns_that_its_sinks_do_not_select(cases: Service) -> None:
    selected = replace(SALES, select=("at", "price"), constraints=(Constraint(column="prise", min=0),))
    jobs = (Job(name="sales", sink=selected), Job(name="d", dataset=BASIS))
    with pytest.raises(PipelineError) as caught:
        cases.start_run(Pipeline(name="p", jobs=jobs))
    assert [place for place, _, _ in caught.value.problems] == [
        "jobs.sales.sink.constraints[0]",
        "jobs.d.dataset.basis.entity",
    ]
    assert "table 'sales' has no column 'prise'; did you mean `price`?" in caught.value.message
    assert caught.value.hint == "It has at, price."
    assert not cases.runs().items, "no run was started"


def test_a_run_is_refused_for_columns_that_a_version_of_another_pipeline_does_not_have(
    cases: Service,
) -> None:
    loaded(cases, "sales", "at", "price")
    spec = replace(BASIS, basis=Basis(table="p/sales", time="att", entity=("price",)))
    with pytest.raises(
        PipelineError, match="table 'p/sales' has no column 'att'; did you mean `at`"
    ) as caught:
        cases.start_run(Pipeline(name="q", jobs=(Job(name="d", dataset=spec),)))
    assert caught.value.place == "jobs.d.dataset.basis.time"


def test_a_run_starts_if_a_sink_may_get_the_column_when_it_is_loaded(cases: Service) -> None:
    loaded(cases, "sales", "at", "price")
    jobs = (Job(name="sales", sink=SALES), Job(name="d", dataset=BASIS))
    assert cases.start_run(Pipeline(name="p", jobs=jobs)).run.id == "p-1"
