"""Reads and writes objects below a prefix of a bucket, with the credentials of the bucket's owner."""

import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from http.client import HTTPException
from typing import Any, cast
from urllib.error import HTTPError, URLError

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import from_url

from gridmill import errors
from gridmill.transfer.errors import TransferRefusedError
from gridmill.transfer.signed_urls import check_bucket, refusal, send
from gridmill.transfer.stream import UNMETERED, ByteMeter

PASS_SECONDS = 900.0
"""The number of seconds for which a signed URL is valid."""
_ALLOW = "Check that the credentials are correct, have not expired and permit this prefix."
_SET = "Correct the clock of this machine or of the bucket's server: they differ."
_MAKE = (
    "Create the bucket, or set another: `gridmill configure site NAME --export s3://BUCKET/PREFIX` (or "
    "--shared)."
)
_SAY = (
    "Set the credentials in the environment of the control node (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY; "
    "or GOOGLE_SERVICE_ACCOUNT, the path of a key), or run it on a machine of the cloud that has them."
)
_SILENT = "the bucket's server does not answer"
_CLOUDS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
"""Metadata services of cloud providers. Libraries ask these services for credentials if no credentials are
given."""
_TRIED = re.compile(
    r"Generic \w+ error: Error performing \w+ \S+ in \S+(, .*retry_timeout: \S+)?\s+- (HTTP error: )?"
)
"""Matches the description of the request that obstore writes before the result in an error message."""
_REFUSAL = re.compile(r"<Code>(?P<code>\w+)</Code>(.*<Message>(?P<told>[^<]+)</Message>)?", re.DOTALL)
_SKEWED = "RequestTimeTooSkewed"
_REFUSED = ("401 Unauthorized", "403 Forbidden")
_S3 = {"disable_bulk_delete": "true"}  # some servers with the S3 protocol do not support bulk deletes
_RETRIES: Any = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_READING = {"timeout": timedelta(seconds=900), "read_timeout": timedelta(seconds=30)}
"""The timeouts of reads. Reading an object may take up to 15 minutes if bytes arrive at least every 30
seconds."""
_PUTTING = {"timeout": timedelta(seconds=300)}
"""The timeout for putting an object into the bucket, because no bytes arrive during this request."""


