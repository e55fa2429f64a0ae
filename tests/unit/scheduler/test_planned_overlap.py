"""The expected time and cost of jobs that share a rented machine: the inputs of the next job are transferred
while a job runs."""

from math import ceil

import pytest

from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.command import CommandSpec
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job, JobKind, JobSize
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.rental_estimate import Charges, CostKind, Phase
from gridmill.domain.resource import MeasuredUse, Measurement, Resource, TransferEstimate
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.domain.views import DryRun, PlannedJob
from gridmill.scheduler.dry_run import dry_run
from gridmill.scheduler.rental_estimate import estimate
from gridmill.scheduler.snapshot import Snapshot

BOOT, RUN, DOWNLOAD, RELEASE = 180.0, 100.0, 10.0, 5.0
PRICE = 3_600_000
"""One millionth of a dollar for each millisecond."""


def measured(name: str) -> Measurement:
    return Measurement(
        attempt_id=f"p-1.{name}.1",
        subject=f"command/p/{name}",
        job=f"p/{name}",
        size=JobSize(),
        given=Amounts(memory_bytes=GIB),
        use=MeasuredUse(wall_seconds=RUN, peak_memory_bytes=100 * MIB),
        ended=1.0,
    )


def shown(
    *needs: str, upload: float = 40.0, keep: float = 60.0, workers: int = 1, early: str = "yes"
) -> DryRun:
    """The dry run of the jobs `a` and `b`, which both need a GPU of the same resource; `needs` of `b`."""
    nodes = tuple(
        Node(name=f"g#{number}", capacity=Amounts(cpus=8, memory_bytes=32 * GIB, gpus=2)) for number in (1, 2)
    )
    site = Site(name="aws", kind=SiteKind.CLOUD, nodes=nodes, settings={"early": early})
    burst = Resource(
        name="burst", type=JobKind.COMMAND, site="aws", gpus=1, workers=workers, keep_seconds=keep
    )
    jobs = tuple(
        Job(name=name, needs=of, command=CommandSpec(run="true"), resource="burst")
        for name, of in (("a", ()), ("b", needs))
    )
    transfer = TransferEstimate(
        upload_bytes=1, upload_seconds=upload, download_bytes=1, download_seconds=DOWNLOAD
    )

    def rent(planned: PlannedJob) -> PlannedJob:
        rental = estimate(
            instance_type="g",
            region="r",
            price_micros=PRICE,
            currency="USD",
            boot=None,
            run_seconds=RUN,
            transfer=transfer,
            charges=Charges(disk_micros=1, egress_micros=1, address_micros=3600),
            disk_bytes=GIB,
        )
        return replace(planned, transfer=transfer, rentals={"burst": rental})

    snapshot = Snapshot((site, burst, measured("a"), measured("b")))
    return dry_run(Pipeline(name="p", jobs=jobs), snapshot, {}, frozenset(), rent=rent)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, BOOT + 40 + RUN + DOWNLOAD + RUN + DOWNLOAD),
        ({"early": "no"}, BOOT + 40 + RUN + DOWNLOAD + 40 + RUN + DOWNLOAD),
        # the upload takes longer than the job that runs meanwhile
        ({"upload": 300.0}, BOOT + 300 + RUN + DOWNLOAD + 190 + RUN + DOWNLOAD),
        # two machines
        ({"workers": 2}, BOOT + 40 + RUN + DOWNLOAD),
    ],
)
def test_the_upload_of_the_next_job_overlaps_with_the_running_job(
    fields: dict[str, object], seconds: float
) -> None:
    assert shown(**fields).expected_seconds == seconds + RELEASE  # type: ignore[arg-type]


def test_the_inputs_of_a_job_that_needs_the_running_job_are_not_transferred_early() -> None:
    assert shown("a").expected_seconds == BOOT + 2 * (40 + RUN + DOWNLOAD) + RELEASE


def test_the_shared_machine_costs_its_boot_once_and_the_overlap_nothing() -> None:
    first, second = (one.rentals["burst"] for one in shown().jobs)
    assert first.seconds[Phase.BOOT] == BOOT
    assert (second.seconds[Phase.BOOT], second.seconds[Phase.UPLOAD]) == (0.0, 0.0)
    assert first.micros[CostKind.MACHINE] == ceil(PRICE * (BOOT + 40 + RUN + DOWNLOAD + RELEASE) / 3600)
    assert second.micros[CostKind.MACHINE] == ceil(PRICE * (RUN + DOWNLOAD + RELEASE) / 3600)
    assert second.micros[CostKind.EGRESS] == first.micros[CostKind.EGRESS]
    assert second.assumed == ("the machine of a; its inputs are transferred while a runs",)
