"""Requests to the servers of AWS: clients for each service and region, one attempt for each request, and
errors of Gridmill instead of errors of boto3."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, TypeVar

from gridmill.clouds.aws.errors import error_of
from gridmill.clouds.aws.settings import AwsSettings
from gridmill.errors import CredentialsError, GridmillError, InputError, UnavailableError
from gridmill.version import __version__

_Result = TypeVar("_Result")

_CONNECT_SECONDS, _READ_SECONDS = 10.0, 60.0
"""The longest time for a connection, and for an answer. RunInstances answers within some seconds."""
_PROFILE_SECONDS = 30.0
"""The shortest time after which a profile is read again whose credentials were refused."""
_CREDENTIALS_SECONDS = 600.0
"""The time after which credentials that were given away are asked for again."""
_CONNECTIONS = 16
"""The number of connections of a client, and of regions that are asked at the same time."""


class AwsRequests:
    """The clients of an account. Several threads may use the object at the same time."""

    def __init__(self, settings: AwsSettings, read_again: Callable[[], AwsSettings] | None = None) -> None:
        """`read_again` returns the settings with the present credentials. It is called after the provider
        has refused the credentials, so that renewed credentials are used without a restart."""
        self._settings = settings
        self._read_again = read_again or (lambda: settings)
        self._opened = time.monotonic()
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()
        self._session: Any = None
        self._account = ""
        self._threads: ThreadPoolExecutor | None = None

    def call(self, service: str, region: str, action: str, **arguments: object) -> Mapping[str, Any]:
        """Send one request, such as `DescribeInstances`, and return the answer. A request is not repeated.
        Raises the errors of `gridmill.clouds.aws.errors`."""
        return self._send(service, region, action, arguments, is_launch=False)

    def call_for_launch(self, region: str, action: str, **arguments: object) -> Mapping[str, Any]:
        """Send one request of a launch to EC2, for which a missing right is a refusal."""
        return self._send("ec2", region, action, arguments, is_launch=True)

    def _send(
        self, service: str, region: str, action: str, arguments: Mapping[str, object], *, is_launch: bool
    ) -> Mapping[str, Any]:
        method = getattr(self._client(service, region), _snake(action))
        place = f"aws {region} {action}"
        try:
            answer: Mapping[str, Any] = _translated(lambda: method(**arguments), place, is_launch=is_launch)
        except CredentialsError:
            self._renew(place)
            raise
        return answer

    def account(self) -> str:
        """Return the number of the account. It is read once for each credentials."""
        with self._lock:
            known, opened = self._account, self._opened
        if not known:
            known = str(self.call("sts", self._settings.home_region, "GetCallerIdentity")["Account"])
            with self._lock:
                if opened == self._opened:
                    self._account = known
        return known

    def code(self, service: str, region: str, action: str, **arguments: object) -> str:
        """Send one request, and return the code of the error with which AWS answers (empty: no error)."""
        from botocore.exceptions import ClientError

        method = getattr(self._client(service, region), _snake(action))

        def ask() -> str:
            try:
                method(**arguments)
            except ClientError as error:
                return str(error.response.get("Error", {}).get("Code", ""))
            return ""

        return str(_translated(ask, f"aws {region} {action}"))

    def credentials(self) -> Mapping[str, Any]:
        """Return the present credentials in the form that obstore needs. They are asked for again after some
        minutes, because the credentials of a profile may be temporary. Raises CredentialsError."""
        with self._lock:
            if self._session is None:
                self._session = _translated(partial(_open, self._settings), "aws")
            found = _translated(self._session.get_credentials, "aws")
        if found is None:
            raise CredentialsError("there are no credentials of AWS", place="aws", hint="Set a profile.")
        frozen = _translated(found.get_frozen_credentials, "aws")
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + timedelta(seconds=_CREDENTIALS_SECONDS),
        }

    def pages(
        self, service: str, region: str, action: str, items: str, **arguments: object
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the items of all pages of a list. `items` is the name of the list in each answer."""
        token: str | None = None
        while True:
            more = {"NextToken": token} if token else {}
            answer = self.call(service, region, action, **arguments, **more)
            yield from answer.get(items) or ()
            token = answer.get("NextToken")
            if not token:
                return

    def in_parallel(
        self, regions: Sequence[str], ask: Callable[[str], tuple[_Result, ...]]
    ) -> tuple[_Result, ...]:
        """Call `ask` for each region at the same time, and return all results. If a region does not answer,
        its error is raised, because an incomplete list would be mistaken for a complete one."""
        if len(regions) == 1:
            return ask(regions[0])
        results = list(self._pool().map(ask, regions))
        return tuple(one for result in results for one in result)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            clients, self._clients = self._clients, {}
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()
        for client in clients.values():
            client.close()

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="aws")
            return self._threads

    def _client(self, service: str, region: str) -> Any:  # noqa: ANN401  boto3 makes its classes at run time
        with self._lock:
            client = self._clients.get((service, region))
            if client is None:
                client = self._clients[service, region] = self._make(service, region)
            return client

    def _renew(self, place: str) -> None:
        """Use the present credentials for the next requests, if they differ from those that were refused. A
        profile may differ at any time, so that it is read again after some seconds."""
        try:
            settings = self._read_again()
        except GridmillError as error:
            raise CredentialsError(error.message, hint=error.hint, place=place) from error
        now = time.monotonic()
        with self._lock:
            is_due = not settings.access_key_id and now - self._opened > _PROFILE_SECONDS
            if settings != self._settings or is_due:
                self._settings, self._session, self._clients = settings, None, {}
                self._account = ""
                self._opened = now

    def _make(self, service: str, region: str) -> Any:  # noqa: ANN401
        if self._session is None:
            self._session = _translated(partial(_open, self._settings), f"aws {region}")
        from botocore.config import Config

        config = Config(
            # the control node repeats calls itself, with the delays of all of its leases in view
            retries={"total_max_attempts": 1},
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            max_pool_connections=_CONNECTIONS,
            user_agent=f"gridmill/{__version__}",
        )
        session, url = self._session, self._settings.endpoint_url or None
        make = partial(session.client, service, region_name=region, endpoint_url=url, config=config)
        return _translated(make, f"aws {region}")


