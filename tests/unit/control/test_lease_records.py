"""The texts about rented machines name what ends a machine, and when it ends itself."""

from gridmill.control.steps.lease_records import left_text, provider_of
from gridmill.domain.lease import LaunchTry, Lease, LeaseState, RentalTerms, TryState
from gridmill.domain.site import Site, SiteKind

LEASE = Lease(
    id="lease-3",
    provider="burst-site",
    owner="grid-7f3a",
    resource="burst",
    deployment_id="burst-1",
    pod_id="burst-1.0",
    state=LeaseState.READY,
    terms=RentalTerms(dead_man_seconds=900.0, max_seconds=7200.0),
    tries=(
        LaunchTry(
            number=1,
            token="t-1",
            region="us-east-1",
            zone="us-east-1a",
            instance_type="g5.xlarge",
            price_micros=1_000_000,
            state=TryState.CONFIRMED,
            machine_id="i-1",
            confirmed=0.0,
        ),
    ),
)


def test_a_machine_that_is_left_running_is_described_with_the_commands_that_end_it():
    assert left_text(LEASE, "aws", exports=True) == (
        "lease lease-3 is still open while the control node ends. Machine i-1 costs 1.00 USD per hour;"
        " `gridmill stop lease lease-3` ends it, and `gridmill reap aws --owner grid-7f3a --lease lease-3"
        " --yes` ends it without the control node. Without a control node, the machine ends itself 15 m 00 s"
        " after its last job has ended, but at the latest 2 h 00 m after its start"
    )
    without = left_text(LEASE, "aws", exports=False)
    assert "ends itself 15 m 00 s after the last contact, also while a job runs, but at the latest" in without


def test_the_provider_of_a_site_is_the_kind_that_reap_needs():
    site = Site(name="burst-site", kind=SiteKind.CLOUD, settings={"provider": "aws"})
    assert provider_of({"burst-site": site}, "burst-site") == "aws"
    assert provider_of({}, "burst-site") == "burst-site"
