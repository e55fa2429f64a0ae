"""The farm's state: its records, its certificate authority, and the sandboxes of its tenants."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path

from gridmill.domain.frozen import dataclass
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.farm.certificates import Authority
from gridmill.farm.deployment import Lodging
from gridmill.farm.files import Carried
from gridmill.farm.store import Records
from gridmill.farm.tenant import Source, authorised, stranger
from gridmill.farm.tenant_sandbox import Quarters, open_quarters
from gridmill.settings import Settings
from gridmill.version import __version__


@dataclass(slots=True, kw_only=True)
class Farm:
    """Safe to use from several threads. `place` is where pods are brought up; `one_user` why its
    jobs have no Unix users of their own (empty: they have); `heard` when (Unix time) each
    source was heard of last; `wake` makes the keeper look at once."""

    settings: Settings
    records: Records
    authority: Authority
    place: Site
    quota_bytes: int = 0
    one_user: str = ""
    version: str = __version__
    now: Callable[[], float] = time.time
    wake: Callable[[], None] = lambda: None
    heard: dict[str, float] = field(default_factory=dict)
    quarters: dict[str, Quarters] = field(default_factory=dict)
    opening: threading.Lock = field(default_factory=threading.Lock)

    def authorise(self, certificate: str, token: str) -> Source | None:
        """Who that is."""
        return authorised(self.records.all(Source), certificate, token)

    def hear(self, source: Source) -> None:
        """It has asked for something that it may ask for: its leases are renewed."""
        self.heard[source.name] = self.now()

    def quarters_of(self, source: Source) -> Quarters:
        """Opened when they are first asked for. Raises UnavailableError, StorageError, InputError where that
        is no source any more."""
        with self.opening:
            self.check(source)
            return self._opened(source)

    def left_by(self, source: Source) -> Quarters:
        """Of one that is revoked. Raises UnavailableError, StorageError, InputError."""
        with self.opening:
            return self._opened(source)

    def check(self, source: Source) -> None:
        """What was let in a while ago may not be let in any more: then it raises InputError."""
        known = self.records.find(Source, source.name)
        if known is None or known.revoked or known.certificate != source.certificate:
            raise stranger()

    def _opened(self, source: Source) -> Quarters:
        found = self.quarters.get(source.name)
        if found is None:
            carry = partial(self._carry, source)
            found = open_quarters(self.settings, source.name, source.user, self.place, carry)
            self.quarters[source.name] = found
        return found

    def _carry(self, source: Source, root: Path, folder: Path) -> Carried:
        return Carried(
            source.name,
            root,
            folder,
            self.quota_bytes,
            source.user,
            records=self.records,
            now=self.now,
            bucket_hosts=self.settings.bucket_hosts,
        )

    def nodes(self) -> tuple[Node, ...]:
        """What the farm has, as far as any source has been here."""
        return next((one.site.nodes() for one in tuple(self.quarters.values())), ())

    def lodgings(self, source: Source) -> Sequence[Lodging]:
        """Those of one source."""
        return [one for one in self.records.all(Lodging) if one.source == source.name]

    @property
    def shares_nodes(self) -> bool:
        """Whether who has which GPUs of a node is ours to say: a cluster's own queue says it itself."""
        return self.place.kind == SiteKind.LOCAL

    def close(self) -> None:
        """Pods go on."""
        for quarters in tuple(self.quarters.values()):
            quarters.close()
        self.records.close()
