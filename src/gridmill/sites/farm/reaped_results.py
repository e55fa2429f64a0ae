"""Finds and deletes the results that rented machines exported to a bucket, by the names of their objects."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gridmill.domain.machine import Leftover
from gridmill.domain.reaping import RESULTS
from gridmill.errors import RefusedError
from gridmill.transfer.errors import TransferRefusedError

if TYPE_CHECKING:
    from gridmill.transfer.bucket import BucketClient

_NAME = re.compile(r"(?P<place>[^/]+/[^/]+/results/(?P<owner>[^/]+)/(?P<lease>[^/]+))/[0-9a-f]{32}/.+")
"""HOME/SITE/results/GRID/LEASE/RESULT/OBJECT."""


class ResultObjects:
    """The exported results below a prefix of a bucket. All methods raise UnavailableError."""

    def __init__(self, bucket: "BucketClient") -> None:
        self._bucket = bucket

    def leftovers(self) -> tuple[Leftover, ...]:
        """Returns one leftover for all objects of a lease. The time of its creation is the time of its newest
        object. Raises TransferRefusedError."""
        newest: dict[str, tuple[re.Match[str], float]] = {}
        for name, written in self._bucket.times():
            match = _NAME.fullmatch(name)
            if match is not None:
                _, before = newest.get(match["place"], (match, written))
                newest[match["place"]] = match, max(before, written)
        return tuple(
            Leftover(
                kind=RESULTS,
                id=place,
                region=self._bucket.url,
                lease=match["lease"],
                owner=match["owner"],
                created=written,
            )
            for place, (match, written) in sorted(newest.items())
        )

    def delete(self, leftover: Leftover) -> None:
        """Deletes the objects of a lease. May be repeated. Raises RefusedError if the bucket refuses it."""
        try:
            for name in [name for page in self._bucket.names(leftover.id) for name in page]:
                self._bucket.remove(name)
        except TransferRefusedError as error:
            raise RefusedError(error.message, hint=error.hint, place=error.place) from error


def open_results(url: str, options: Mapping[str, str]) -> ResultObjects:
    """Opens the results below the URL with the credentials in the environment. Raises TransferRefusedError if
    the package is missing, and InputError if the URL is not valid."""
    if find_spec("obstore") is None:
        raise TransferRefusedError(
            "buckets need the package `obstore`, which is not installed",
            hint="pip install 'gridmill[objects]'",
            place=url,
        )
    from gridmill.transfer.bucket import BucketClient

    return ResultObjects(BucketClient(url.rstrip("/"), options))
