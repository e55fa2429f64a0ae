"""Answers of the APIs of Google Cloud for unit tests, by httpx.MockTransport, and service accounts."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from gridmill.clouds.gcp.settings import GcpSettings

PROJECT = "my-project"
TOKEN_URL = "https://oauth2.googleapis.com/token"
Answer = tuple[int, Any]


@cache
def _private_key() -> str:
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8
    return made.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def service_account_key(name: str = "gridmill") -> str:
    """Return the JSON key of a service account."""
    fields = {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": "1",
        "private_key": _private_key(),
        "client_email": f"{name}@{PROJECT}.iam.gserviceaccount.com",
        "token_uri": TOKEN_URL,
    }
    return json.dumps(fields)


def settings(**changes: Any) -> GcpSettings:
    """Return settings with a key."""
    return GcpSettings(**{"project": PROJECT, "key": service_account_key(), **changes})


def refusal(status: int, reason: str, message: str = "no") -> Answer:
    """Return the answer to a refused request."""
    errors = [{"domain": "global", "reason": reason, "message": message}]
    return status, {"error": {"code": status, "message": message, "errors": errors}}


class GoogleApi:
    """Answers requests by their method and path, and records them. `answers` has a value or a function of the
    request for each `METHOD PATH`; a list has one answer for each call."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.requests: list[httpx.Request] = []
        self.tokens = 0
        self.refused_tokens: set[str] = set()
        self.transport = httpx.MockTransport(self._answer)

    @property
    def calls(self) -> list[str]:
        """The method and the path of each request, without those for tokens."""
        return [f"{one.method} {one.url.path}" for one in self.requests]

    def body(self, call: str) -> Any:
        """Return the body of the last request with this method and path."""
        found = [one for one in self.requests if f"{one.method} {one.url.path}" == call]
        return json.loads(found[-1].content)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if str(request.url) == TOKEN_URL:
            self.tokens += 1
            return httpx.Response(200, json={"access_token": f"token-{self.tokens}", "expires_in": 3600})
        self.requests.append(request)
        if request.headers["Authorization"].removeprefix("Bearer ") in self.refused_tokens:
            status, body = refusal(401, "authError")
            return httpx.Response(status, json=body)
        found = self.answers.get(f"{request.method} {request.url.path}", refusal(404, "notFound"))
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if callable(found):
            answered: Callable[[httpx.Request], Any] = found
            found = answered(request)
        if isinstance(found, Exception):
            raise found
        status, body = found if isinstance(found, tuple) else (200, found)
        if isinstance(body, str):
            return httpx.Response(status, text=body)
        return httpx.Response(status, json=body)
