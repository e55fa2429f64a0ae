"""A resource at a cloud site uses only machines within its terms, and not more machines than permitted."""

from collections.abc import Sequence

from tests.kit.control_records import a_deployment, a_job_run, a_pod, a_run

from gridmill.cli.format import node_count
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.frozen import replace
from gridmill.domain.job import JobKind
from gridmill.domain.lease import MICROS, LaunchTry, Lease, LeaseState, RentalTerms, TryState
from gridmill.domain.machine import MEMORY_SHARE, Offer
from gridmill.domain.plan import Plan
from gridmill.domain.rental_nodes import type_of
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.site import Node, Site, SiteKind, SiteOffers
from gridmill.scheduler.draft import DraftPlan
from gridmill.scheduler.explain import why_waiting
from gridmill.scheduler.nodes_within_terms import nodes_within_terms, terms_of
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


def an_offer(
    kind: str, capacity: Amounts, price: float | None, region: str = "us-1", **fields: object
) -> Offer:
    return Offer(
        provider="x",
        region=region,
        zones=("a",),
        instance_type=kind,
        cpus=int(capacity.cpus),
        memory_bytes=int(capacity.memory_bytes / MEMORY_SHARE) + 1,
        price_micros=None if price is None else int(price * MICROS),
        **fields,
    )


