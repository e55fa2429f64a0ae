"""The machine that would be rented for a planned job, and the resource that a deadline or budget chooses."""

import pytest

from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.command import CommandSpec
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job, JobKind
from gridmill.domain.lease import RentalTerms
from gridmill.domain.machine import Offer, Quota
from gridmill.domain.rental_estimate import Charges, estimate_lines
from gridmill.domain.resource import Resource, ResourceAlternative, Sizing, TransferEstimate
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.views import PlannedJob
from gridmill.errors import InputError
from gridmill.scheduler.rental_choice import Market
from gridmill.scheduler.rental_preview import (
    RentalPreview,
    SiteMarket,
    budget_problem,
    chosen_within,
    preview_rental,
    spot_warning,
)

SITE = Site(name="aws", kind=SiteKind.CLOUD)
BURST = Resource(name="burst", type=JobKind.COMMAND, site="aws", gpus=1, settings={"region": "us-"})
JOB = Job(name="train", command=CommandSpec(run=("true",)))


def offer(region: str, kind: str, price_micros: int | None, gpus: int = 1) -> Offer:
    """An offer of a machine with 16 GiB of memory."""
    return Offer(
        provider="aws",
        region=region,
        zones=(f"{region}a",),
        instance_type=kind,
        cpus=4,
        memory_bytes=16 * GIB,
        gpus=gpus,
        gpu_memory_bytes=24 * GIB if gpus else 0,
        price_micros=price_micros,
    )


OFFERS = (
    offer("us-west-2", "g5.xlarge", 1_006_000),
    offer("us-east-1", "g4dn.xlarge", 526_000),
    offer("eu-west-1", "g4dn.xlarge", 100_000),
    offer("us-east-1", "t3.xlarge", 10_000, gpus=0),
    offer("us-east-1", "unpriced", None),
)
MARKET = SiteMarket(
    market=Market(offers=OFFERS, capacities={}),
    charges=Charges(egress_micros=90_000, disk_micros=80_000, address_micros=5_000),
)


def planned(memory_bytes: int = 4 * GIB, **fields: object) -> PlannedJob:
    """A job that needs one GPU at the resource `burst`."""
    one = PlannedJob(
        job="train",
        kind="command",
        resource="burst",
        site="aws",
        needs=(),
        wave=1,
        sizing=Sizing(amounts=Amounts(cpus=2.0, memory_bytes=memory_bytes, gpus=1)),
    )
    return replace(one, **fields)


def preview(
    one: PlannedJob,
    resource: Resource = BURST,
    market: SiteMarket = MARKET,
    run_seconds: float | None = 3600.0,
) -> RentalPreview:
    """The preview of a job without transfers."""
    return preview_rental(resource, SITE, one.sizing, market, (), run_seconds=run_seconds, transfer=None)


def with_settings(**settings: str) -> Resource:
    """The resource with these settings besides the region."""
    return replace(BURST, settings={**BURST.settings, **settings})


def test_the_cheapest_offer_that_fits_the_region_and_the_size_is_previewed() -> None:
    rental = preview(planned()).rental
    assert rental is not None
    assert (rental.instance_type, rental.region) == ("g4dn.xlarge", "us-east-1")
    assert rental.total_seconds == 180.0 + 3600.0 + 5.0


def test_the_machine_has_the_amounts_of_the_resource_although_the_job_needs_less() -> None:
    large = replace(offer("us-east-1", "large", 900_000), memory_bytes=64 * GIB)
    market = replace(MARKET, market=Market(offers=(*OFFERS, large), capacities={}))
    rental = preview(planned(), replace(BURST, memory_bytes=32 * GIB), market).rental
    assert rental is not None
    assert rental.instance_type == "large"
    assert rental.price_micros == 900_000


def test_a_region_or_a_type_without_offers_is_named() -> None:
    """The provider was asked only for this type in this region."""
    resource = replace(BURST, settings={"region": "mars-", "instance_type": "g9.huge"})
    nothing = SiteMarket(market=Market(capacities={}))
    problem = preview(planned(), resource, nothing).problem
    assert ": the provider offers no machine g9.huge in mars-. `gridmill offers aws`" in problem
    assert "gridmill alter resource burst" in problem


def with_quotas(**limits: float) -> SiteMarket:
    """The market with quotas of virtual processors for machines whose types begin with these names."""
    quotas = tuple(
        Quota(region=region, name=kind, limit=limit, unit="vCPUs", types=(kind,))
        for kind, limit in limits.items()
        for region in ("us-east-1", "us-west-2")
    )
    return replace(MARKET, market=replace(MARKET.market, quotas=quotas))


def test_an_offer_whose_quota_permits_it_is_preferred() -> None:
    found = preview(planned(), market=with_quotas(g4dn=0, g5=4)).rental
    assert found is not None
    assert (found.instance_type, found.warning) == ("g5.xlarge", "")


def test_the_plan_warns_if_the_quotas_permit_no_machine() -> None:
    found = preview(planned(), market=with_quotas(g=0, unpriced=0)).rental
    assert found is not None
    assert "the quota of 0 vCPUs in us-east-1 permits no g4dn.xlarge" in found.warning
    assert "the job waits until you have a higher quota" in found.warning
    [line] = [one for one in estimate_lines(found.with_warning("more")) if one.startswith("warning")]
    assert line.endswith("; more")


