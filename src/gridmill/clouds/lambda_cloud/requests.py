"""Requests to the server of Lambda Cloud: one attempt for each request, at the permitted rate, and errors of
Gridmill instead of errors of httpx."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx

from gridmill.clouds.lambda_cloud.errors import error_of, retry_seconds
from gridmill.clouds.lambda_cloud.rate_limit import CALL_SECONDS, LAUNCH_SECONDS, RateLimit
from gridmill.clouds.lambda_cloud.settings import KEY_VARIABLE, LambdaSettings
from gridmill.domain.frozen import replace
from gridmill.errors import CredentialsError, GridmillError, UnavailableError
from gridmill.version import __version__

_PATH = "/api/v1"
_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_TOO_MANY = 429


class RateError(UnavailableError):
    """The provider limits the rate of calls, and has not carried out this call."""


class LambdaRequests:
    """The connection to an account. Several threads may use the object at the same time."""

    def __init__(
        self,
        settings: LambdaSettings,
        read_again: Callable[[], LambdaSettings] | None = None,
        rate_limit: RateLimit | None = None,
    ) -> None:
        """`read_again` returns the settings with the present credentials. It is called after the provider
        has refused the credentials, so that a renewed key is used without a restart."""
        self._settings = settings
        self._read_again = read_again or (lambda: settings)
        self.rate_limit = rate_limit or RateLimit()
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None

    @property
    def account(self) -> str:
        """The name of the account to which the present credentials belong."""
        return self._settings.account

    def get(self, path: str, **query: str) -> Mapping[str, Any]:
        """Return the answer to a GET request, a JSON object. Raises the errors of
        `gridmill.clouds.lambda_cloud.errors`."""
        return self._send("GET", path, None, query)

    def post(self, path: str, body: Mapping[str, object], *, is_launch: bool = False) -> Mapping[str, Any]:
        """Send a POST request with a JSON body, and return the answer. A request is not repeated. RateError
        means that it was not carried out."""
        return self._send("POST", path, body, {}, is_launch=is_launch)

    def delete(self, path: str) -> None:
        """Send a DELETE request."""
        self._send("DELETE", path, None, {})

    def pages(self, path: str) -> Iterator[Mapping[str, Any]]:
        """Yield the items of a list. Without a page size, Lambda Cloud returns all items in one page; each
        further page is read too."""
        token = ""
        while True:
            answer = self.get(path, **({"page_token": token} if token else {}))
            yield from answer["data"]
            token = str(answer.get("page_token") or "")
            if not token:
                return

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None,
        query: Mapping[str, str],
        *,
        is_launch: bool = False,
    ) -> Mapping[str, Any]:
        place = f"lambda {method} {path}"
        client, settings = self._open(place)
        try:
            self.rate_limit.wait(place, is_launch=is_launch)
        except UnavailableError as error:  # a launch that was not sent needs no search for its machine
            raise RateError(error.message, hint=error.hint, place=error.place) from error
        try:
            answer = client.request(
                method,
                f"{_PATH}{path}",
                json=body,
                params=query or None,
                auth=(settings.api_key, ""),
            )
        except (httpx.HTTPError, httpx.InvalidURL, RuntimeError) as error:
            # the request may have reached the server; httpx raises RuntimeError for a closed client
            raise UnavailableError(f"Lambda Cloud did not answer: {error}", place=place) from error
        return self._read(answer, place, is_launch=is_launch)

    def _read(self, answer: httpx.Response, place: str, *, is_launch: bool) -> Mapping[str, Any]:
        try:
            value = answer.json()
        except ValueError:
            value = None
        if answer.status_code == _TOO_MANY:
            raise self._limited(answer, value, place, is_launch=is_launch)
        if not answer.is_success:
            error = error_of(answer.status_code, value, place)
            if isinstance(error, CredentialsError):
                self._renew(place)
            raise error
        if not isinstance(value, dict) or "data" not in value:
            raise UnavailableError("the answer is not from Lambda Cloud", place=place)
        return value

    def _limited(self, answer: httpx.Response, value: object, place: str, *, is_launch: bool) -> RateError:
        usual = LAUNCH_SECONDS if is_launch else CALL_SECONDS
        seconds = retry_seconds(answer.headers.get("Retry-After"), usual)
        self.rate_limit.hold(seconds, is_launch=is_launch)
        error = error_of(answer.status_code, value, place)
        return RateError(f"{error.message}; repeat it in {seconds:.0f} s", hint=error.hint, place=place)

    def _open(self, place: str) -> tuple[httpx.Client, LambdaSettings]:
        with self._lock:
            settings = self._settings
            if self._client is None:
                self._client = httpx.Client(
                    base_url=settings.endpoint_url,
                    timeout=_TIMEOUT,
                    headers={"User-Agent": f"gridmill/{__version__}"},
                )
            client = self._client
        if not settings.api_key:
            self._renew(place)
            raise CredentialsError(
                "there is no API key",
                hint="Run `gridmill add secret lambda-key`, then `gridmill add cloudprovider lambda --secret "
                f"lambda-key`; or set {KEY_VARIABLE}.",
                place=place,
            )
        return client, settings

    def _renew(self, place: str) -> None:
        """Use the present API key for the next requests."""
        try:
            settings = self._read_again()
        except GridmillError as error:
            raise CredentialsError(error.message, hint=error.hint, place=place) from error
        with self._lock:
            self._settings = replace(self._settings, api_key=settings.api_key, name=settings.name)
