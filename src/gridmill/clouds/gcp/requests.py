"""Requests to the APIs of Google Cloud: one attempt for each request, and errors of Gridmill."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from gridmill.clouds.gcp.credentials import Credentials
from gridmill.clouds.gcp.errors import error_in_answer, error_of_operation
from gridmill.clouds.gcp.settings import GcpSettings
from gridmill.errors import CredentialsError, GridmillError, UnavailableError
from gridmill.version import __version__

_Result = TypeVar("_Result")

HOSTS: Mapping[str, str] = {
    "compute": "https://compute.googleapis.com",
    "projects": "https://cloudresourcemanager.googleapis.com",
    "iam": "https://iam.googleapis.com",
    "billing": "https://cloudbilling.googleapis.com",
    "batch": "https://batch.googleapis.com",
}
"""The server of each API."""
_METHODS = {
    "insert": "POST",
    "create": "POST",
    "cancel": "POST",
    "setLabels": "POST",
    "setIamPolicy": "POST",
    "wait": "POST",
    "testIamPermissions": "POST",
    "delete": "DELETE",
}
"""The HTTP methods of the actions. All others are read with GET."""
_CONNECT_SECONDS, _READ_SECONDS = 10.0, 60.0
WAIT_SECONDS = 130.0
"""The longest time for the answer to `wait`, which the API sends after at most two minutes."""
_PROFILE_SECONDS = 30.0
"""The shortest time after which refused credentials of the environment are read again."""
_BUCKET_SECONDS = 180.0
"""The time for which a bucket uses an access token. obstore asks for another token two minutes before the
end."""
UNAUTHORIZED = 401
_CONNECTIONS = 16
"""The number of connections, and of zones that are asked at the same time."""
PAGE = 500
"""The largest page of a list of Compute Engine."""
_COMPLETE = ("NO_RESULTS_ON_PAGE",)
"""The warnings of a list that is complete."""


class GcpRequests:
    """The connections to a project. Several threads may use the object at the same time."""

    def __init__(
        self,
        settings: GcpSettings,
        read_again: Callable[[], GcpSettings] | None = None,
        transport: Any = None,  # noqa: ANN401  an httpx.BaseTransport; httpx is imported late
    ) -> None:
        """`read_again` returns the settings with the present credentials. It is called after the provider
        has refused the credentials, so that renewed credentials are used without a restart. `transport` sends
        the requests (default: over the network)."""
        self._settings, self._transport = settings, transport
        self._read_again = read_again or (lambda: settings)
        self._opened = time.monotonic()
        self._lock = threading.Lock()
        self._client: Any = None
        self._credentials: Credentials | None = None
        self._threads: ThreadPoolExecutor | None = None

    def project(self) -> str:
        """Return the id of the project."""
        return self._present().project()

    def bucket_credentials(self) -> Mapping[str, Any]:
        """Return a valid access token in the form that obstore needs. The token is asked for again after some
        minutes, because the key of the account may be renewed. Raises CredentialsError, UnavailableError."""
        until = datetime.now(UTC) + timedelta(seconds=_BUCKET_SECONDS)
        token, expires_at = self._present().token_until()
        return {"token": token, "expires_at": min(until, expires_at or until)}

    def compute(
        self,
        action: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, object] | None = None,
        is_launch: bool = False,
    ) -> Mapping[str, Any]:
        """Send one request to Compute Engine, such as `instances.get`, and return the answer. `path` is the
        path below the project. A request is not repeated. Raises the errors of `gridmill.clouds.gcp.errors`.
        `is_launch` means that the request is a part of a launch, for which a missing right is a refusal."""
        whole = f"/compute/v1/projects/{self.project()}{path}"
        return self.call("compute", action, whole, body=body, query=query, is_launch=is_launch)

    def call(
        self,
        service: str,
        action: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, object] | None = None,
        is_launch: bool = False,
    ) -> Mapping[str, Any]:
        """Send one request to an API, and return the answer."""
        place = f"gcp {action} {path.partition('/projects/')[2] or path}"
        credentials = self._present()
        try:
            token = credentials.token()
            answer = self._sent(service, action, path, token, body, query or {}, place)
            if answer.status_code == UNAUTHORIZED:
                credentials.forget(token)
            if answer.status_code >= 400:
                raise error_in_answer(answer.status_code, _json(answer), place, is_launch=is_launch)
        except CredentialsError as error:
            self._renew(credentials, error.place or place)
            raise
        parsed = _json(answer) if answer.content else {}
        if not isinstance(parsed, dict):
            raise UnavailableError("the answer cannot be read", place=place)
        return parsed

    def pages(
        self, action: str, path: str, query: Mapping[str, object] | None = None, project: str = ""
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the items of all pages of a list of Compute Engine. `project` is another project than that of
        the settings. Raises UnavailableError if the list is not complete."""
        for page in self._each_page(action, path, query or {}, project):
            yield from page.get("items") or ()

    def in_all_places(
        self, action: str, path: str, kind: str, is_needed: Callable[[str], bool], query: Mapping[str, object]
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the items of an aggregated list, each with its place, such as `zones/us-central1-a`. `kind`
        is the name of the list in the answer. Raises UnavailableError if a needed place has not answered."""
        for page in self._each_page(action, path, query):
            missing = [place for place in _unreachable(page) if is_needed(place)]
            if missing:
                raise UnavailableError(
                    f"Google Cloud did not answer for {', '.join(sorted(missing))}", place=f"gcp {action}"
                )
            for place, found in (page.get("items") or {}).items():
                for item in found.get(kind) or () if is_needed(place) else ():
                    yield place, item

    def _each_page(
        self, action: str, path: str, query: Mapping[str, object], project: str = ""
    ) -> Iterator[Mapping[str, Any]]:
        whole = f"/compute/v1/projects/{project or self.project()}{path}"
        token = ""
        while True:
            more = {"pageToken": token} if token else {}
            page = self.call("compute", action, whole, query={"maxResults": PAGE, **query, **more})
            warning = (page.get("warning") or {}).get("code", "")
            if warning and warning not in _COMPLETE and not page.get("unreachables"):
                raise UnavailableError(f"the list is not complete: {warning}", place=f"gcp {action}")
            yield page
            token = str(page.get("nextPageToken") or "")
            if not token:
                return

    def wait(self, operation: Mapping[str, Any], seconds: float) -> Mapping[str, Any] | None:
        """Wait until an operation of a launch has ended, and return it, or None if it has not ended after
        this time. Raises the error with which the operation has failed."""
        until = time.monotonic() + seconds
        where = _place_of(operation)
        while operation.get("status") != "DONE":
            if time.monotonic() >= until:
                return None
            name = operation.get("name")
            if not name:
                raise UnavailableError("the answer is not an operation", place=f"gcp {where} wait")
            began = time.monotonic()
            operation = self._waited(f"/{where}/operations/{name}/wait")
            if operation.get("status") != "DONE":
                # a busy server answers before the two minutes are over
                time.sleep(max(0.0, min(1.0 - (time.monotonic() - began), until - time.monotonic())))
        error = error_of_operation(operation, f"gcp {where} {operation.get('operationType', 'insert')}")
        if error is not None:
            raise error
        return operation

    def _waited(self, path: str) -> Mapping[str, Any]:
        try:
            return self.compute("operations.wait", path, body={})
        except UnavailableError:
            raise
        except GridmillError as error:
            # the operation continues, so this error is not a refusal of the operation
            raise UnavailableError(error.message, hint=error.hint, place=error.place) from error

    def in_parallel(
        self, places: Sequence[str], ask: Callable[[str], Iterable[_Result]]
    ) -> tuple[_Result, ...]:
        """Call `ask` for all places at the same time, and return all results. Raises the error of a place
        that does not answer."""
        if len(places) == 1:
            return tuple(ask(places[0]))
        results = list(self._pool().map(lambda place: tuple(ask(place)), places))
        return tuple(one for result in results for one in result)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            client, self._client, self._credentials = self._client, None, None
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()
        if client is not None:
            client.close()

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="gcp")
            return self._threads

    def _sent(
        self,
        service: str,
        action: str,
        path: str,
        token: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, object],
        place: str,
    ) -> Any:  # noqa: ANN401  httpx is imported late
        import httpx

        client = self._client
        if client is None:
            raise UnavailableError("the connections to Google Cloud are closed", place=place)
        last = action.rpartition(".")[2]
        seconds = WAIT_SECONDS if last == "wait" else _READ_SECONDS
        try:
            return client.request(
                _METHODS.get(last, "GET"),
                (self._settings.endpoint_url or HOSTS[service]) + path,
                params={name: str(value) for name, value in query.items()},
                json=body,
                headers={"Authorization": f"Bearer {token}"},
                timeout=httpx.Timeout(seconds, connect=_CONNECT_SECONDS),
            )
        except (httpx.HTTPError, httpx.InvalidURL, RuntimeError) as error:
            # the request may have reached the server; httpx raises RuntimeError for a closed client
            reason = str(error) or type(error).__name__
            raise UnavailableError(f"Google Cloud did not answer: {reason}", place=place) from error

    def _present(self) -> Credentials:
        with self._lock:
            if self._client is None:
                self._client = self._opened_client()
            if self._credentials is None:
                self._credentials = Credentials(self._settings, self._client)
            return self._credentials

    def _opened_client(self) -> Any:  # noqa: ANN401
        try:
            import httpx
        except ImportError as error:
            raise UnavailableError(
                "the package httpx is not installed", hint="Run: pip install 'gridmill[gcp]'"
            ) from error
        return httpx.Client(
            transport=self._transport,
            limits=httpx.Limits(max_connections=2 * _CONNECTIONS),
            timeout=httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS),
            headers={"User-Agent": f"gridmill/{__version__} (gzip)"},
        )

    def _renew(self, refused: Credentials, place: str) -> None:
        """Use the present credentials for the next requests, if they differ from those that were refused.
        Credentials of the environment may differ at any time, so that they are read again after some
        seconds."""
        try:
            settings = self._read_again()
        except GridmillError as error:
            raise CredentialsError(error.message, hint=error.hint, place=place) from error
        now = time.monotonic()
        with self._lock:
            is_due = not settings.key and now - self._opened > _PROFILE_SECONDS
            if self._credentials is refused and (settings != self._settings or is_due):
                self._settings, self._credentials, self._opened = settings, None, now


def _json(answer: Any) -> Any:  # noqa: ANN401
    try:
        return answer.json()
    except ValueError:
        return None


def _place_of(operation: Mapping[str, Any]) -> str:
    """Return the place of an operation: `zones/ZONE`, `regions/REGION` or `global`."""
    for kind in ("zone", "region"):
        if operation.get(kind):
            return f"{kind}s/{last_part(operation[kind])}"
    return "global"


def last_part(url: str) -> str:
    """Return the name at the end of a URL of the API."""
    return url.rpartition("/")[2]


def _unreachable(page: Mapping[str, Any]) -> set[str]:
    """Return the places of an aggregated list that have not answered. `unreachables` has URLs or relative
    paths."""
    named = {str(one) for one in page.get("unreachables") or ()}
    places = {"/".join(one.split("/")[-2:]) for one in named}
    for place, found in (page.get("items") or {}).items():
        code = (found.get("warning") or {}).get("code", "")
        if code and code not in _COMPLETE:
            places.add(place)
    return places
