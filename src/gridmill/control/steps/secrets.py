"""This module answers the pods that ask for the values of secrets, and checks that the secrets of a pipeline
exist before a run starts."""

from collections.abc import Iterable
from functools import partial

from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.secret_values import StoredSecrets
from gridmill.control.state import Channels, Starting
from gridmill.control.steps.end_attempt import runs, settle_attempt
from gridmill.control.steps.gangs import stop_message
from gridmill.domain.job import Job
from gridmill.domain.naming import suggestion
from gridmill.domain.pod_protocol import (
    AttemptOutcome,
    SecretRequest,
    SecretValues,
    ToPod,
    secret_context,
)
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.secret import Secret, names_in
from gridmill.domain.site import ELSEWHERE, Site
from gridmill.domain.states import AttemptState, Cause
from gridmill.errors import GridmillError, InputError, StoreLostError


def answer_request(
    starting: Starting, transaction: Transaction, channel: int, request: SecretRequest
) -> None:
    """Send the values of an attempt's secrets to the pod of the attempt, encrypted for this pod. If a value
    cannot be decrypted, the attempt fails.

    A request for an attempt that the pod does not have, or with the token of another attempt, is ignored.
    """
    attempt = transaction.get(Attempt, request.attempt_id)
    pod_id = starting.channels.by_channel.get(channel)
    if attempt is None or attempt.pod_id != pod_id or attempt.token != request.token or not runs(attempt):
        return
    job_run = transaction.get(JobRun, attempt.job_run_id)
    if job_run is None or attempt.stop_requested:
        return
    try:
        sealed = sealed_values(starting.secrets, job_run.job.secrets, request)
    except StoreLostError:  # the store failed, not the job: the pod asks again after its next Hello
        raise
    except GridmillError as error:
        outcome = AttemptOutcome(
            state=AttemptState.FAILED, cause=Cause.INPUT, message=str(error), hint=error.hint
        )
        settle_attempt(starting.endings, transaction, attempt, outcome)
        message: ToPod = stop_message(starting.channels, attempt.id, "its secrets cannot be read")
    else:
        message = SecretValues(attempt_id=attempt.id, sealed=sealed)
    transaction.then(partial(_send, starting.channels, channel, message))


def sealed_values(secrets: StoredSecrets, names: Iterable[str], request: SecretRequest) -> str:
    """Return the values of secrets, encrypted for the pod that asks. Raises NotFoundError, StorageError."""
    values = {name: secrets.resolve(name) for name in names}
    context = secret_context(request.attempt_id, request.token)
    return secrets.vault.seal(values, request.public_key, context)


def _send(channels: Channels, channel: int, message: ToPod) -> None:
    channels.links.send(channel, [message])


def check_secrets_exist(ledger: Ledger, jobs: Iterable[Job]) -> None:
    """Raise InputError for the first reference to a secret that does not exist."""
    for job in jobs:
        for name in job.secrets:
            unknown = unknown_secret(ledger, job, name)
            if unknown is not None:
                raise unknown


def unknown_secret(ledger: Ledger, job: Job, name: str) -> InputError | None:
    """Return the error for a job that refers to a secret that does not exist. The result is None for a secret
    that exists."""
    path = next(path for path, text in job.secret_fields.items() if name in names_in((text,)))
    return _unknown(ledger, name, f"jobs.{job.name}.{path}")


def check_secret_settings(ledger: Ledger, site: Site) -> None:
    """Raise InputError if a setting of a site refers to a secret that does not exist, or if this kind of site
    cannot use secrets."""
    for setting, text in site.settings.items():
        place = f"site {site.name}: settings.{setting}"
        for name in names_in((text,)):
            if site.kind not in ELSEWHERE:
                raise InputError(f"the settings of a {site.kind} site cannot refer to secrets", place=place)
            unknown = _unknown(ledger, name, place)
            if unknown is not None:
                raise unknown


def _unknown(ledger: Ledger, name: str, place: str) -> InputError | None:
    if ledger.look_up(Secret, name) is not None:
        return None
    meant = suggestion(name, (one.name for one in ledger.read_all(Secret)))
    return InputError(
        f"there is no secret {name!r}",
        hint=f"{f'{meant} Otherwise add' if meant else 'Add'} it: gridmill add secret {name}",
        place=place,
    )
