"""This module moves an alias, or keeps it, after a prediction with `promote` has compared a new version with
the version of the alias. It also records what a user decides about a version that waits for approval.

The version of the prediction, the alias and the event are written in one commit.
"""

from gridmill.codec import from_builtins
from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import Problems
from gridmill.control.steps.latest import note_set
from gridmill.domain.artifact import Alias, split_reference
from gridmill.domain.frozen import replace
from gridmill.domain.pod_protocol import AttemptOutcome, Event
from gridmill.domain.promotion import (
    PROMOTION,
    PROMOTION_EVENT,
    AliasNow,
    Promotion,
    PromotionMeasurement,
    PromotionState,
    decide_promotion,
    expired,
)
from gridmill.domain.run import JobRun
from gridmill.ports.storage import Storage


def note_promotion(
    ledger: Ledger,
    storage: Storage,
    problems: Problems,
    transaction: Transaction,
    job_run: JobRun,
    outcome: AttemptOutcome,
) -> JobRun:
    """Move the alias of a prediction that has succeeded, or keep it, and return the job with the result as
    its message. Raises InputError for a measurement that cannot be read."""
    terms = job_run.job.prediction.promote if job_run.job.prediction is not None else None
    details = outcome.outputs[0].details if outcome.outputs else {}
    if terms is None or PROMOTION not in details:
        return job_run
    measured = from_builtins(details[PROMOTION], PromotionMeasurement)
    before = transaction.get(Alias, terms.alias) or ledger.look_up(Alias, terms.alias)
    if before is not None and measured.candidate == before.version:
        return replace(job_run, message=f"{terms.alias} already names {measured.candidate}")
    now = AliasNow() if before is None else AliasNow(version=before.version, metric=before.metric)
    promotion = decide_promotion(terms, measured, now, job_run.run_id, transaction.now)
    if before is not None and (old := expired(before.promotion, transaction.now)) != before.promotion:
        _add_event(transaction, job_run.run_id, job_run.job.name, terms.alias, old)
    after = _alias_after(terms.alias, before, promotion, transaction.now)
    if after is not None:
        transaction.put(after)
        if promotion.state is PromotionState.MOVED:
            note_set(storage, problems, transaction, before, after, by=job_run.run_id)
    _add_event(transaction, job_run.run_id, job_run.job.name, terms.alias, promotion)
    return replace(job_run, message=f"{terms.alias} {promotion.text}")


def _alias_after(alias_id: str, before: Alias | None, promotion: Promotion, now: float) -> Alias | None:
    """Return the alias after the decision; None if there is no alias, because it was deleted meanwhile."""
    if promotion.state is PromotionState.MOVED:
        return moved_alias(alias_id, promotion.measured.candidate, promotion, now)
    return replace(before, promotion=promotion) if before is not None else None


def moved_alias(alias_id: str, version: str, promotion: Promotion, now: float) -> Alias:
    """Return an alias that names this version."""
    name, alias = split_reference(alias_id)
    number = int(split_reference(version)[1])
    return Alias(id=alias_id, name=name, alias=alias, number=number, changed=now, promotion=promotion)


def note_user_decision(transaction: Transaction, alias: Alias) -> None:
    """Add the event about the decision of a user to the run that compared the versions."""
    if alias.promotion is not None:
        _add_event(transaction, alias.promotion.run, "", alias.id, alias.promotion)


def _add_event(
    transaction: Transaction, run_id: str, job: str, alias_id: str, promotion: Promotion | None
) -> None:
    if promotion is None:
        return
    measured = promotion.measured
    body = {
        "what": "alias",
        "id": alias_id,
        "state": promotion.state.value,
        "message": promotion.text,
        "candidate": measured.candidate,
        "serving": measured.serving,
        "metric": measured.metric,
        "candidate_value": measured.candidate_value,
        "serving_value": measured.serving_value,
        "rows": measured.rows,
    }
    transaction.events.append(
        Event(time=transaction.now, type=PROMOTION_EVENT, run_id=run_id, job=job, body=body)
    )
