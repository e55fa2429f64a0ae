"""This module reads the numbers of a whole service for its view: which reports belong to attempts that run
now, and which pods are not connected."""

from gridmill.control.ledger import Ledger
from gridmill.control.state import Channels
from gridmill.domain.frozen import replace
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.service import Service
from gridmill.domain.service_counters import ServiceTotals
from gridmill.domain.service_totals import totals_of
from gridmill.domain.states import LIVE_ATTEMPTS


def read_attempt(ledger: Ledger, service: Service, job: str) -> Attempt | None:
    """Return the attempt in which a job of a service runs now, from the store."""
    job_run = ledger.read(JobRun, f"{service.run_id}/{job}")
    attempt = ledger.read(Attempt, job_run.attempt_id) if job_run is not None and job_run.attempt_id else None
    return attempt if attempt is not None and attempt.state in LIVE_ATTEMPTS else None


def read_totals(ledger: Ledger, channels: Channels, service: Service) -> ServiceTotals:
    """Return the numbers of a whole service. The report of an attempt that has ended does not count."""
    jobs = (service.serving_job, *(one.job for one in service.further_pods))
    found = (read_attempt(ledger, service, job) for job in jobs)
    live = {one.id: one for one in found if one is not None}
    if service.reported_by not in live:
        service = replace(service, report=None, reported_by="")
    further = (
        one if one.reported_by in live else replace(one, report=None, reported_by="")
        for one in service.further_pods
    )
    silent = {name for name, one in live.items() if one.pod_id not in channels.by_pod}
    return totals_of(replace(service, further_pods=tuple(further)), silent)
