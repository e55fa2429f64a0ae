"""A simulated Google Cloud Storage with the requests of its XML API that transfers need, and the metadata
server from which a container gets its access tokens.

Sources: https://cloud.google.com/storage/docs/xml-api/reference-methods (PUT, GET, HEAD and DELETE of an
object), https://cloud.google.com/storage/docs/xml-api/get-bucket-list (lists),
https://cloud.google.com/storage/docs/request-preconditions (x-goog-if-generation-match),
https://cloud.google.com/storage/docs/xml-api/reference-status (errors) and
https://cloud.google.com/compute/docs/access/authenticate-workloads (tokens of a service account of a machine)
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from hashlib import md5
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from gridmill.domain.frozen import dataclass
from gridmill.testing.cloud import google_metadata
from gridmill.testing.cloud.google_accounts import PERMITTED_BY_ANY, Accounts, Token
from gridmill.testing.cloud.simulation_server import Answer, SimulationServer, json_answer

_TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"
_XML = "application/xml; charset=UTF-8"
_PAGE = 1000
_WORDS: Mapping[int, tuple[str, str]] = {
    401: ("AuthenticationRequired", "Authentication required."),
    404: ("NoSuchKey", "The specified key does not exist."),
    405: ("MethodNotAllowed", "The specified method is not allowed against this resource."),
    412: ("PreconditionFailed", "At least one of the pre-conditions you specified did not hold."),
    501: ("NotImplemented", "The simulated Cloud Storage does not implement this request."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object. `generation` differs for each content, and `updated` is a Unix time in seconds."""

    content: bytes
    generation: int
    updated: float


class CloudStorageSimulation:
    """A running simulated Cloud Storage with one bucket. All its methods can be called from any thread.

    The service accounts are those of another simulation of Google Cloud. `endpoint_url` is the address that
    replaces `https://storage.googleapis.com`. A container that has `variables()` in its environment gets the
    tokens of the account `email`, each of which is valid for `token_seconds`.
    """

    def __init__(
        self,
        accounts: Accounts,
        lock: threading.RLock,
        email: str,
        bucket: str = "bucket",
        now: Callable[[], float] = time.time,
    ) -> None:
        self.bucket, self.email, self.token_seconds = bucket, email, 3600.0
        self.objects: dict[str, StoredObject] = {}
        self.issued: list[str] = []
        """The tokens that containers got, in order."""
        self.refused = 0
        """The number of requests with a missing, wrong or expired token."""
        self._accounts, self._lock, self._now = accounts, lock, now
        self._generations = itertools.count(1)
        self._server = SimulationServer("cloud-storage", self._respond, _no_commands)

    @property
    def endpoint_url(self) -> str:
        """Returns the address of the server."""
        return self._server.url

    def variables(self) -> Mapping[str, str]:
        """Returns the variables with which a container uses this metadata server."""
        address = self.endpoint_url.removeprefix("http://")
        return {"GCE_METADATA_HOST": address, "GCE_METADATA_ROOT": address, "GCE_METADATA_IP": address}

    def close(self) -> None:
        """Ends the server."""
        self._server.close()

    def _respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        parts = urlsplit(path)
        with self._lock:
            if parts.path == _TOKEN:
                return self._issue(headers)
            if self._accounts.caller(headers, self._now()) is None:
                self.refused += 1
                return _error(401)
            bucket, _, name = unquote(parts.path).removeprefix("/").partition("/")
            if bucket != self.bucket:
                return _error(404, "NoSuchBucket")
            if not name:
                query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
                return self._listed(query) if method == "GET" else _error(501)
            return self._of_object(method, name, headers, body)

    def _issue(self, headers: Mapping[str, str]) -> Answer:
        if headers.get(google_metadata.FLAVOR) != "Google":
            return Answer(status=403, body=b"Missing Metadata-Flavor:Google header.")
        text = self._accounts.new_token()
        expires_at = self._now() + self.token_seconds
        self._accounts.tokens[text] = Token(email=self.email, scopes=PERMITTED_BY_ANY, expires_at=expires_at)
        self.issued.append(text)
        return json_answer(
            {"access_token": text, "expires_in": int(self.token_seconds), "token_type": "Bearer"}
        )

    def _of_object(self, method: str, name: str, headers: Mapping[str, str], body: bytes) -> Answer:
        found = self.objects.get(name)
        if method == "PUT":
            return self._put(name, found, headers, body)
        if found is None:
            return _error(404)
        match method:
            case "GET" | "HEAD":
                return Answer(
                    status=200,
                    body=found.content,
                    content_type="application/octet-stream",
                    headers=_headers(found),
                )
            case "DELETE":
                del self.objects[name]
                return Answer(status=204, body=b"")
            case _:
                return _error(405)

    def _put(self, name: str, found: StoredObject | None, headers: Mapping[str, str], body: bytes) -> Answer:
        wanted = headers.get("x-goog-if-generation-match")
        present = found.generation if found is not None else 0
        if wanted is not None and int(wanted) != present:
            return _error(412)
        made = StoredObject(content=body, generation=next(self._generations), updated=self._now())
        self.objects[name] = made
        return Answer(status=200, body=b"", headers=_headers(made))

    def _listed(self, query: Mapping[str, str]) -> Answer:
        if set(query) - {"list-type", "prefix", "continuation-token", "max-keys"}:
            return _error(501)
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        names = sorted(one for one in self.objects if one.startswith(prefix) and one > after)
        page = names[: min(_PAGE, int(query.get("max-keys", _PAGE)))]
        more = names[len(page) :]
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        items = "".join(_item(one, self.objects[one]) for one in page)
        text = (
            "<?xml version='1.0' encoding='UTF-8'?>"
            "<ListBucketResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'>"
            f"<Name>{self.bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
            f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>{token}{items}</ListBucketResult>"
        )
        return Answer(status=200, body=text.encode(), content_type=_XML)


def _item(name: str, one: StoredObject) -> str:
    updated = datetime.fromtimestamp(one.updated, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return (
        f"<Contents><Key>{escape(name)}</Key><Generation>{one.generation}</Generation>"
        f"<MetaGeneration>1</MetaGeneration><LastModified>{updated}</LastModified>"
        f"<ETag>{_etag(one)}</ETag><Size>{len(one.content)}</Size></Contents>"
    )


def _etag(one: StoredObject) -> str:
    return f'"{md5(one.content, usedforsecurity=False).hexdigest()}"'


def _headers(one: StoredObject) -> tuple[tuple[str, str], ...]:
    updated = format_datetime(datetime.fromtimestamp(one.updated, UTC), usegmt=True)
    return (
        ("ETag", _etag(one)),
        ("Last-Modified", updated),
        ("x-goog-generation", str(one.generation)),
        ("x-goog-metageneration", "1"),
    )


def _error(status: int, code: str = "") -> Answer:
    known, message = _WORDS[status]
    text = f"<?xml version='1.0'?><Error><Code>{code or known}</Code><Message>{message}</Message></Error>"
    return Answer(status=status, body=text.encode(), content_type=_XML)


def _no_commands(command: str, given: dict[str, Any]) -> Any:  # noqa: ANN401  JSON
    del given
    return {"error": f"there is no command {command}"}


@contextmanager
def simulated_cloud_storage(
    accounts: Accounts, lock: threading.RLock, email: str, bucket: str = "bucket"
) -> Iterator[CloudStorageSimulation]:
    """Starts a simulated Cloud Storage for the duration of the `with` block; see CloudStorageSimulation."""
    simulation = CloudStorageSimulation(accounts, lock, email, bucket)
    try:
        yield simulation
    finally:
        simulation.close()
