"""Carriers between home and a farm: its controller itself, or a bucket that both sides reach."""

import logging
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gridmill.errors import GridmillError, InputError
from gridmill.model.site import Site
from gridmill.model.staging import Staging
from gridmill.sites.cluster.farm import Farm
from gridmill.staging.carry import Carrier
from gridmill.staging.export import Export, Owned, sweep
from gridmill.staging.parcels import check_bucket

SETTINGS = {
    "export": "the bucket by which resources with `staging: export` go, as s3://BUCKET/PREFIX",
    "endpoint": "where the bucket's server is, as http://10.0.0.5:9000 (default: the cloud's own)",
}
STALE_SECONDS = 3600.0
"""What was put into the bucket so long ago, for one use, is removed: that use has failed."""
_SWEEP_SECONDS = 1800.0
_LOG = logging.getLogger(__name__)


class Carriers:
    """Safe to use from several threads."""

    def __init__(self, farm: Farm, site: Site, source: str) -> None:
        """`source` is how the farm calls this home: below PREFIX/SOURCE/SITE all that lies there is ours.
        Raises InputError for settings that cannot be."""
        self._farm, self._site, self._source = farm, site, source
        self._lock = threading.Lock()
        self._opened: dict[str, Owned] = {}
        self._over = threading.Event()
        check(site)

    def carrier(self, staging: Staging, sizes: Mapping[str, int]) -> Carrier:
        """To the farm and from it; `sizes` (bytes) are those of all chunks that will travel. Raises
        InputError where there is no bucket."""
        if staging == Staging.DIRECT:
            return self._farm
        return Export(self._farm, self._bucket(bucket_of(self._site, staging)), sizes)

    def _bucket(self, url: str) -> Owned:
        if find_spec("obstore") is None:
            raise InputError(
                "buckets are spoken to by the package `obstore`, which is not here",
                hint="pip install 'gridmill[objects]' at home",
                place=f"site {self._site.name}",
            )
        mine = f"{url.rstrip('/')}/{self._source}/{self._site.name}"
        with self._lock:
            if mine not in self._opened:
                opened: Any = import_module("gridmill.staging.objects").Objects
                self._opened[mine] = opened(mine, self._options())
            return self._opened[mine]

    def _options(self) -> dict[str, str]:
        endpoint = self._site.settings.get("endpoint")
        return {"endpoint": endpoint} if endpoint else {}

    def start(self) -> None:
        """Sweep, now and from time to time."""
        if self._site.settings.get("export"):
            threading.Thread(target=self._run, name="gridmill-sweeper", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                self.sweep(datetime.now(UTC) - timedelta(seconds=STALE_SECONDS))
            except GridmillError as error:
                _LOG.info("bucket_not_swept site=%s reason=%s", self._site.name, error)
            if self._over.wait(_SWEEP_SECONDS):
                return

    def sweep(self, before: datetime) -> None:
        """Remove what was put before that moment, for one use. Raises InputError, UnavailableError."""
        sweep(self._bucket(bucket_of(self._site, Staging.EXPORT)), before)

    def close(self) -> None:
        """Sweep no more. May be repeated."""
        self._over.set()


def check(site: Site) -> None:
    """Raises InputError, at the setting."""
    if "export" in site.settings:
        check_bucket(site.settings["export"], f"site {site.name}: settings.export")
    endpoint = site.settings.get("endpoint", "https://")
    if not endpoint.startswith(("http://", "https://")):
        raise InputError(
            f"{endpoint!r} is no address of a bucket's server",
            hint="Write it as https://HOST:PORT.",
            place=f"site {site.name}: settings.endpoint",
        )


def bucket_of(site: Site, staging: Staging) -> str:
    """Raises InputError where the site has none."""
    url = site.settings.get(staging)
    if not url:
        raise InputError(
            f"the cluster {site.name} has no bucket for `staging: {staging}`",
            hint=f"`gridmill configure site {site.name} --{staging} s3://BUCKET/PREFIX` says one.",
        )
    return url
