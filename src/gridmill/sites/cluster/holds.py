"""Where in buckets ports of this process keep chunks: what a removed site kept goes only where no other port
keeps some, and none begins to until it is gone."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gridmill.errors import UnavailableError
from gridmill.sites.cluster.lots import Lot


class Holds:
    """Safe to use from several threads."""

    def __init__(self) -> None:
        self._held: Counter[Lot] = Counter()
        self._clearing: set[Lot] = set()
        self._lock = threading.Lock()

    def hold(self, lot: Lot) -> None:
        """Something is kept there from now on. Raises UnavailableError while what was there goes."""
        with self._lock:
            if lot in self._clearing:
                raise UnavailableError(
                    "what a site that was removed kept there is being removed",
                    hint="It goes on by itself once that is done.",
                    place=lot.url,
                )
            self._held[lot] += 1

    def release(self, lot: Lot) -> None:
        """Whoever has held it keeps nothing there any more."""
        with self._lock:
            self._held[lot] -= 1

    @contextmanager
    def clearing(self, lot: Lot) -> Iterator[bool]:
        """Whether all that is there may go: then nobody holds it inside."""
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


HOLDS = Holds()
"""Of this process."""