OFFERS = (
    an_offer("small", SMALL, 0.2, spot_price_micros=MICROS // 20),
    an_offer("large", LARGE, 5.0),
    an_offer("large", LARGE, 4.0, "eu-1"),
    an_offer("gpu", SMALL, 1.0, gpus=1, gpu_model="T4", gpu_memory_bytes=16 * GIB),
    an_offer("big.gpu", SMALL, 1.5, gpus=1, gpu_model="A10G", gpu_memory_bytes=24 * GIB),
    an_offer("arm", SMALL, 0.1, architecture="arm64"),
)


def a_market(*resources: Resource, offers: Sequence[Offer] = OFFERS, **settings: str) -> Site:
    """The site as the site monitor stores it for these resources."""
    site = Site(name="aws", kind=SiteKind.CLOUD, settings=settings)
    terms = [terms_of(site, one.settings) for one in resources]
    nodes, kept = nodes_within_terms(offers, terms, site.most_machines)
    asked = tuple({(one.region, one.instance_type) for one in terms})
    return replace(site, nodes=nodes, market=SiteOffers(offers=kept, asked=asked))


def a_resource(name: str = "r", *, gpus: int = 0, **settings: str) -> Resource:
    return Resource(name=name, type=JobKind.COMMAND, site="aws", settings=settings, gpus=gpus)


def planned_at(site: Site, resource: Resource, *, memory_bytes: int = GIB, jobs: int = 1) -> Plan:
    sizing = Sizing(amounts=Amounts(cpus=1.0, memory_bytes=memory_bytes, gpus=resource.gpus))
    runs = [a_job_run(name=f"job{number}", sizing=sizing) for number in range(jobs)]
    return plan(Snapshot([site, resource, a_run(), *runs]), 0.0)


def planned_types(resource: Resource, *others: Resource, **job: int) -> set[str]:
    made = planned_at(a_market(resource, *others), resource, **job)
    return {type_of(node) for one in made.bring_ups for node in one.nodes}


def refusal(resource: Resource, *others: Resource, **job: int) -> str:
    made = planned_at(a_market(resource, *others), resource, **job)
    assert made.bring_ups == ()
    (refused,) = made.refusals
    return refused.message


def test_only_machines_within_the_terms_are_planned():
    everything = a_resource("other")
    assert planned_types(a_resource(), everything) == {"small"}
    assert planned_types(a_resource(max_price="0.5"), everything) == {"small"}
    assert planned_types(a_resource(), everything, memory_bytes=32 * GIB) == {"large"}
    assert planned_types(a_resource(region="eu-"), everything, memory_bytes=32 * GIB) == {"large"}
    # a node stands for a size: the lease of its pod gets the cheapest type that is within the terms
    assert planned_types(a_resource(gpus=1), everything) <= {"gpu", "big.gpu"}
    assert planned_types(a_resource(gpus=1, gpu_memory="20GB"), everything) <= {"gpu", "big.gpu"}
    assert planned_types(a_resource(spot="true", max_price="0.06"), everything) == {"small"}
    assert planned_types(a_resource(instance_type="arm"), everything) <= {"arm", "small"}


def test_a_job_that_no_offer_within_the_terms_can_serve_is_refused_with_the_reason():
    everything = a_resource("other")
    why = refusal(a_resource(max_price="0.5"), everything, memory_bytes=32 * GIB)
    assert "needs 32 GiB; the largest machine of aws within the terms of resource r has 16 GiB" in why
    why = refusal(a_resource(max_price="0.05"), everything)
    assert "within the terms of resource 'r': the offers have" in why
    assert "a price above 0.0500 USD per hour" in why
    assert "the provider offers no machine in ap-" in refusal(a_resource(region="ap-"), everything)
    why = refusal(a_resource(instance_type="large", max_price="3"), everything)
    assert "the offers for large have a price above 3.00 USD per hour" in why
    why = refusal(a_resource(gpus=1, gpu_memory="80GB"), everything)
    assert "too little GPU memory" in why
    why = refusal(a_resource(gpus=1, spot="true"), everything)
    assert "the largest machine of aws within the terms of resource r has 4 CPUs, 16 GiB, 0 GPUs" in why


def test_machines_of_a_region_that_only_one_resource_uses_are_not_planned_for_another():
    offers = (an_offer("small", SMALL, 0.2), an_offer("large", LARGE, 4.0, "eu-1"))
    here, there = a_resource(region="us-"), a_resource("other", region="eu-")
    site = a_market(here, there, offers=offers)
    assert planned_at(site, here, memory_bytes=32 * GIB).bring_ups == ()
    made = planned_at(site, replace(there, name="r"), memory_bytes=32 * GIB)
    assert [type_of(one.nodes[0]) for one in made.bring_ups] == ["large"]


def test_a_job_waits_while_the_offers_for_its_terms_are_not_known():
    site = a_market(a_resource("other"))
    for settings in ({"region": "eu-"}, {"instance_type": "rare"}):
        made = planned_at(site, a_resource(**settings), memory_bytes=500 * GIB * len(settings))
        assert made.refusals == () or "rare" not in made.refusals[0].message
    assert planned_at(site, a_resource(instance_type="rare")).refusals == ()


def test_no_more_machines_are_planned_than_the_site_permits():
    resource = replace(a_resource(), workers=6, memory_bytes=14 * GIB)
    site = a_market(resource, max_machines="3")
    made = planned_at(site, resource, memory_bytes=10 * GIB, jobs=6)
    assert sum(len(one.nodes) for one in made.bring_ups) == 3
    pods = (a_pod(node="small#1"), a_pod(1, node="small#1"))
    first = a_deployment(*pods, site="aws")
    snapshot = Snapshot([site, resource, a_run(), first, a_job_run()])
    assert DraftPlan(snapshot, 0.0, None).machines_left("aws") == 1


def test_a_site_shows_each_type_once_and_the_number_of_machines():
    site = a_market(a_resource(), a_resource("g", gpus=1))
    assert node_count(site) == "up to 8 machines of 4 types"
    assert len(site.nodes) == 32
    assert {node.name for node in site.kinds_of_nodes} == {"small", "large", "gpu", "big.gpu"}


def test_the_nodes_that_a_resource_may_use_are_found_once_until_the_site_changes():
    resource = a_resource(gpus=1, instance_type="gpu")
    site = a_market(resource)
    snapshot = Snapshot([site, resource, a_run(), a_job_run()])
    places, settings = snapshot.places, resource.settings
    first = places.usable_nodes(snapshot.sites["aws"], settings)
    assert {type_of(node.name) for node in first} == {"gpu"}
    plan(snapshot, 0.0)
    assert places.usable_nodes(snapshot.sites["aws"], settings) is first
    snapshot.put(replace(site, route=None))
    assert places.usable_nodes(snapshot.sites["aws"], settings) is first
    snapshot.put(replace(site, nodes=site.nodes[:2]))
    assert {node.name for node in places.usable_nodes(snapshot.sites["aws"], settings)} <= {
        node.name for node in site.nodes[:2]
    }
    snapshot.put(replace(site, away=first[:1]))
    assert places.usable_nodes(snapshot.sites["aws"], settings, away=True) == first[:1]
    assert places.usable_nodes(snapshot.sites["aws"], settings) == first


def an_ending_lease(pod_id: str) -> Lease:
    """A lease whose machine ends, because its pod has ended."""
    machine = LaunchTry(
        number=1,
        token="t",
        region="us-1",
        zone="a",
        instance_type="small",
        state=TryState.CONFIRMED,
        machine_id="m",
        confirmed=0.0,
    )
    return Lease(
        id=f"lease-{pod_id}",
        provider="aws",
        owner="grid",
        resource="r",
        deployment_id="r-9",
        pod_id=pod_id,
        state=LeaseState.RELEASING,
        terms=RentalTerms(),
        tries=(machine,),
    )


def test_a_machine_that_ends_counts_until_the_provider_has_confirmed_its_end():
    resource = replace(a_resource(), memory_bytes=14 * GIB)
    idle = replace(resource, name="idle")
    site = a_market(resource, max_machines="2")
    up = a_deployment(a_pod(node="small#1"), resource="idle", site="aws", idle_since=0.0)
    ending = an_ending_lease("r-9.0")
    waiting = (a_run(), a_job_run(sizing=Sizing(amounts=Amounts(cpus=1.0, memory_bytes=10 * GIB))))
    snapshot = Snapshot([site, resource, idle, up, ending, *waiting])
    made = plan(snapshot, 0.0)
    assert made.bring_ups == ()
    assert made.releases == (), "the place of the machine that ends is enough"
    assert "2 machines of aws are rented" in why_waiting(snapshot, waiting[1].id, 0.0)
    own = replace(ending, pod_id=up.pods[0].id)
    assert len(plan(Snapshot([site, resource, idle, up, own, *waiting]), 0.0).bring_ups) == 1
    ended = replace(ending, tries=(replace(ending.tries[0], state=TryState.ENDED),))
    assert len(plan(Snapshot([site, resource, idle, up, ended, *waiting]), 0.0).bring_ups) == 1
