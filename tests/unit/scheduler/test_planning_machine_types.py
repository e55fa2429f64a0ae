"""A resource at a cloud site uses only machines of the type that it selects."""

from tests.kit.control_records import a_job_run, a_run

from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.job import JobKind
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.scheduler.plan import plan
from gridmill.scheduler.snapshot import Snapshot

SMALL, LARGE = Amounts(cpus=4.0, memory_bytes=16 * GIB), Amounts(cpus=96.0, memory_bytes=384 * GIB)


def planned(memory_bytes: int, **settings: str):
    """The plan for one job at a site with two types of machines."""
    nodes = (Node(name="small#1", capacity=SMALL), Node(name="large#1", capacity=LARGE))
    site = Site(name="aws", kind=SiteKind.CLOUD, nodes=nodes)
    resource = Resource(name="r", type=JobKind.COMMAND, site="aws", settings=settings)
    sizing = Sizing(amounts=Amounts(cpus=1.0, memory_bytes=memory_bytes))
    return plan(Snapshot([site, resource, a_run(), a_job_run(sizing=sizing)]), 0.0)


def test_the_smallest_machine_is_used_unless_a_type_is_selected():
    assert [one.nodes for one in planned(GIB).bring_ups] == [("small#1",)]
    assert [one.nodes for one in planned(GIB, instance_type="large").bring_ups] == [("large#1",)]
    assert [one.nodes for one in planned(32 * GIB).bring_ups] == [("large#1",)]


def test_a_job_that_is_too_large_for_the_selected_type_is_refused():
    refused = planned(32 * GIB, instance_type="small")
    assert refused.bring_ups == ()
    assert len(refused.refusals) == 1
    assert "16 GiB" in refused.refusals[0].message


def test_a_type_that_the_site_does_not_offer_has_no_machine():
    assert planned(GIB, instance_type="other").bring_ups == ()
