"""Settings of resources that no job could use are refused when the resource is configured."""

from collections.abc import Mapping

import pytest
from tests.kit.rented_site import AWS, RentedGrid

from gridmill.control.usecases.resources import ResourceUseCases
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.frozen import replace
from gridmill.domain.job import JobKind
from gridmill.domain.resource import Resource
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.errors import InputError, NotFoundError, UnavailableError

LARGE = Node(name="n1", capacity=Amounts(cpus=8.0, memory_bytes=32 * GIB), partitions=("gpu",))
SMALL = Node(name="n2", capacity=Amounts(cpus=2.0, memory_bytes=4 * GIB), partitions=("debug",))
LAB = Site(name="lab", kind=SiteKind.SLURM, nodes=(LARGE, SMALL), partitions=("gpu", "debug"))


@pytest.fixture
def grid() -> RentedGrid:
    grid = RentedGrid()
    with grid.node.changing() as transaction:
        transaction.put(LAB, replace(LAB, name="farm", kind=SiteKind.CLUSTER, partitions=()))
    return grid


def configured(grid: RentedGrid, site: str = AWS, **settings: str) -> tuple[str, ...]:
    """Configure a resource, and return the reasons of its size."""
    resource = Resource(name="r", type=JobKind.COMMAND, site=site, settings=settings)
    return ResourceUseCases(grid.node).configure_resource(resource)[1].why


def is_stored(grid: RentedGrid) -> bool:
    return "r" in grid.node.control.ledger.snapshot.resources


@pytest.mark.parametrize(
    ("settings", "place", "message", "hint"),
    [
        ({"instance_type": "gpu.won"}, "instance_type", "no machines of type 'gpu.won'", "mean `gpu.one`?"),
        (
            {"instance_type": "p5"},
            "instance_type",
            "no machines of type 'p5'",
            "Known are gpu.eight, gpu.one",
        ),
        ({"region": "nrth-1"}, "region", "whose name begins with 'nrth-1'", "mean `north-1`?"),
        (
            {"region": "mars", "instance_type": "gpu.one"},
            "region",
            "no machines of type 'gpu.one' in a region whose name begins with 'mars'",
            "Known are north-1, south-1",
        ),
        (
            {"region": "mars", "instance_type": "gpu.won"},
            "instance_type",
            "no machines of type 'gpu.won'",
            "mean `gpu.one`?",
        ),
    ],
)
def test_an_unknown_region_or_type_of_machine_is_refused_with_similar_names(
    grid: RentedGrid, settings: Mapping[str, str], place: str, message: str, hint: str
) -> None:
    with pytest.raises(InputError) as refused:
        configured(grid, **settings)
    assert refused.value.place == f"resource r: settings.{place}"
    assert message in refused.value.message
    assert hint in refused.value.hint
    assert "gridmill offers aws" in refused.value.hint
    assert not is_stored(grid)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"gpu_memory": "900GB"}, "too little GPU memory"),
        ({"instance_type": "gpu.one", "max_price": "0.01"}, "the offers for gpu.one have a price above"),
        ({"max_price": "5", "currency": "EUR"}, "prices in USD"),
    ],
)
def test_terms_within_which_nothing_is_offered_are_refused(
    grid: RentedGrid, settings: Mapping[str, str], reason: str
) -> None:
    with pytest.raises(
        InputError, match="no machine of aws can be rented within the terms of resource 'r'"
    ) as why:
        configured(grid, **settings)
    assert reason in why.value.message
    assert not is_stored(grid)


def test_known_settings_are_accepted_and_a_provider_that_does_not_answer_is_shown(grid: RentedGrid) -> None:
    whole = {"region": "nor", "instance_type": "gpu.one", "max_price": "5"}
    assert not [one for one in configured(grid, **whole) if "not checked" in one]
    assert is_stored(grid)

    def fail(*_: object) -> Mapping[str, object]:
        raise UnavailableError("the provider does not answer")

    grid.world.provider.offers = fail  # type: ignore[method-assign,assignment]
    assert configured(grid, region="mars")[-1] == (
        "not checked: whether aws rents such machines: the provider does not answer"
    )


def test_a_partition_that_does_not_exist_is_refused(grid: RentedGrid) -> None:
    configured(grid, "lab", partition="gpu,debug")
    with pytest.raises(InputError, match="is in partition 'gpus', which site lab does not have") as refused:
        configured(grid, "lab", partition="debug,gpus")
    assert refused.value.hint == "Did you mean `gpu`? Its partitions are gpu, debug."
    assert refused.value.place == "resource r: settings.partition"
    resource = Resource(name="r", type=JobKind.COMMAND, site="lab", cpus=8.0, settings={"partition": "debug"})
    with pytest.raises(InputError, match="asks for"):
        ResourceUseCases(grid.node).configure_resource(resource)


def test_an_unknown_site_is_refused_with_the_similar_name(grid: RentedGrid) -> None:
    with pytest.raises(NotFoundError) as refused:
        configured(grid, "labs")
    assert refused.value.hint.startswith("Did you mean `lab`? Sites are ")


def test_a_resource_at_a_farm_has_no_settings_of_its_own(grid: RentedGrid) -> None:
    configured(grid, "farm")
    with pytest.raises(InputError, match="a resource at a farm has no setting 'region'"):
        configured(grid, "farm", region="us-")