@cache
def _loader() -> Any:  # noqa: ANN401
    """Return the loader of the descriptions of services. All sessions share it, because the description of
    EC2 takes half a second and some tens of megabytes."""
    from botocore.loaders import create_loader

    return create_loader()


def _open(settings: AwsSettings) -> Any:  # noqa: ANN401
    """Open a session with the credentials of the settings, or with those that AWS's tools would find."""
    import boto3
    import botocore.session

    base = botocore.session.Session(profile=settings.profile or None)
    base.register_component("data_loader", _loader())
    if not settings.has_instance_role:
        # elsewhere than on EC2, looking for a role at the address of the metadata service takes seconds
        base.get_component("credential_provider").remove("iam-role")
    if settings.access_key_id:
        base.set_credentials(settings.access_key_id, settings.access_key, settings.session_token or None)
    return boto3.Session(botocore_session=base)


def _snake(action: str) -> str:
    from botocore import xform_name

    return str(xform_name(action))


def _translated(call: Callable[[], Any], place: str, *, is_launch: bool = False) -> Any:  # noqa: ANN401
    try:
        from botocore import exceptions as of_boto
        from botocore.parsers import ResponseParserError  # not a BotoCoreError
    except ImportError as error:
        raise UnavailableError(
            "the package boto3 is not installed", hint="Run: pip install 'gridmill[aws]'"
        ) from error
    try:
        return call()
    except of_boto.ClientError as error:
        answer = error.response
        code, message = (str(answer.get("Error", {}).get(name, "")) for name in ("Code", "Message"))
        status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        raise error_of(code, status, message, place, is_launch=is_launch) from error
    except _credential_errors() as error:
        raise CredentialsError(
            str(error),
            hint="Set a profile, or access_key_id and secret_access_key, of the cloud provider.",
            place=place,
        ) from error
    except (of_boto.ParamValidationError, of_boto.InvalidRegionError) as error:
        raise InputError(str(error), place=place) from error
    except (of_boto.BotoCoreError, ResponseParserError) as error:
        # the request may have reached the server: a timeout, a closed connection, an unreadable answer
        raise UnavailableError(f"AWS did not answer: {error}", place=place) from error


def _credential_errors() -> tuple[type[Exception], ...]:
    from botocore import exceptions as of_boto

    return (
        of_boto.NoCredentialsError,
        of_boto.PartialCredentialsError,
        of_boto.CredentialRetrievalError,
        of_boto.ProfileNotFound,
        of_boto.TokenRetrievalError,
        of_boto.SSOError,
    )
