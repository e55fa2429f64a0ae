"""Requests to a simulated cloud that speaks JSON, as a program of a user sends them."""

from typing import Any

import httpx


class Wire:
    """Sends requests with the same headers, and returns statuses and JSON bodies."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._client = httpx.Client(base_url=url, headers=headers, timeout=20.0)

    def send(self, method: str, path: str, body: Any = None, **parameters: Any) -> tuple[int, Any]:
        """Sends a request; the status and the JSON of the answer."""
        answer = self._client.request(method, path, json=body, params=parameters or None)
        is_json = answer.headers["Content-Type"].startswith("application/json")
        return answer.status_code, answer.json() if is_json else answer.text

    def ok(self, method: str, path: str, body: Any = None, **parameters: Any) -> Any:
        """Sends a request that must succeed; the JSON of the answer."""
        status, answer = self.send(method, path, body, **parameters)
        assert status == 200, (status, answer)
        return answer

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()
