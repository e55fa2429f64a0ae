"""The access of a batch site to its service and to its bucket. The values of secrets may be renewed while
jobs run."""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any, TypeVar

from gridmill.domain.secret import names_in, resolved
from gridmill.domain.site import Site
from gridmill.domain.source import CREDENTIALS
from gridmill.errors import CredentialsError, GridmillError
from gridmill.ports.batch import BatchJob, BatchPort, BatchRequest, OpenJob, QueueProblem
from gridmill.sites.batch.exchange import Exchange, open_exchange
from gridmill.sites.batch.settings import SETTINGS, BatchSettings, bucket_options

T = TypeVar("T")
Resolve = Callable[[str], str]
_LOG = logging.getLogger(__name__)
_VALID_SECONDS = 180.0
"""The time for which obstore uses the values of secrets. obstore asks for new credentials two minutes before
the end of the old ones."""
_OBSTORE_NAMES = {"session_token": "token"}


class RenewedService:
    """A batch service whose settings contain references to secrets. After the service has refused the
    credentials, the present values of the secrets are used. It implements BatchPort, and is safe to use from
    several threads."""

    def __init__(
        self,
        settings: Mapping[str, str],
        resolve: Resolve,
        open_service: Callable[[Mapping[str, str]], BatchPort],
    ) -> None:
        """`resolve` returns the value of a secret. Raises InputError."""
        self._settings, self._resolve, self._open = settings, resolve, open_service
        self._lock = Lock()
        self._values = self._present_values()
        self._service = open_service(self._values)

    def _present_values(self) -> Mapping[str, str]:
        return {name: resolved(value, self._resolve) for name, value in self._settings.items()}

    def _use(self, call: Callable[[BatchPort], T]) -> T:
        service = self._service
        try:
            return call(service)
        except CredentialsError:
            self._renew(service)
            raise

    def _renew(self, refused: BatchPort) -> None:
        """Open the service with the present values, if they differ from those that were refused."""
        try:
            values = self._present_values()
            with self._lock:
                if self._service is not refused or values == self._values:
                    return
                self._service, self._values = self._open(values), values
        except GridmillError as error:
            raise CredentialsError(error.message, hint=error.hint, place=error.place) from error
        _LOG.info("batch_credentials_renewed")
        refused.close()

    def check(self) -> str:
        """See BatchPort."""
        return self._use(lambda service: service.check())

    def account(self) -> str:
        """See BatchPort."""
        return self._use(lambda service: service.account())

    def submit(self, request: BatchRequest) -> str:
        """See BatchPort."""
        return self._use(lambda service: service.submit(request))

    def find(self, name: str) -> str | None:
        """See BatchPort."""
        return self._use(lambda service: service.find(name))

    def describe(self, ids: Sequence[str]) -> Mapping[str, BatchJob]:
        """See BatchPort."""
        return self._use(lambda service: service.describe(ids))

    def open_jobs(self, mark: str) -> Sequence[OpenJob]:
        """See BatchPort."""
        return self._use(lambda service: service.open_jobs(mark))

    def cancel(self, id: str, reason: str) -> None:
        """See BatchPort."""
        self._use(lambda service: service.cancel(id, reason))

    def diagnose(self, job: BatchJob, request: BatchRequest) -> QueueProblem | None:
        """See BatchPort."""
        return self._use(lambda service: service.diagnose(job, request))

    def bucket_credentials(self, bucket: str) -> Callable[[], Mapping[str, Any]] | None:
        """See BatchPort."""
        if self._service.bucket_credentials(bucket) is None:
            return None

        def present(service: BatchPort) -> Mapping[str, Any]:
            ask = service.bucket_credentials(bucket)
            return ask() if ask is not None else {}

        return lambda: self._use(present)

    def close(self) -> None:
        """See BatchPort."""
        self._service.close()


def open_service(site: Site, make: Callable[..., BatchPort], resolve: Resolve) -> RenewedService:
    """Open the service of a site with `make`, the function of the plugin. Raises InputError."""
    own = {name: value for name, value in site.settings.items() if name not in SETTINGS}
    return RenewedService(own, resolve, lambda values: make(values, f"site {site.name}"))


def open_bucket(
    site: Site, parsed: BatchSettings, url: str, service: BatchPort, resolve: Resolve
) -> Exchange:
    """Open the bucket of a site at `url`. Raises InputError."""
    options = bucket_options(site, parsed)
    names = CREDENTIALS.get(parsed.bucket.partition("://")[0], ())
    own = {name: value for name, value in options.items() if name in names}
    rest = {name: value for name, value in options.items() if name not in names}
    credentials = service.bucket_credentials(parsed.bucket)
    if credentials is not None:
        return open_exchange(url, rest, credentials)
    if url.startswith("s3://") and names_in(own.values()):
        return open_exchange(url, rest, _present_keys(own, resolve))
    return open_exchange(url, {name: resolved(value, resolve) for name, value in options.items()})


def _present_keys(settings: Mapping[str, str], resolve: Resolve) -> Callable[[], Mapping[str, Any]]:
    """Return a function that returns the present keys of an S3 bucket in the form of obstore."""

    def present() -> Mapping[str, Any]:
        keys = {_OBSTORE_NAMES.get(name, name): resolved(value, resolve) for name, value in settings.items()}
        until = datetime.now(UTC) + timedelta(seconds=_VALID_SECONDS)
        return {"token": None, **keys, "expires_at": until}

    present()  # a secret that does not exist is an error now
    return present
