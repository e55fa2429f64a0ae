"""The requests that clients of the REST API know, a line for each part, so that a diff shows each change."""

import json
from collections.abc import Iterator
from typing import Any

from gridmill.api.app import make_app
from gridmill.testing.fake_grid import FakeGrid


def requests_page() -> str:
    """All lines, in alphabetical order."""
    paths = make_app(FakeGrid()).openapi()["paths"]
    return "".join(sorted(f"{line}\n" for path, calls in paths.items() for line in _requests(path, calls)))


def _requests(path: str, calls: dict[str, Any]) -> Iterator[str]:
    """A line for each: method and path, arguments with their types, body, answer."""
    for method, call in calls.items():
        request = f"{method.upper()} {path}"
        yield f"{request} {call['operationId']} {' '.join(call['tags'])}"
        for one in call.get("parameters", ()):
            needed = "needed" if one["required"] else "optional"
            yield f"{request} {one['in']} {one['name']} {needed} {_words(one['schema'])}"
        for media, body in call.get("requestBody", {}).get("content", {}).items():
            yield f"{request} body {media} {_words(body['schema'])}"
        status, answer = next(iter(call["responses"].items()))
        media, body = next(iter(answer.get("content", {"nothing": {}}).items()))
        yield f"{request} answer {status} {media} {_words(body.get('schema', {}))}".rstrip()


def _words(schema: dict[str, Any]) -> str:
    """The schema in one line, without titles and descriptions."""
    kept = {key: value for key, value in schema.items() if key not in ("title", "description")}
    return json.dumps(kept, sort_keys=True) if kept else ""
