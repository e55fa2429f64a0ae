"""Selects the way of transfers between the home and a farm: through the controller of the farm, or through a
bucket that both sides reach.

This module also deletes objects that this home has put into buckets and that are not needed any more. Notes
on the disk record in which buckets and folders this home put objects, so that the objects are found after a
restart. Objects for one use are deleted after that use, and objects for repeated use are deleted after a set
time. When a site is removed, its objects for repeated use are deleted only if no other site of this process
uses the same folder of the bucket. During the deletion, no new objects can be put into this folder.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from gridmill.codec import decode, encode
from gridmill.domain.amounts import parse_seconds
from gridmill.domain.frozen import dataclass
from gridmill.domain.route import Staging
from gridmill.domain.secret import resolved
from gridmill.domain.site import Site
from gridmill.domain.source import CREDENTIALS, check_credential
from gridmill.errors import GridmillError, InputError, NotFoundError, StorageError, UnavailableError
from gridmill.private_files import write_private
from gridmill.sites.farm.client import FarmClient
from gridmill.transfer.bucket_cache import BucketCache, ListableBucket, SharedBucketEndpoint
from gridmill.transfer.bucket_exchange import ExportBucketEndpoint, UniqueNames, sweep
from gridmill.transfer.engine import ChunkEndpoint
from gridmill.transfer.errors import TransferRefusedError
from gridmill.transfer.signed_urls import check_bucket

if TYPE_CHECKING:
    from gridmill.transfer.bucket import BucketClient


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPrefix:
    """A place in the bucket at `url` where this home puts objects. With a `folder`, the place has the
    objects that one process put there for one use. Without a `folder`, the place has the objects for
    repeated use.

    `endpoint` is the address of the bucket's server, or empty for the cloud's own server. `over` is the Unix
    time at which this home first noticed that the process had ended.
    """

    url: str
    endpoint: str = ""
    folder: str = ""
    over: float | None = None


class BucketPrefixes:
    """Stores one note file for each place in a bucket, and writes the note before the first object is put
    there. This class is safe to use from several threads and processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: set[BucketPrefix] = set()
        self._lock = Lock()

    def begin(self, lot: BucketPrefix) -> None:
        """Records that objects will be put at this place. May be repeated. Raises StorageError."""
        with self._lock:
            if lot not in self._started:
                self._write(lot)
                self._started.add(lot)

    def over(self, lot: BucketPrefix, now: float) -> BucketPrefix:
        """Records that the process that put objects at this place has ended. May be repeated. Raises
        StorageError."""
        if lot.over is None or lot.over > now:  # a time in the future means that the clock was set back
            lot = replace(lot, over=now)
            self._write(lot)
        return lot

    def _write(self, lot: BucketPrefix) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_private(self._path(lot), encode(lot))
        except OSError as error:
            raise StorageError(f"cannot be written: {error.strerror}", place=str(self._folder)) from error

    def all(self) -> tuple[BucketPrefix, ...]:
        """Returns the notes of all places that may still contain objects."""
        lots: list[BucketPrefix] = []
        for path in sorted(self._folder.glob("*.json")):
            # the note is damaged: its objects are deleted when they are old enough
            with suppress(OSError, InputError):
                lots.append(decode(path.read_bytes(), BucketPrefix))
        return tuple(lots)

    def done(self, lot: BucketPrefix) -> None:
        """Deletes the note of a place in a bucket that is empty and stays empty, unless this process still
        uses the place. May be repeated."""
        with self._lock, suppress(OSError):  # if the note cannot be deleted, the place is checked again later
            if lot not in self._started:
                self._path(lot).unlink(missing_ok=True)

    def end(self, lot: BucketPrefix) -> None:
        """Records that a place in a bucket is empty and that this process puts no more objects there."""
        with self._lock:
            self._started.discard(lot)
        self.done(lot)

    def _path(self, lot: BucketPrefix) -> Path:
        name = encode(replace(lot, over=None))
        return self._folder / f"{sha256(name).hexdigest()[:32]}.json"


