"""Reads from object storage (S3, Google): lists objects by prefix, compares their ETags, and downloads new
objects."""

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import GCSStore, S3Store

from gridmill.domain.frozen import dataclass
from gridmill.domain.source import CREDENTIALS, OBJECTS, Source
from gridmill.errors import DataError, InputError, UnavailableError
from gridmill.jobs.secret_values import fill_in
from gridmill.jobs.sink.files import SourceFile, described, key_of
from gridmill.jobs.sink.http import HttpBody, TransferInterruptedError, download
from gridmill.jobs.sink.source import SourceFiles, SourceRequest

_WILD = re.compile(r"[*?\[]")
_RETRIES: Any = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_SILENCE = {"timeout": timedelta(days=1), "read_timeout": timedelta(seconds=30)}
"""The timeouts for the time in which no byte is received. The download of a large object may take longer
than this timeout."""
_CHUNK_BYTES = 2**20


def arrive(request: SourceRequest) -> SourceFiles:
    """Return the objects that currently match the paths of the source, each object once.

    Raises DataError if no object matches, InputError if access is denied, UnavailableError.
    """
    source_files: dict[str, SourceFile] = {}
    now = time.time()
    for written in request.source.paths:
        if written.startswith(OBJECTS):
            try:
                objects = list(_matching(request.source, written))
            except TransferInterruptedError as error:
                raise UnavailableError(f"cannot be listed: {error}", place=written) from error
            source_files |= {one.name: replace(one.described(request), written=written) for one in objects}
    files = [source_files[name] for name in sorted(source_files)]
    return SourceFiles(
        files=tuple(file for file in files if not request.source.waits(file.changed_ns, now)),
        waiting=tuple(file for file in files if request.source.waits(file.changed_ns, now)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object in object storage, as the listing describes it."""

    store: S3Store | GCSStore
    beginning: str
    path: str
    tag: str
    size_bytes: int
    changed_ns: int

    @property
    def name(self) -> str:
        """Return the URL of the object in the form that a pipeline file uses."""
        return f"{self.beginning}{self.path}"

    def described(self, request: SourceRequest) -> SourceFile:
        """Return the object as a source file."""
        key = key_of(self.name)
        file = described(
            request.source,
            path=request.work / f"{key}-{self.path.rpartition('/')[2]}",
            name=self.name,
            content=hashlib.sha256(f"{self.tag} {self.size_bytes}".encode()).hexdigest()[:16],
            size_bytes=self.size_bytes,
            fetch=partial(self.fetch, most_bytes=request.most_bytes),
        )
        return replace(file, changed_ns=self.changed_ns)

    def fetch(self, path: Path, most_bytes: int | None = None) -> None:
        """Download the version of the object that was listed. Raises UnavailableError if the object was
        changed after it was listed."""
        download(self._open_at, path, self.name, most_bytes)

    def _open_at(self, start: int) -> HttpBody:
        with _explained(self.name):
            options: Any = {"range": {"offset": start}} if start else {}
            got = obstore.get(self.store, self.path, options=options)
        if _tag(got.meta) != self.tag:
            raise UnavailableError(
                "the object changed while it was loaded", hint="Run the pipeline again.", place=self.name
            )
        return HttpBody(chunks=_chunks(got, self.name), start=start, size_bytes=self.size_bytes)


def _chunks(got: "obstore.GetResult", name: str) -> Iterator[bytes]:
    with _explained(name):
        for chunk in got.stream(min_chunk_size=_CHUNK_BYTES):
            yield bytes(chunk)


def _matching(source: Source, written: str) -> Iterator[StoredObject]:
    scheme, _, rest = written.partition("://")
    bucket, _, pattern = rest.partition("/")
    if not bucket or not pattern:
        raise InputError(f"{written!r} is not of the form {scheme}://BUCKET/PATH", place="source.path")
    store = _STORES[scheme](source, bucket)
    wanted = re.compile(_expression(pattern))
    prefix = _WILD.split(pattern)[0].rpartition("/")[0]
    any_found = False
    with _explained(written):
        for page in obstore.list(store, prefix=prefix or None):
            for meta in page:
                if wanted.fullmatch(meta["path"]):
                    any_found = True
                    yield StoredObject(
                        store=store,
                        beginning=f"{scheme}://{bucket}/",
                        path=meta["path"],
                        tag=_tag(meta),
                        size_bytes=meta["size"],
                        changed_ns=int(meta["last_modified"].timestamp() * 1e9),
                    )
    if not any_found:
        raise DataError(
            "there is no such object",
            hint="Check the path, and your permission to list the bucket.",
            place=written,
        )


def _tag(meta: Any) -> str:  # noqa: ANN401  obstore's ObjectMeta
    return str(meta.get("e_tag") or meta["last_modified"])


def _s3(source: Source, bucket: str) -> S3Store:
    """Open a bucket of S3. The credentials come from the source, or else, like the region, from
    environment variables (AWS_ACCESS_KEY_ID, ...)."""
    keys: Any = _credentials(source, "s3")
    if source.endpoint is None:
        return S3Store(bucket, retry_config=_RETRIES, client_options=_client(), **keys)
    return S3Store(
        bucket,
        **keys,
        retry_config=_RETRIES,
        endpoint=source.endpoint,
        virtual_hosted_style_request=False,
        client_options=_client(source.endpoint),
    )


def _gcs(source: Source, bucket: str) -> GCSStore:
    """Open a bucket of Google Cloud Storage. The credentials come from the source, or else from the
    environment (GOOGLE_APPLICATION_CREDENTIALS, ...)."""
    keys: Any = _credentials(source, "gs")
    if source.endpoint is None:
        return GCSStore(bucket, retry_config=_RETRIES, client_options=_client(), **keys)
    return GCSStore(
        bucket,
        **keys,
        retry_config=_RETRIES,
        base_url=source.endpoint.rstrip("/"),
        client_options=_client(source.endpoint),
    )


def _credentials(source: Source, scheme: str) -> dict[str, str]:
    """Return the declared credentials as options of obstore. Without declared credentials, obstore reads the
    environment. Raises InputError."""
    return {
        name: fill_in(text, f"source.credentials.{name}")
        for name, text in source.credentials.items()
        if name in CREDENTIALS[scheme]
    }


def _client(endpoint: str = "") -> Any:  # noqa: ANN401  obstore's ClientConfig
    return {"allow_http": endpoint.startswith("http://"), **_SILENCE}


_STORES: Mapping[str, Callable[[Source, str], S3Store | GCSStore]] = {"s3": _s3, "gs": _gcs}
_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS (or GOOGLE_SKIP_SIGNATURE=true for a public bucket)",
}


def _expression(pattern: str) -> str:
    """Return a glob pattern as a regular expression, in which `*` and `?` match within a folder, and `**/`
    matches any folders."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]*\])", pattern)
    wildcards = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(
        wildcards.get(part) or (part.replace("[!", "[^") if part.startswith("[") else re.escape(part))
        for part in parts
    )


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError) as error:
        text = " ".join(str(error).split())
        if isinstance(error, NotFoundError | FileNotFoundError) or "NoSuchBucket" in text:
            raise DataError("there is no such bucket or object", place=name) from error
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or "403 Forbidden" in text:
            raise InputError(
                "the store denies access",
                hint="Give the source `credentials`, or set "
                f"{_KEYS[name.partition('://')[0]]} where the job runs.",
                place=name,
            ) from error
        raise TransferInterruptedError(text[:300]) from error
