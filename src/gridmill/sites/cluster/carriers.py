"""Carriers between home and a farm: its controller itself, or a bucket that both sides reach."""

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridmill.errors import GridmillError, InputError
from gridmill.model.amounts import parse_seconds
from gridmill.model.site import Site
from gridmill.model.staging import Staging
from gridmill.sites.cluster.farm import Farm
from gridmill.staging.carry import Carrier
from gridmill.staging.export import Export, sweep
from gridmill.staging.kept import Kept, Shared
from gridmill.staging.parcels import check_bucket

if TYPE_CHECKING:
    from gridmill.staging.objects import Objects

SETTINGS = {
    "export": "the bucket by which resources with `staging: export` go, as s3://BUCKET/PREFIX",
    "shared": "the bucket in which what went to farms is kept, for resources with `staging: shared`",
    "keep": "how long what was put there is kept (30d)",
    "endpoint": "where the bucket's server is, as http://10.0.0.5:9000 (default: the cloud's own)",
}
STALE_SECONDS = 3600.0
"""What was put into the bucket so long ago, for one use, is removed: that use has failed."""
_SWEEP_SECONDS, _LOOK_SECONDS = 1800.0, 60.0
_KEEP = "30d"
_LOG = logging.getLogger(__name__)


class Carriers:
    """Safe to use from several threads. All is this home's that lies below PREFIX/SOURCE/SITE, for one use,
    and below PREFIX/kept/SOURCE."""

    def __init__(self, farm: Farm, site: Site, source: str, swept: Path) -> None:
        """`source` is how the farm calls this home; `swept` is a file whose time tells when its buckets were
        swept last. Raises InputError for settings that cannot be."""
        self._farm, self._site, self._source, self._swept = farm, site, source, swept
        self._lock = threading.Lock()
        self._opened: dict[str, Objects] = {}
        self._kept: dict[str, Kept] = {}
        self._over = threading.Event()
        self._keep_seconds = check(site)

    def carrier(self, staging: Staging, sizes: Mapping[str, int]) -> Carrier:
        """To the farm and from it; `sizes` (bytes) are those of all chunks that will travel. Raises
        InputError where there is no bucket."""
        if staging == Staging.DIRECT:
            return self._farm
        url = bucket_of(self._site, staging)
        once = self._bucket(f"{url}/{self._source}/{self._site.name}")
        if staging == Staging.EXPORT:
            return Export(self._farm, once, sizes)
        return Shared(self._farm, self._keeping(url), once, sizes)

    def _keeping(self, url: str) -> Kept:
        bucket = self._bucket(f"{url}/kept/{self._source}")
        with self._lock:
            return self._kept.setdefault(url, Kept(bucket))

    def _bucket(self, url: str) -> "Objects":
        if find_spec("obstore") is None:
            raise InputError(
                "buckets are spoken to by the package `obstore`, which is not here",
                hint="pip install 'gridmill[objects]' at home",
                place=f"site {self._site.name}",
            )
        with self._lock:
            if url not in self._opened:
                opened: Any = import_module("gridmill.staging.objects").Objects
                self._opened[url] = opened(url, self._options())
            return self._opened[url]

    def _options(self) -> dict[str, str]:
        endpoint = self._site.settings.get("endpoint")
        return {"endpoint": endpoint} if endpoint else {}

    def start(self) -> None:
        """Sweep, now and from time to time."""
        if {Staging.EXPORT, Staging.SHARED} & set(self._site.settings):
            threading.Thread(target=self._run, name="gridmill-sweeper", daemon=True).start()

    def _run(self) -> None:
        while not self._over.wait(max(0.0, self._age() + _SWEEP_SECONDS - time.time())):
            try:
                self.sweep(datetime.now(UTC))
            except GridmillError as error:
                _LOG.info("bucket_not_swept site=%s reason=%s", self._site.name, error)
            with suppress(OSError):
                self._swept.touch()
            if self._over.wait(_LOOK_SECONDS):
                return

    def _age(self) -> float:
        try:
            return self._swept.stat().st_mtime
        except OSError:
            return 0.0

    def sweep(self, now: datetime) -> None:
        """Remove what was put for one use and is still there, and what was kept for long enough. Raises
        InputError, UnavailableError."""
        for staging in (Staging.EXPORT, Staging.SHARED):
            if staging in self._site.settings:
                url = bucket_of(self._site, staging)
                once = self._bucket(f"{url}/{self._source}/{self._site.name}")
                sweep(once, now - timedelta(seconds=STALE_SECONDS))
        if Staging.SHARED in self._site.settings:
            self._keeping(bucket_of(self._site, Staging.SHARED)).clear(
                now - timedelta(seconds=self._keep_seconds)
            )

    def close(self) -> None:
        """Sweep no more. May be repeated."""
        self._over.set()


def check(site: Site) -> float:
    """For how many seconds chunks are kept. Raises InputError, at the setting that cannot be."""
    for staging in (Staging.EXPORT, Staging.SHARED):
        if staging in site.settings:
            check_bucket(site.settings[staging], f"site {site.name}: settings.{staging}")
    endpoint = site.settings.get("endpoint", "https://")
    if not endpoint.startswith(("http://", "https://")) or "@" in endpoint:
        raise InputError(
            f"{endpoint!r} is no address of a bucket's server",
            hint="Write it as https://HOST:PORT.",
            place=f"site {site.name}: settings.endpoint",
        )
    try:
        return parse_seconds(site.settings.get("keep", _KEEP))
    except InputError as error:
        raise InputError(error.message, hint=error.hint, place=f"site {site.name}: settings.keep") from error


def bucket_of(site: Site, staging: Staging) -> str:
    """Without a `/` at its end. Raises InputError where the site has none."""
    url = site.settings.get(staging)
    if not url:
        raise InputError(
            f"the cluster {site.name} has no bucket for `staging: {staging}`",
            hint=f"`gridmill configure site {site.name} --{staging} s3://BUCKET/PREFIX` says one.",
        )
    return url.rstrip("/")
