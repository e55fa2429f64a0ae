"""A sink is altered only by what its table has, or will have."""

import pytest

from gridmill.control.usecases.service import Identity, Service
from gridmill.domain.artifact import Artifact, ArtifactKind, Column, Output
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.sink import ColumnType, Constraint, Outage, SinkSpec
from gridmill.domain.sink_overrides import AlterVerb, SinkChange
from gridmill.domain.source import Source
from gridmill.errors import InputError
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
