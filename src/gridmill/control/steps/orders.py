"""Starts attempts: makes the order and sends it to the pod; to another machine, the code is sent first."""

from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial

from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import Clients, Control
from gridmill.control.steps.gangs import send_to_pod
from gridmill.control.steps.inputs import order_for
from gridmill.control.steps.settle import LOST, defect, settle_attempt
from gridmill.domain.frozen import replace
from gridmill.domain.pod_protocol import (
    Order,
    Outcome,
    Start,
)
from gridmill.domain.run import Attempt
from gridmill.domain.site import LOCAL
from gridmill.domain.states import AttemptState, Cause
from gridmill.errors import GridmillError, StorageError

STOPPED_EARLY = Outcome(state=AttemptState.STOPPED, cause=Cause.STOPPED, message="stopped before it started")


def start_attempt(control: Control, transaction: Transaction, attempt: Attempt) -> None:
    """Send Start once the transaction is committed, if the pod's link is open; else its Hello asks for it."""
    current = transaction.get(Attempt, attempt.id)
    if current is not None and current.stop_requested:  # another rank of its gang could not be started
        settle_attempt(control, transaction, current, STOPPED_EARLY)
        return
    try:
        order = order_for(control.catalog, control.storage, transaction, attempt)
    except StorageError:  # the store, not the job: tried again
        raise
    except GridmillError as error:
        settle_attempt(control, transaction, attempt, _failed(Cause.INPUT, error))
        return
    except Exception as error:  # noqa: BLE001  tried again for ever, it would hold up every run
        told = defect(control.problems, attempt.id, error)
        settle_attempt(control, transaction, attempt, _failed(Cause.INTERNAL, told))
        return
    transaction.then(partial(_give, control, attempt, order))


def _give(control: Control, attempt: Attempt, order: Order) -> None:
    """Send Start; where the pod is on another machine the code goes first, beside the ticks."""
    if order.bundle_path and order.bundle:
        share = partial(control.storage.share_bundle, order.bundle)
        control.aside.do(f"share code for {attempt.id}", share, partial(_shared, control, order))
    else:
        environment = _environment_of(control.ledger, control.clients, attempt)
        send_to_pod(control.channels, attempt.pod_id, Start(order=order, environment=environment))


def _environment_of(ledger: Ledger, clients: Clients, attempt: Attempt) -> Mapping[str, str] | None:
    """Pods of this machine give the jobs of a client's run that client's environment."""
    here = ledger.snapshot.deployments.get(attempt.deployment_id)
    is_local = here is not None and here.site == LOCAL
    return clients.environments.get(attempt.run_id) if is_local else None


def _shared(control: Control, order: Order, done: Future[None]) -> None:
    """Its code is where the pod finds it: start, if that is still wanted."""
    attempt = control.ledger.snapshot.attempts.get(order.attempt_id)
    if attempt is None or attempt.state != AttemptState.PLACED or attempt.outcome is not None:
        return
    try:
        done.result()
        outcome = STOPPED_EARLY if attempt.stop_requested else None
    except StorageError as error:  # a file server that is full or away: tried again like a lost pod
        outcome = replace(LOST, message=f"its code could not be carried there: {error}")
    if outcome is None:
        environment = _environment_of(control.ledger, control.clients, attempt)
        send_to_pod(control.channels, attempt.pod_id, Start(order=order, environment=environment))
        return
    transaction = control.begin()
    settle_attempt(control, transaction, attempt, outcome)
    control.ledger.stage(transaction)


def _failed(cause: Cause, error: GridmillError) -> Outcome:
    return Outcome(state=AttemptState.FAILED, cause=cause, message=error.message, hint=error.hint)
