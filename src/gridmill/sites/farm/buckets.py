"""Selects the carrier between home and a farm: its controller, or a bucket that both sides reach."""

import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gridmill.domain.amounts import parse_seconds
from gridmill.domain.route import Staging
from gridmill.domain.site import Site
from gridmill.errors import InputError, UnavailableError
from gridmill.sites.farm.bucket_gc import HOLDS, LIVE, Lot, Lots, Sweeper
from gridmill.sites.farm.client import Farm
from gridmill.transfer.bucket_cache import Kept, Shared
from gridmill.transfer.bucket_exchange import Export, Uses
from gridmill.transfer.engine import Carrier
from gridmill.transfer.errors import RefusedError
from gridmill.transfer.signed_urls import check_bucket

if TYPE_CHECKING:
    from gridmill.transfer.bucket import Objects

SETTINGS = {
    "export": "the bucket by which resources with `staging: export` go, as s3://BUCKET/PREFIX",
    "shared": "the bucket in which what went to farms is kept, for resources with `staging: shared`",
    "keep": "how long what was put there is kept (30d)",
    "endpoint": "where the bucket's server is, as http://10.0.0.5:9000 (default: the cloud's own)",
}
_KEEP = "30d"


class Carriers:
    """Safe to use from several threads. All is this home's that lies below PREFIX/SOURCE/SITE, for one use,
    and below PREFIX/kept/SOURCE."""

    def __init__(self, farm: Farm, site: Site, source: str, folder: Path) -> None:
        """`source` is how the farm calls this home; in `folder` is noted which buckets were used. Raises
        InputError for settings that cannot be."""
        self._farm, self._site, self._source, self._folder = farm, site, source, folder
        self._lock = threading.Lock()
        self._opened: dict[tuple[str, str], Objects] = {}
        self._kept: dict[tuple[str, str], Kept] = {}
        self._held: set[Lot] = set()
        self._over = False
        self._uses, self._lots = Uses(), Lots(folder / "lots")
        LIVE.add(self._uses.folder)
        self.sweeper = Sweeper(
            site.name, self._lots, self._uses, (self._bucket, self._keeping), folder / "swept", check(site)
        )

    def carrier(self, staging: Staging, sizes: Mapping[str, int]) -> Carrier:
        """To the farm and from it; `sizes` (bytes) are those of all chunks that will travel. Raises
        InputError where there is no bucket, StorageError, UnavailableError while a bucket is cleared, and
        once nothing more is kept in one by this."""
        if staging == Staging.DIRECT:
            return self._farm
        url = bucket_of(self._site, staging)
        once = self._begun(f"{url}/{self._source}/{self._site.name}", self._uses.folder)
        if staging == Staging.EXPORT:
            return Export(self._farm, self._bucket(once), sizes, self._uses)
        kept = self._keeping(self._begun(f"{url}/kept/{self._source}"))
        return Shared(self._farm, kept, self._bucket(once), sizes, self._uses)

    def _begun(self, url: str, folder: str = "") -> Lot:
        lot = Lot(url=url, endpoint=self._site.settings.get("endpoint", ""), folder=folder)
        self._bucket(lot)  # what cannot be opened is not noted
        if not folder:
            self._hold(lot)
        self._lots.begin(lot)
        return lot

    def _hold(self, lot: Lot) -> None:
        with self._lock:
            if self._over:  # nobody would release it
                raise UnavailableError(
                    f"the cluster {self._site.name} was changed or removed meanwhile",
                    hint="If it is still there it goes on by itself.",
                    place=lot.url,
                )
            if lot not in self._held:
                HOLDS.hold(lot)
                self._held.add(lot)

    def _release(self) -> None:
        """All, for good."""
        with self._lock:
            self._over = True
            while self._held:
                HOLDS.release(self._held.pop())

    def _keeping(self, lot: Lot) -> Kept:
        bucket = self._bucket(lot)
        with self._lock:
            return self._kept.setdefault((lot.url, lot.endpoint), Kept(bucket))

    def _bucket(self, lot: Lot) -> "Objects":
        if find_spec("obstore") is None:
            raise RefusedError(
                "buckets are spoken to by the package `obstore`, which is not here",
                hint="pip install 'gridmill[objects]' at home",
                place=f"site {self._site.name}",
            )
        key = lot.url, lot.endpoint
        with self._lock:
            if key not in self._opened:
                from gridmill.transfer.bucket import Objects

                self._opened[key] = Objects(lot.url, {"endpoint": lot.endpoint} if lot.endpoint else {})
            return self._opened[key]

    def start(self) -> None:
        """Sweep, now and from time to time."""
        self.sweeper.start()

    def clear(self) -> None:
        """The site was removed: what was put for it goes, but what other sites of this home have put in the
        same place to be kept."""
        self._release()
        others = (folder for folder in self._folder.parent.glob("*/lots") if folder.parent != self._folder)
        self.sweeper.clear([lot for folder in others for lot in Lots(folder).all()])

    def close(self) -> None:
        """Carry and sweep no more: what was put for one use is anybody's to remove. May be repeated."""
        LIVE.discard(self._uses.folder)
        self._release()
        self.sweeper.close()


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
        raise RefusedError(
            f"the cluster {site.name} has no bucket for `staging: {staging}`",
            hint=f"`gridmill configure site {site.name} --{staging} s3://BUCKET/PREFIX` says one.",
        )
    return url.rstrip("/")
