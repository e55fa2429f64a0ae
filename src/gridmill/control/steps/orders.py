"""This module starts attempts: it makes the order for the pod and sends it. If the pod is on another
machine, the code is copied first."""

from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial

from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import Clients, Starting
from gridmill.control.steps.end_attempt import LOST, defect, settle_attempt
from gridmill.control.steps.gangs import send_to_pod
from gridmill.control.steps.inputs import order_for
from gridmill.control.steps.services import can_run_services
from gridmill.domain.frozen import replace
from gridmill.domain.pod_protocol import PROTOCOL, SECRETS_PROTOCOL, AttemptOrder, AttemptOutcome, Start
from gridmill.domain.run import Attempt
from gridmill.domain.site import LOCAL
from gridmill.domain.states import AttemptState, Cause
from gridmill.errors import GridmillError, StorageError

STOPPED_EARLY = AttemptOutcome(
    state=AttemptState.STOPPED, cause=Cause.STOPPED, message="stopped before it started"
)

_TOO_OLD = AttemptOutcome(
    state=AttemptState.FAILED,
    cause=Cause.INPUT,
    message="the job uses secrets, and its pod runs an older Gridmill that cannot receive secrets",
    hint="Upgrade Gridmill where the pod runs. Then release the deployment, so that a new pod starts: "
    "`gridmill list deployments`, `gridmill remove deployment NAME`.",
)


def start_attempt(starting: Starting, transaction: Transaction, attempt: Attempt) -> None:
    """Send a Start message after the commit of the transaction, if the pod's link is open. If the link is
    not open, the pod gets the message after its next Hello. If the pod is on another machine, the code is
    first copied in the background."""
    current = transaction.get(Attempt, attempt.id)
    # another rank of its gang could not be started, so this rank must not start either
    if current is not None and current.stop_requested:
        settle_attempt(starting.endings, transaction, current, STOPPED_EARLY)
        return
    try:
        order = order_for(starting.endings.catalog, starting.endings.storage, transaction, attempt)
    except StorageError:  # the store failed, not the job: the next tick tries again
        raise
    except GridmillError as error:
        settle_attempt(starting.endings, transaction, attempt, _failed(Cause.INPUT, error))
        return
    except Exception as error:  # noqa: BLE001  a retry would fail again and block every run
        error_text = defect(starting.endings.problems, attempt.id, error)
        settle_attempt(starting.endings, transaction, attempt, _failed(Cause.INTERNAL, error_text))
        return
    if order.job.secrets and starting.channels.protocols.get(attempt.pod_id, PROTOCOL) < SECRETS_PROTOCOL:
        settle_attempt(starting.endings, transaction, attempt, _TOO_OLD)
        return
    if order.service is not None and not can_run_services(starting.channels, attempt.pod_id):
        settle_attempt(starting.endings, transaction, attempt, _has_no_services(attempt))
        return
    if order.bundle_path and order.bundle:
        share = partial(starting.endings.storage.share_bundle, order.bundle)
        then = partial(_shared, starting, order)
        transaction.then(partial(starting.aside.submit, f"share code for {attempt.id}", share, then))
        return
    channel = starting.channels.by_pod.get(attempt.pod_id)
    if channel is not None:
        environment = _environment_of(starting.ledger, starting.clients, attempt)
        start = Start(order=order, environment=environment)
        transaction.then(partial(starting.channels.links.send, channel, [start]))


def _environment_of(ledger: Ledger, clients: Clients, attempt: Attempt) -> Mapping[str, str] | None:
    """If the pod of the job is on this machine, return the environment of the client that started the run.
    For all other pods, return None."""
    here = ledger.snapshot.deployments.get(attempt.deployment_id)
    is_local = here is not None and here.site == LOCAL
    return clients.environments.get(attempt.run_id) if is_local else None


def _shared(starting: Starting, order: AttemptOrder, done: Future[None]) -> None:
    """Start the attempt after its code was copied, unless the attempt has ended in the meantime."""
    attempt = starting.ledger.snapshot.attempts.get(order.attempt_id)
    if attempt is None or attempt.state != AttemptState.PLACED or attempt.outcome is not None:
        return
    try:
        done.result()
        outcome = STOPPED_EARLY if attempt.stop_requested else None
    except (
        StorageError
    ) as error:  # a full or unreachable file server: the attempt is retried as after the loss of a pod
        outcome = replace(LOST, message=f"the code of the job could not be copied to the site: {error}")
    if outcome is None:
        environment = _environment_of(starting.ledger, starting.clients, attempt)
        send_to_pod(starting.channels, attempt.pod_id, Start(order=order, environment=environment))
        return
    transaction = starting.ledger.begin(starting.timeline.now())
    settle_attempt(starting.endings, transaction, attempt, outcome)
    starting.ledger.stage(transaction)


def _has_no_services(attempt: Attempt) -> AttemptOutcome:
    # the job of a service is tried again, and its message is shown meanwhile without the hint
    return AttemptOutcome(
        state=AttemptState.FAILED,
        cause=Cause.INPUT,
        message=f"pod {attempt.pod_id} runs an older Gridmill, which does not know all settings of services; "
        f"start a new pod: gridmill remove deployment {attempt.deployment_id}",
    )


def _failed(cause: Cause, error: GridmillError) -> AttemptOutcome:
    return AttemptOutcome(state=AttemptState.FAILED, cause=cause, message=error.message, hint=error.hint)