def test_a_job_that_fits_no_offer_has_the_reasons() -> None:
    problem = preview(planned(memory_bytes=64 * GIB)).problem
    assert problem.startswith("no offer of aws fits 64 GiB, 2 CPUs and 1 GPU: ")
    assert "too little memory" in problem
    assert "no region us-" in problem
    assert "too few GPUs" in problem


def test_offers_that_could_not_be_read_are_named() -> None:
    away = SiteMarket(market=Market(capacities={}), problem="the provider does not answer")
    one = preview(planned(), market=away)
    assert one.unchecked == "what aws offers: the provider does not answer"
    assert not one.problem


def test_a_setting_that_is_wrong_is_refused() -> None:
    with pytest.raises(InputError, match="max_price"):
        preview(planned(), with_settings(max_price="much"))


def test_each_worker_has_a_machine_of_its_own() -> None:
    one = planned()
    rental = preview(replace(one, sizing=replace(one.sizing, workers=3))).rental
    single = preview(one).rental
    assert rental is not None
    assert single is not None
    assert rental.total_micros == 3 * (single.total_micros or 0)
    lines = estimate_lines(rental)
    assert lines[0].startswith("3 machines of type g4dn.xlarge in us-east-1 for 0.5260 USD per hour: ")
    assert "(each machine: " in lines[1]


def test_the_highest_cost_comes_from_the_limits_of_the_resource() -> None:
    market = replace(MARKET, charges=None)
    assert preview(planned(), with_settings(max_hours="4"), market).bound_micros == 5 * 526_000
    assert preview(planned(), with_settings(max_hours="4", max_cost="0.5")).bound_micros == 500_000
    unknown = preview(planned(), with_settings(max_cost="0.5"), run_seconds=None)
    assert unknown.micros == 500_000


def test_the_highest_cost_includes_the_disk_and_the_public_address() -> None:
    charges = Charges(egress_micros=90_000, disk_micros=730_000, address_micros=5_000)
    market = replace(MARKET, charges=charges)
    one = preview(planned(), with_settings(max_hours="4", disk="100GB"), market)
    assert one.bound_micros == 5 * (526_000 + 100 * 1_000 + 5_000)
    euros = replace(MARKET, charges=replace(charges, currency="EUR"))
    assert preview(planned(), with_settings(max_hours="4"), euros).bound_micros == 5 * 526_000


def test_an_unknown_price_needs_max_price_and_is_bounded_by_it() -> None:
    only = with_settings(instance_type="unpriced", max_hours="2")
    assert "unknown price" in preview(planned(), only).problem
    market = replace(MARKET, charges=None)
    allowed = preview(planned(), replace(only, settings={**only.settings, "max_price": "1.50"}), market)
    assert allowed.rental is not None
    assert allowed.rental.total_micros is None
    assert allowed.micros == 4_500_000


def alternatives(local_seconds: float) -> tuple[ResourceAlternative, ...]:
    """The local machine, which costs nothing, and the rented machine."""
    return (
        ResourceAlternative(resource="here", site="local", label="local", run_seconds=local_seconds),
        ResourceAlternative(resource="burst", site="aws", label="aws", run_seconds=3600.0),
    )


@pytest.mark.parametrize(
    ("deadline", "chosen"), [(20_000.0, "here"), (4000.0, "burst"), (100.0, "burst"), (None, "burst")]
)
def test_a_deadline_chooses_the_rented_machine_only_if_it_must(deadline: float | None, chosen: str) -> None:
    one = planned(alternatives=alternatives(10_000.0))
    job = replace(JOB, deadline_seconds=deadline, budget_micros=50_000_000)
    assert chosen_within(job, one, {"burst": preview(one)}).resource == chosen


def test_a_budget_below_the_cost_of_the_only_resource_refuses_the_job() -> None:
    job = replace(JOB, budget_micros=100_000)
    problem = budget_problem(job, chosen_within(job, planned(), {"burst": preview(planned())}))
    assert problem.startswith("the expected cost of 0.5")
    assert "exceeds the budget of 0.1000 USD. Increase `budget`" in problem


def test_a_budget_above_the_bound_allows_a_job_whose_duration_is_not_known() -> None:
    one = planned()
    bounded = preview(one, with_settings(max_cost="0.5"), run_seconds=None)
    unbounded = preview(one, run_seconds=None)
    job = replace(JOB, budget_micros=600_000)
    assert not budget_problem(job, chosen_within(job, one, {"burst": bounded}))
    assert "exceeds the budget" in budget_problem(job, chosen_within(job, one, {"burst": unbounded}))


def test_a_checkpoint_that_takes_longer_than_the_notice_of_a_spot_machine_is_a_warning():
    market = replace(MARKET, spot_notice_seconds=120.0)
    slow, quick = TransferEstimate(download_seconds=300.0), TransferEstimate(download_seconds=60.0)
    warning = spot_warning(RentalTerms(spot=True), market, slow)
    assert "take 5 min" in warning
    assert "longer than the notice of 2 min" in warning
    assert spot_warning(RentalTerms(spot=True), market, quick) == ""
    assert spot_warning(RentalTerms(spot=True), market, None) == ""
    assert spot_warning(RentalTerms(), market, slow) == ""
    assert "without a notice" in spot_warning(RentalTerms(spot=True), MARKET, quick)