class PrefixesInUse:
    """Counts the uses of each place in which this process stores objects for repeated use. Safe to use from
    several threads."""

    def __init__(self) -> None:
        self._held: Counter[BucketPrefix] = Counter()
        self._clearing: set[BucketPrefix] = set()
        self._lock = threading.Lock()

    def hold(self, lot: BucketPrefix) -> None:
        """Records that one more user puts objects at this place in a bucket. Raises UnavailableError while
        old objects are being deleted at the place."""
        with self._lock:
            if lot in self._clearing:
                raise UnavailableError(
                    "the data of a removed site is still being deleted from this bucket",
                    hint="The transfer continues automatically after the deletion.",
                    place=lot.url,
                )
            self._held[lot] += 1

    def release(self, lot: BucketPrefix) -> None:
        """Records that one user of this place in a bucket puts no more objects there."""
        with self._lock:
            self._held[lot] -= 1

    @contextmanager
    def clearing(self, lot: BucketPrefix) -> Iterator[bool]:
        """Yields whether all objects at this place in a bucket may be deleted. If the objects may be
        deleted, no new use of the place can start inside the `with` block."""
        with self._lock:
            free = self._held[lot] <= 0 and lot not in self._clearing
            if free:
                self._clearing.add(lot)
        try:
            yield free
        finally:
            if free:
                with self._lock:
                    self._clearing.discard(lot)


HOLDS = PrefixesInUse()
"""The places in buckets that this process uses."""


STALE_SECONDS = 3600.0
"""Objects in a bucket for which this home has no note are deleted when they are this many seconds old."""
LATE_SECONDS = 1800.0
"""A farm may still put objects that an ended process requested for this many seconds: until the signed URL
has expired, and uploads that started before then are complete."""
_SWEEP_SECONDS, _AGED_SECONDS, _POLL_SECONDS = 300.0, 1800.0, 60.0
_AHEAD = timedelta(days=2)  # deletes all objects, even if the clock of the bucket is this far ahead
_LOG = logging.getLogger(__name__)
LIVE: set[str] = set()
"""The folders in buckets to which this process writes. While a site is being changed, the site may have two
folders in buckets."""


class _InUse:
    """The objects for one use that this process uses now. Other ports of the site, such as those of other
    rented machines, record their own uses, so that all objects in their folders count."""

    def __init__(self, uses: UniqueNames) -> None:
        self._uses = uses

    def __contains__(self, name: object) -> bool:
        folder = str(name).partition("/")[0]
        return name in self._uses if folder == self._uses.folder else folder in LIVE