class BucketClient:
    """Accesses the objects below a prefix of a bucket. This class is safe to use from several threads. All
    methods raise TransferRefusedError and UnavailableError."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, str] | None = None,
        *,
        pass_seconds: float = PASS_SECONDS,
        credentials: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        """Opens the prefix of the bucket; see `open_store`. Signed URLs are valid for `pass_seconds`."""
        self.url, self.pass_seconds = url, pass_seconds
        self._store: Any = open_store(url, options or {}, credentials=credentials)
        self._puts: Any = open_store(url, options or {}, puts=True, credentials=credentials)

    def put(self, name: str, content: bytes, meter: ByteMeter = UNMETERED) -> None:
        """Puts an object into the bucket, either completely or not at all."""
        signs = not self.url.startswith("file:")
        if meter is UNMETERED or not signs or not self._sent(name, content, meter):
            self._put(name, content)

    def _sent(self, name: str, content: bytes, meter: ByteMeter) -> bool:
        """Puts an object piece by piece with a signed URL, because obstore reports no progress. Returns
        False if the signed URL is refused. If the signed URL is refused, obstore puts the object or reports
        the reason of the refusal."""
        try:
            send(self.sign("PUT", name), len(content), meter.sending(content))
        except HTTPError as error:
            if isinstance(why := refusal(error, "PUT", self.url), errors.UnavailableError):
                raise why from None
            return False
        except URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                return False
            raise errors.UnavailableError(_SILENT, place=self.url) from error
        except (OSError, HTTPException) as error:
            raise errors.UnavailableError(_SILENT, place=self.url) from error
        return True

    def _put(self, name: str, content: bytes) -> None:
        with explained(self.url):
            try:
                obstore.put(self._puts, name, content, use_multipart=False)
            except (FileNotFoundError, NotFoundError) as error:
                raise TransferRefusedError(
                    "this bucket does not exist", place=self.url, hint=_MAKE
                ) from error

    def create(self, name: str, content: bytes) -> bool:
        """Puts an object into the bucket, unless an object with this name exists. Of several callers, only
        one gets True."""
        with explained(self.url):
            try:
                obstore.put(self._puts, name, content, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def get(self, name: str, most_bytes: int, meter: ByteMeter = UNMETERED) -> bytes:
        """Returns the content of an object. Raises NotFoundError if the object does not exist, and DataError
        if it is larger than `most_bytes`."""
        with explained(self.url):
            try:
                got = obstore.get(self._store, name)
            except (FileNotFoundError, NotFoundError) as error:
                raise errors.NotFoundError(
                    "this object does not exist", place=f"{self.url}/{name}"
                ) from error
            if got.meta["size"] > most_bytes:
                raise errors.DataError("is too large", place=f"{self.url}/{name}")
            content = bytearray()
            for piece in got.stream(min_chunk_size=meter.piece_bytes):
                meter.moved(len(piece))
                content += piece
            return bytes(content)

    def remove(self, name: str) -> None:
        """Deletes the object. May be repeated."""
        with explained(self.url), suppress(FileNotFoundError, NotFoundError):
            obstore.delete(self._store, name)

    def has(self, name: str) -> bool:
        """Whether the object exists."""
        with explained(self.url):
            try:
                obstore.head(self._store, name)
            except (FileNotFoundError, NotFoundError):
                return False
        return True

    def names(self, folder: str) -> Iterator[Sequence[str]]:
        """Yields the names and sizes of all objects in a folder of the bucket, page by page."""
        with explained(self.url):
            for page in obstore.list(self._store, prefix=folder, chunk_size=1000):
                yield [entry["path"] for entry in page]

    def times(self) -> Iterator[tuple[str, float]]:
        """Yields the name of each object below the prefix, and the Unix time at which it was written."""
        with explained(self.url):
            for page in obstore.list(self._store, chunk_size=1000):
                yield from ((entry["path"], entry["last_modified"].timestamp()) for entry in page)

    def older(self, before: datetime, folder: str | None = None) -> Iterator[str]:
        """Yields the names of objects that were put before this time, in a folder or below the whole
        prefix."""
        with explained(self.url):
            for page in obstore.list(self._store, prefix=folder, chunk_size=1000):
                yield from (entry["path"] for entry in page if entry["last_modified"] < before)

    def sign(self, method: str, name: str) -> str:
        """Returns a signed URL that gives access to this object only, to GET it or to PUT it, for
        `pass_seconds`."""
        with explained(self.url):
            signed: str = obstore.sign(
                self._store, cast(Any, method), name, timedelta(seconds=self.pass_seconds)
            )
        return signed


def open_store(
    url: str,
    options: Mapping[str, str],
    *,
    puts: bool = False,
    credentials: Callable[[], Mapping[str, Any]] | None = None,
) -> object:
    """Opens the store of obstore for `s3://BUCKET/PREFIX`, `gs://…` or `file:///FOLDER`.

    `options` are the options of obstore for this kind of store. The option `endpoint` is the server of the
    bucket for every kind of store. Options that are missing, such as the credentials, are taken from the
    environment. With `puts`, the returned store has the
    timeouts for putting objects. Without `puts`, the returned store has the timeouts for all other requests.
    `credentials` returns the present credentials, which are asked for again when they expire. Raises
    InputError.
    """
    scheme = url.partition("://")[0]
    if scheme == "file":
        with explained(url, refused=BaseError):
            return from_url(url, mkdir=True)
    check_bucket(url)
    plain = any(value.startswith("http://") for value in options.values())
    client: Any = {"allow_http": plain, **(_PUTTING if puts else _READING)}
    settings = {**(_S3 if scheme == "s3" else {}), **_named(scheme, options)}
    with explained(url, refused=BaseError):
        return from_url(
            url,
            config=cast(Any, settings),
            client_options=client,
            retry_config=_RETRIES,
            credential_provider=cast(Any, credentials),
        )


def _named(scheme: str, options: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options with the names that obstore has for this kind of store."""
    if scheme != "gs" or "endpoint" not in options:
        return options
    rest = {name: value for name, value in options.items() if name != "endpoint"}
    return {**rest, "base_url": options["endpoint"]}


@contextmanager
def explained(url: str, *, refused: type[BaseException] = PermissionDeniedError) -> Iterator[None]:
    """Converts errors of obstore into errors of Gridmill. The message uses only the end of the first line,
    because the other lines describe details inside obstore."""
    try:
        yield
    except (refused, PermissionDeniedError, UnauthenticatedError) as error:
        raise _refusal(error, url) from error
    except (BaseError, OSError) as error:
        if any(scheme_name in str(error) for scheme_name in _CLOUDS):
            raise TransferRefusedError(
                "there are no credentials for this bucket", place=url, hint=_SAY
            ) from error
        if any(status in str(error) for status in _REFUSED):
            raise _refusal(error, url) from error
        raise errors.UnavailableError(_line(error), place=url) from error


def _refusal(error: BaseException, url: str) -> TransferRefusedError:
    """Returns an error with the message of the bucket's server, if the server sent one."""
    match = _REFUSAL.search(str(error))
    words = [word for word in (match["code"], match["told"]) if word] if match else [_line(error)]
    hint = _SET if words[0] == _SKEWED else _ALLOW
    return TransferRefusedError(f"access is denied: {': '.join(words)}", place=url, hint=hint)


def _line(error: BaseException) -> str:
    line = _TRIED.sub("", str(error).partition("\n")[0])
    return _SILENT if line.startswith("error sending request") else line
