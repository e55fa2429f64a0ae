"""What a job at a batch service has cost."""

from dataclasses import replace

from gridmill.domain.batch_use import BatchUse, account_of
from gridmill.domain.lease import Lease
from gridmill.domain.lease_cost import CostBy, costs

USE = BatchUse(
    site="b", job_id="7", region="r", started=0.0, ended=7200.0, price_micros=3_000_000, currency="USD"
)


def account(use: BatchUse) -> Lease:
    return account_of(use, "p-1/j@1", ("main", "p-1", "j"), resource="r", deployment_id="d", pod_id="d.0")


def test_the_whole_cost_belongs_to_the_job() -> None:
    [row] = costs([account(USE)], CostBy.JOB, 1e9)
    assert (row.name, row.micros, row.seconds, row.overhead_micros) == ("p-1/j", 6_000_000, 7200.0, 0)


def test_an_unknown_price_stays_unknown() -> None:
    [row] = costs([account(replace(USE, price_micros=None))], CostBy.PROJECT, 1e9)
    assert (row.micros, row.unknown, row.seconds) == (0, 1, 7200.0)


def test_the_account_is_closed_and_can_be_written_again() -> None:
    lease = account(USE)
    assert not lease.is_open
    assert lease == account(USE)
    assert lease.id == "batch.p-1.j.1"