class BucketCollector:
    """Deletes objects of one site in buckets. The collector does not examine the objects of other sites."""

    def __init__(
        self,
        name: str,
        lots: BucketPrefixes,
        uses: UniqueNames,
        opens: tuple[Callable[[BucketPrefix], ListableBucket], Callable[[BucketPrefix], BucketCache]],
        swept: Path,
        keep_seconds: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`uses` are the unique object names of this process. `opens` has two functions: one returns the
        bucket of a place, the other returns the cache of objects for repeated use at a place. The
        modification time of the file `swept` is the time of the last deletion of old objects. `now` returns
        the Unix time."""
        self._name, self._prefixes, self._uses = name, lots, uses
        self._bucket, self._kept = opens
        self._swept, self._keep_seconds, self._now = swept, keep_seconds, now
        self._over = threading.Event()

    def start(self) -> None:
        """Starts a thread that deletes unneeded objects immediately and then at regular intervals."""
        threading.Thread(target=self._run, name="gridmill-sweeper", daemon=True).start()

    def close(self) -> None:
        """Stops sweeping. May be repeated."""
        self._over.set()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._over.is_set():
            try:
                if time.monotonic() >= due:
                    due = time.monotonic() + _SWEEP_SECONDS
                    self.sweep_unused()
                self._sweep_aged()
            except Exception:  # noqa: BLE001  the outermost loop: the next turn may fare better
                _LOG.exception("bucket_not_cleaned site=%s", self._name)
            self._over.wait(_POLL_SECONDS)

    def _sweep_aged(self) -> None:
        if not 0 <= self._now() - self._aged() < _AGED_SECONDS:
            with suppress(OSError):
                self._swept.touch()
            self.sweep_old(datetime.now(UTC))

    def _aged(self) -> float:
        try:
            return self._swept.stat().st_mtime
        except OSError:
            return 0.0

    def sweep_unused(self) -> None:
        """Deletes objects for one use if neither this process nor a farm that answers an ended process needs
        them any more. A failed deletion is retried later."""
        for lot in self._prefixes.all():
            if lot.folder:
                self._logging_errors(lot, self._sweep_lot)

    def _logging_errors(
        self, lot: BucketPrefix, act: Callable[[BucketPrefix], None], level: int = logging.INFO
    ) -> None:
        try:
            act(lot)
        except GridmillError as error:
            _LOG.log(level, "bucket_not_cleaned site=%s url=%s reason=%s", self._name, lot.url, error)

    def _sweep_lot(self, lot: BucketPrefix) -> None:
        mine = lot.folder == self._uses.folder
        if not self._uses.since(LATE_SECONDS) if mine else lot.folder in LIVE:
            return
        over = None if mine else self._prefixes.over(lot, self._now()).over
        bucket = self._bucket(lot)
        object_names = [name for page in bucket.names(lot.folder) for name in page]
        # only listed objects: an object that is put after the listing is not deleted
        for name in object_names:
            if name not in self._uses:
                bucket.remove(name)
        if over is not None and not object_names and self._now() - over >= LATE_SECONDS:
            self._prefixes.done(lot)

    def sweep_old(self, now: datetime) -> None:
        """Deletes old objects: objects that any process put for one use, and objects for repeated use whose
        storage time has passed."""
        for lot in {(lot.url, lot.endpoint): lot for lot in self._prefixes.all()}.values():
            self._logging_errors(lot, lambda lot: self._sweep_old(lot, now))

    def _sweep_old(self, lot: BucketPrefix, now: datetime) -> None:
        if lot.folder:
            return sweep(self._bucket(lot), now - timedelta(seconds=STALE_SECONDS), but=_InUse(self._uses))
        kept = self._kept(lot)
        kept.clear(now - timedelta(seconds=self._keep_seconds))
        with HOLDS.clearing(lot) as free:  # another object of this process may use the place
            if free and kept.is_empty():
                self._prefixes.done(lot)

    def clear(self, others: Iterable[BucketPrefix]) -> None:
        """Deletes all objects of a removed site. Objects at places that are also in `others` are not
        deleted, because other sites use these places. A failed deletion is skipped."""
        kept = {lot for lot in others if not lot.folder}
        for lot in self._prefixes.all():
            if lot in kept:
                self._prefixes.end(lot)
            elif lot.folder == self._uses.folder or lot.folder not in LIVE:
                self._logging_errors(lot, self._clear, logging.WARNING)

    def _clear(self, lot: BucketPrefix) -> None:
        # the note stays, because a slow farm may still put objects, also after the site is added again
        if lot.folder:
            bucket = self._bucket(lot)
            for name in [name for page in bucket.names(lot.folder) for name in page]:
                bucket.remove(name)
            return
        with HOLDS.clearing(lot) as free:
            if not free:  # not cleared, because the site was added again meanwhile and uses the objects
                return _LOG.info("bucket_not_cleared site=%s url=%s reason=in use", self._name, lot.url)
            self._kept(lot).clear(datetime.now(UTC) + _AHEAD)
            self._prefixes.end(lot)


SETTINGS = {
    "export": "the bucket for resources with `staging: export`, as s3://BUCKET/PREFIX",
    "shared": "the bucket for resources with `staging: shared`, which keeps uploaded data for reuse",
    "keep": "how long unused data in the bucket is kept (default: 30d)",
    "endpoint": "the address of the bucket's server, as http://10.0.0.5:9000 (default: the cloud provider's)",
    **{
        name: f"the `{name}` of {scheme}:// buckets, as ${{secret:NAME}} (default: the environment)"
        for scheme, names in CREDENTIALS.items()
        for name in names
    },
}
_KEEP = "30d"


class SiteBuckets:
    """Opens the buckets of one site, and deletes unneeded objects of this home in them. This class is safe to
    use from several threads. This home puts its objects for one use below PREFIX/TENANT/SITE, and its objects
    for repeated use below PREFIX/kept/TENANT."""

    def __init__(
        self,
        site: Site,
        tenant: str,
        folder: Path,
        resolve: Callable[[str], str] | None = None,
        *,
        is_of_machines: bool = False,
    ) -> None:
        """`tenant` is the name of this home at the farm, and `folder` contains notes on the used buckets.
        `resolve` returns the value of a secret. With `is_of_machines`, objects for one use are below
        PREFIX/TENANT/SITE/transfers: exported results are below PREFIX/TENANT/SITE, too, and must not be
        deleted as unneeded. Raises InputError for invalid settings."""
        self._resolve = resolve or no_secrets
        self._site, self._tenant, self._folder = site, tenant, folder
        self._once = f"{tenant}/{site.name}{'/transfers' if is_of_machines else ''}"
        self._lock = threading.Lock()
        self._opened: dict[tuple[object, ...], BucketClient] = {}
        self._kept: dict[tuple[str, str], BucketCache] = {}
        self._held: set[BucketPrefix] = set()
        self._over = False
        self._uses, self._prefixes = UniqueNames(), BucketPrefixes(folder / "lots")
        LIVE.add(self._uses.folder)
        self.sweeper = BucketCollector(
            site.name,
            self._prefixes,
            self._uses,
            (self._bucket, self._keeping),
            folder / "swept",
            check(site),
        )

    def _new_prefix(self, url: str, folder: str = "") -> BucketPrefix:
        lot = BucketPrefix(url=url, endpoint=self._site.settings.get("endpoint", ""), folder=folder)
        self._bucket(lot)  # first, because a bucket that cannot be opened must get no note
        if not folder:
            self._hold(lot)
        self._prefixes.begin(lot)
        return lot

    def _hold(self, lot: BucketPrefix) -> None:
        with self._lock:
            if self._over:  # a hold that started now would never be released
                raise UnavailableError(
                    f"the site {self._site.name} was changed or removed",
                    hint="If the site still exists, the transfer continues automatically.",
                    place=lot.url,
                )
            if lot not in self._held:
                HOLDS.hold(lot)
                self._held.add(lot)

    def _release(self) -> None:
        """Releases all holds. None can start afterwards."""
        with self._lock:
            self._over = True
            while self._held:
                HOLDS.release(self._held.pop())

    def _keeping(self, lot: BucketPrefix) -> BucketCache:
        bucket = self._bucket(lot)
        with self._lock:
            return self._kept.setdefault((lot.url, lot.endpoint), BucketCache(bucket))

    def _bucket(self, lot: BucketPrefix) -> "BucketClient":
        if find_spec("obstore") is None:
            raise TransferRefusedError(
                "buckets need the package `obstore`, which is not installed",
                hint="pip install 'gridmill[objects]' at home",
                place=f"site {self._site.name}",
            )
        # resolved for each use, so that a new value of a secret opens the bucket again
        options = {**({"endpoint": lot.endpoint} if lot.endpoint else {}), **self._credentials(lot)}
        key = (lot.url, *options.items())
        with self._lock:
            if key not in self._opened:
                from gridmill.transfer.bucket import BucketClient

                self._opened[key] = BucketClient(lot.url, options)
            return self._opened[key]

    def _credentials(self, lot: BucketPrefix) -> dict[str, str]:
        """Returns the credentials in the settings of the site for a bucket. Raises NotFoundError and
        StorageError for a secret that cannot be read."""
        names = CREDENTIALS.get(lot.url.partition("://")[0], ())
        given = self._site.settings
        return {name: resolved(given[name], self._resolve) for name in names if name in given}

    def start(self) -> None:
        """Starts a thread that deletes unneeded objects immediately and then at regular intervals."""
        self.sweeper.start()

    def clear(self) -> None:
        """Deletes the objects of a removed site in buckets, except objects at places that other sites of
        this home use too."""
        self._release()
        every = self._folder.parent.parent.glob("*/*/lots")  # of farms, and of sites with rented machines
        others = (folder for folder in every if folder.parent != self._folder)
        self.sweeper.clear([lot for folder in others for lot in BucketPrefixes(folder).all()])

    def close(self) -> None:
        """Ends transfers and sweeping. After this call, any process of this home may delete the objects that
        this site put for one use. May be repeated."""
        LIVE.discard(self._uses.folder)
        self._release()
        self.sweeper.close()


class BucketEndpoints(SiteBuckets):
    """Opens the buckets of one site for transfers to and from one farm. This class is safe to use from
    several threads."""

    def __init__(
        self,
        farm: FarmClient,
        site: Site,
        tenant: str,
        folder: Path,
        resolve: Callable[[str], str] | None = None,
        *,
        is_of_machines: bool = False,
    ) -> None:
        """See SiteBuckets. `tenant` is the name of this home at the farm."""
        super().__init__(site, tenant, folder, resolve, is_of_machines=is_of_machines)
        self._farm = farm

    def endpoint(self, staging: Staging, sizes: Mapping[str, int]) -> ChunkEndpoint:
        """Returns the endpoint for transfers to and from the farm. `sizes` are the sizes in bytes of all
        chunks of the transfer.

        Raises InputError if the site has no bucket, StorageError, and UnavailableError while a bucket is
        being cleared or after the site was closed.
        """
        if staging == Staging.DIRECT:
            return self._farm
        url = bucket_of(self._site, staging)
        once = self._new_prefix(f"{url}/{self._once}", self._uses.folder)
        if staging == Staging.EXPORT:
            return ExportBucketEndpoint(self._farm, self._bucket(once), sizes, self._uses)
        kept = self._keeping(self._new_prefix(f"{url}/kept/{self._tenant}"))
        return SharedBucketEndpoint(self._farm, kept, self._bucket(once), sizes, self._uses)


def notes_of_machines(home: Path, site: str) -> Path:
    """Returns the folder with the notes on the buckets of a site with rented machines."""
    return home / "buckets" / site


def no_secrets(name: str) -> str:
    """Raise NotFoundError, because this program has no secrets."""
    raise NotFoundError(f"the secret {name!r} is not available here")


def check(site: Site) -> float:
    """Checks the settings. Returns for how many seconds the chunks in buckets are stored. Raises InputError
    if a setting is invalid."""
    for staging in (Staging.EXPORT, Staging.SHARED):
        if staging in site.settings:
            check_bucket(site.settings[staging], f"site {site.name}: settings.{staging}")
    endpoint = site.settings.get("endpoint", "https://")
    if not endpoint.startswith(("http://", "https://")) or "@" in endpoint:
        raise InputError(
            f"{endpoint!r} is not the address of a bucket's server",
            hint="Write it as https://HOST:PORT.",
            place=f"site {site.name}: settings.endpoint",
        )
    for name in (name for names in CREDENTIALS.values() for name in names):
        check_credential(name, site.settings.get(name), f"site {site.name}: settings.{name}")
    try:
        return parse_seconds(site.settings.get("keep", _KEEP))
    except InputError as error:
        raise InputError(error.message, hint=error.hint, place=f"site {site.name}: settings.keep") from error


def bucket_of(site: Site, staging: Staging) -> str:
    """Returns the address of the site's bucket without a `/` at its end. Raises InputError if the site has
    no bucket for this staging."""
    url = site.settings.get(staging)
    if not url:
        raise TransferRefusedError(
            f"site {site.name} has no bucket for `staging: {staging}`",
            hint=f"Set one: `gridmill configure site {site.name} --{staging} s3://BUCKET/PREFIX`.",
        )
    return url.rstrip("/")
