"""Credentials that are renewed while jobs run: of the service, of the bucket, and of a container."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import pytest
from tests.kit.batch_memory import Service

from gridmill.domain.site import Site, SiteKind
from gridmill.errors import CredentialsError, NotFoundError
from gridmill.sites.batch.access import RenewedService, open_bucket
from gridmill.sites.batch.settings import read
from gridmill.testing.cloud.cloud_storage import simulated_cloud_storage
from gridmill.testing.cloud.google_accounts import Accounts
from gridmill.transfer.bucket import BucketClient
from gridmill.transfer.errors import TransferRefusedError


class KeyService(Service):
    """A service that permits one key."""

    permitted = "first"

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__()
        self.key, self.is_closed = settings["key"], False

    def check(self) -> str:
        if self.key != KeyService.permitted:
            raise CredentialsError("the token has expired")
        return self.key

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[KeyService]:
    monkeypatch.setattr(KeyService, "permitted", "first")
    return []


def renewed(secrets: dict[str, str], opened: list[KeyService]) -> RenewedService:
    def resolve(name: str) -> str:
        if name not in secrets:
            raise NotFoundError(f"there is no secret {name!r}")
        return secrets[name]

    def make(values: Mapping[str, str]) -> KeyService:
        opened.append(KeyService(values))
        return opened[-1]

    return RenewedService({"key": "${secret:aws}"}, resolve, make)


def test_a_new_value_of_a_secret_is_used_without_a_restart(
    opened: list[KeyService], monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {"aws": "first"}
    service = renewed(secrets, opened)
    assert service.check() == "first"
    monkeypatch.setattr(KeyService, "permitted", "second")
    for _ in range(2):
        with pytest.raises(CredentialsError, match="has expired"):
            service.check()
    assert len(opened) == 1  # the secret is unchanged
    secrets["aws"] = "second"
    with pytest.raises(CredentialsError):
        service.check()
    assert service.check() == "second"
    assert [one.is_closed for one in opened] == [True, False]


def test_a_secret_that_was_removed_is_a_problem_of_the_credentials(
    opened: list[KeyService], monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {"aws": "first"}
    service = renewed(secrets, opened)
    monkeypatch.setattr(KeyService, "permitted", "second")
    secrets.clear()
    with pytest.raises(CredentialsError, match="there is no secret 'aws'"):
        service.check()


class S3:
    """A server that stores nothing, and notes the access key of each request. It also has the credentials of
    the role of a container, each of which is valid for `seconds`."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.issued, self.seconds = 0, 1.0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/role":
                    return self._send(server.role())
                server.keys.append(
                    self.headers["Authorization"].partition("Credential=")[2].partition("/")[0]
                )
                return self._send(b"")

            def _send(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("ETag", '"1"')
                self.send_header("Last-Modified", "Thu, 26 Nov 2026 10:00:00 GMT")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def role(self) -> bytes:
        self.issued += 1
        until = datetime.now(UTC) + timedelta(seconds=self.seconds)
        return json.dumps(
            {
                "AccessKeyId": f"ASIA{self.issued}",
                "SecretAccessKey": "k",
                "Token": "t",
                "Expiration": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        ).encode()


@contextmanager
def s3_server() -> Iterator[S3]:
    made = S3()
    thread = threading.Thread(target=made.http.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield made
    finally:
        made.http.shutdown()
        made.http.server_close()
        thread.join()


def bucket_of(settings: Mapping[str, str], service: Service, resolve: Callable[[str], str]) -> BucketClient:
    site = Site(name="batch", kind=SiteKind.BATCH, settings={"service": "aws", **settings})
    return open_bucket(site, read(site), f"{settings['bucket']}/mark", service, resolve).bucket


def repeat(call: Callable[[], object], is_done: Callable[[], bool]) -> None:
    """Repeats a request, because obstore asks for credentials again only after a tenth of a second."""
    until = time.monotonic() + 30.0
    while not is_done():
        assert time.monotonic() < until
        with suppress(TransferRefusedError):
            call()


def test_the_bucket_of_the_home_uses_the_present_values_of_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridmill.sites.batch.access._VALID_SECONDS", 0.0)
    keys = {"key": "1234", "token": "tok-1"}
    with s3_server() as server:
        settings = {
            "bucket": "s3://bucket/prefix",
            "bucket_endpoint": server.url,
            "bucket_region": "eu-central-1",
            "access_key_id": "${secret:id}",
            "secret_access_key": "${secret:key}",
            "session_token": "${secret:token}",
        }
        bucket = bucket_of(settings, Service(), lambda name: {**keys, "id": f"AKIA-{keys['token']}"}[name])
        bucket.put("one", b"1")
        keys["token"] = "tok-2"
        bucket.put("two", b"2")
    assert server.keys == ["AKIA-tok-1", "AKIA-tok-2"]


def test_a_container_at_aws_renews_the_credentials_of_its_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with s3_server() as server:
        (tmp_path / "token").write_text("token")
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/role")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
        bucket = BucketClient("s3://bucket/prefix", {"endpoint": server.url, "region": "us-east-1"})
        repeat(lambda: bucket.put("one", b"1"), lambda: len(set(server.keys)) > 1)


def test_a_container_at_google_renews_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = Accounts("project", Random(1))
    email = accounts.add("jobs").email
    with simulated_cloud_storage(accounts, threading.RLock(), email) as storage:
        for name, value in storage.variables().items():
            monkeypatch.setenv(name, value)
        storage.token_seconds = 3600.0
        bucket = BucketClient("gs://bucket/prefix", {"endpoint": storage.endpoint_url})
        bucket.put("one", b"1")
        assert bucket.get("one", 10) == b"1"
        assert bucket.has("one")
        before = len(storage.issued)
        assert before == 2  # one to put objects, and one to read them
        storage.token_seconds = 5.0  # obstore asks for another token some minutes before the end
        short = BucketClient("gs://bucket/prefix", {"endpoint": storage.endpoint_url})
        short.put("two", b"2")
        accounts.tokens.clear()  # all tokens have expired
        repeat(lambda: short.has("three"), lambda: len(storage.issued) > before + 1)
        repeat(lambda: short.create("three", b"3"), lambda: short.has("three"))
        assert not short.create("two", b"3")
        assert list(short.names("")) == [["one", "three", "two"]]
