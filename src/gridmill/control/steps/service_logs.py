"""This module records how many lines of its request log a service has logged and lost."""

from gridmill.control.ledger import Transaction
from gridmill.domain.frozen import replace
from gridmill.domain.log_counts import (
    LOSS_TEXTS,
    NO_ARRIVALS,
    NO_LOG,
    LogArrivals,
    LogLoss,
    LogLosses,
    end_message,
)
from gridmill.domain.run import JobRun
from gridmill.domain.service import Service
from gridmill.domain.serving import ServiceReport
from gridmill.ports.storage import Storage


def with_log_report(service: Service, attempt_id: str, report: ServiceReport) -> Service:
    """Return the service with the counts of the log in the report of an attempt."""
    return (
        service if report.log is None else replace(service, log=service.log.reported(attempt_id, report.log))
    )


def new_losses(before: Service, after: Service, attempt_id: str) -> str:
    """Return the message about reasons for which the log of an attempt begins to lose lines; empty if there
    are no new ones."""
    reasons: list[set[str]] = []
    for service in (before, after):
        known = service.log.of(attempt_id)
        lost = known.report.lost if known is not None else {}
        reasons.append({reason for one in lost.values() for reason, number in one.items() if number})
    texts = [LOSS_TEXTS[LogLoss(one)] for one in sorted(reasons[1] - reasons[0]) if one in set(LogLoss)]
    return f"the request log loses lines: {'; '.join(texts)}" if texts else ""


def ended_log(
    storage: Storage, transaction: Transaction, job_run: JobRun, attempt_id: str
) -> tuple[Service, str] | None:
    """Return the service of an attempt that has ended, with the lines that its log has lost, and a message
    about them (empty: it has lost none). The result is None if the attempt has logged nothing."""
    spec = job_run.job.service
    service = transaction.get(Service, spec.name) if spec is not None else None
    known = service.log.of(attempt_id) if service is not None else None
    if service is None or known is None or known.is_ended:
        return None
    arrivals = _arrivals(storage, service)
    after = replace(service, log=service.log.ended(attempt_id, arrivals))
    return after, end_message(known, arrivals)


def log_losses(storage: Storage, service: Service) -> LogLosses:
    """Return the lines that the request log of a service has lost until now."""
    return service.log.losses(_arrivals(storage, service))


def _arrivals(storage: Storage, service: Service) -> LogArrivals:
    """Return the files at home; a service that never logged has none."""
    if service.log == NO_LOG and not service.settings.log_fraction:
        return NO_ARRIVALS
    return storage.log_arrivals(service.name, service.log.writers)
