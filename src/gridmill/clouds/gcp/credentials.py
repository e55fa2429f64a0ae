"""The access tokens for the APIs of Google Cloud: google-auth, which sends its requests with httpx, and
errors of Gridmill instead of its own."""

import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gridmill.clouds.gcp.settings import GcpSettings, key_fields
from gridmill.domain.frozen import dataclass
from gridmill.errors import CredentialsError, InputError, UnavailableError

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_HINT = "Set service_account_key of the cloud provider, or run: gcloud auth application-default login"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """An answer in the form that google-auth expects."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class Credentials:
    """The credentials of a project. Several threads may use the object at the same time. `client` is an
    `httpx.Client`."""

    def __init__(self, settings: GcpSettings, client: Any) -> None:  # noqa: ANN401  httpx is imported late
        self._settings, self._client = settings, client
        self._lock = threading.Lock()
        self._opened: Any = None
        self._project = settings.project

    def project(self) -> str:
        """Return the id of the project. Raises CredentialsError if neither the settings nor the credentials
        name one."""
        if not self._project:
            with self._lock:
                self._open()
        if not self._project:
            raise CredentialsError(
                "the credentials name no project", hint="Set `project` of the cloud provider."
            )
        return self._project

    def token(self) -> str:
        """Return a valid access token. Raises CredentialsError, UnavailableError."""
        return self.token_until()[0]

    def token_until(self) -> tuple[str, datetime | None]:
        """Return a valid access token, and the time of its end if google-auth knows this time. Raises
        CredentialsError, UnavailableError."""
        from google.auth import exceptions

        with self._lock:
            self._open()
            if not self._opened.valid:
                try:
                    self._opened.refresh(self._send)
                except exceptions.RefreshError as error:
                    kind = UnavailableError if error.retryable else CredentialsError
                    raise kind(f"no access token: {_text(error)}", place="gcp token") from error
                except exceptions.TransportError as error:
                    raise UnavailableError(f"no access token: {_text(error)}", place="gcp token") from error
                except exceptions.GoogleAuthError as error:
                    raise CredentialsError(_text(error), hint=_HINT, place="gcp token") from error
            expiry = self._opened.expiry  # in UTC, without a zone
            return str(self._opened.token), expiry.replace(tzinfo=UTC) if expiry is not None else None

    def forget(self, token: str) -> None:
        """Ask for another access token at the next request, because the provider has refused this one before
        its end."""
        with self._lock:
            if self._opened is not None and self._opened.token == token:
                self._opened.token = None

    def _open(self) -> None:
        if self._opened is not None:
            return
        try:
            import google.auth
            from google.auth import exceptions
            from google.oauth2 import service_account
        except ImportError as error:
            raise UnavailableError(
                "the package google-auth is not installed", hint="Run: pip install 'gridmill[gcp]'"
            ) from error
        try:
            if self._settings.key:
                fields = key_fields(self._settings.key)
                of_key: Any = service_account.Credentials.from_service_account_info
                self._opened = of_key(fields, scopes=[SCOPE])
                return
            send: Any = self._send
            self._opened, project = google.auth.default(scopes=[SCOPE], request=send)
        except (exceptions.GoogleAuthError, ValueError, InputError) as error:
            raise CredentialsError(_text(error), hint=_HINT, place="gcp credentials") from error
        self._project = self._project or project or ""

    def _send(
        self,
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_: object,
    ) -> _Answer:
        """Send a request of google-auth, see `google.auth.transport.Request`."""
        import httpx
        from google.auth import exceptions

        more = {} if timeout is None else {"timeout": timeout}
        try:
            answer = self._client.request(method, url, content=body, headers=dict(headers or {}), **more)
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed
            failed: Any = exceptions.TransportError
            raise failed(error) from error
        return _Answer(status=answer.status_code, headers=answer.headers, data=answer.content)


def _text(error: Exception) -> str:
    return str(error.args[0]) if error.args else str(error)
