"""The instance metadata service of simulated machines: that of EC2, and the server for all of them.

Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html (paths, tokens
and status codes) and
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from http.server import BaseHTTPRequestHandler
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.testing.cloud import google_metadata
from gridmill.testing.cloud.machine_host import MetadataKind

TOKEN = "X-aws-ec2-metadata-token"
TTL = "X-aws-ec2-metadata-token-ttl-seconds"
_LONGEST_TTL_SECONDS = 21_600
_HEADERS = (TOKEN, TTL, google_metadata.FLAVOR, "X-Forwarded-For")
_VERSIONS = re.compile(r"/(latest|\d{4}-\d\d-\d\d)/(.*)")


@dataclass(slots=True, kw_only=True)
class Metadata:
    """What the service knows of one machine. `items` are the metadata by path, such as `placement/region`."""

    items: dict[str, str] = field(default_factory=dict)
    user_data: bytes = b""
    tokens_required: bool = True
    kind: MetadataKind = MetadataKind.EC2
    tokens: dict[str, float] = field(default_factory=dict)
    """When each token expires, as monotonic time in seconds."""


def answer(
    machine: Metadata | None, method: str, path: str, headers: Mapping[str, str], now: float
) -> tuple[int, bytes]:
    """Returns the status and the body of the answer to a request of a machine. `now` is monotonic time."""
    if machine is None:
        return 404, b""
    if method == "PUT":
        return _token(machine, path, headers, now)
    token = headers.get(TOKEN)
    if token is None and machine.tokens_required:
        return 401, b""
    if token is not None and machine.tokens.get(token, 0.0) <= now:
        return 401, b""
    return _item(machine, path)


def _token(machine: Metadata, path: str, headers: Mapping[str, str], now: float) -> tuple[int, bytes]:
    if path != "/latest/api/token":
        return 405, b""
    if headers.get("X-Forwarded-For") is not None:
        return 403, b""
    seconds = headers.get(TTL, "")
    if not seconds.isdecimal() or not 1 <= int(seconds) <= _LONGEST_TTL_SECONDS:
        return 400, b""
    token = secrets.token_urlsafe(40)
    machine.tokens[token] = now + int(seconds)
    return 200, token.encode()


def _item(machine: Metadata, path: str) -> tuple[int, bytes]:
    match = _VERSIONS.fullmatch(path)
    if match is None:
        return (200, b"latest") if path == "/" else (404, b"")
    branch = match[2].rstrip("/")
    if branch == "user-data":
        return (200, machine.user_data) if machine.user_data else (404, b"")
    if branch == "dynamic/instance-identity/document":
        return 200, json.dumps(_identity(machine)).encode()
    if branch == "":
        return 200, b"dynamic\nmeta-data\nuser-data"
    if branch != "meta-data" and not branch.startswith("meta-data/"):
        return 404, b""
    return _metadata(machine.items, branch.removeprefix("meta-data").removeprefix("/"))


def _metadata(items: Mapping[str, str], name: str) -> tuple[int, bytes]:
    if name in items:
        return 200, items[name].encode()
    prefix = f"{name}/" if name else ""
    below = {key.removeprefix(prefix) for key in items if key.startswith(prefix)}
    names = sorted(
        {head + ("/" if slash else "") for head, slash, _ in (key.partition("/") for key in below)}
    )
    return (200, "\n".join(names).encode()) if names else (404, b"")


def _identity(machine: Metadata) -> dict[str, Any]:
    names = {
        "instanceId": "instance-id",
        "imageId": "ami-id",
        "instanceType": "instance-type",
        "privateIp": "local-ipv4",
        "region": "placement/region",
        "availabilityZone": "placement/availability-zone",
    }
    return {key: machine.items.get(name) for key, name in names.items()}


def handler(find: Callable[[str], Metadata | None]) -> type[BaseHTTPRequestHandler]:
    """Returns the HTTP handler of the service. `find` returns the machine that has an address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            machine = find(self.client_address[0])
            headers = {name: self.headers[name] for name in _HEADERS if self.headers[name]}
            is_gce = machine is not None and machine.kind == MetadataKind.GCE
            if machine is not None and is_gce:
                status, body = google_metadata.answer(machine.items, self.path, headers)
            else:
                status, body = answer(machine, self.command, self.path, headers, time.monotonic())
            self.send_response(status)
            if is_gce:
                self.send_header(google_metadata.FLAVOR, "Google")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_PUT(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            """Writes nothing."""

    return Handler
