"""This module has the retention of versions and runs, declared for a job or for all jobs, and selects the
versions to delete."""

from collections.abc import Mapping, Sequence

from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError

DAY_SECONDS = 86_400.0

RUNS_KEPT = 10
"""This number of the newest runs of each pipeline is always kept, because the last declaration of each job
is in these runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The limits of the number and the age of the versions of a job that are kept. A version is deleted if
    it exceeds all limits that are set: it is not among the newest `versions`, and it is older than `days`.
    The newest version, versions with an alias, the best version, and the inputs of kept versions are kept
    whatever their age is. All versions of a sink share one table. If a version is deleted, a later load
    deletes the rows that only this version had."""

    versions: int | None = None
    days: float | None = None

    def check(self) -> None:
        """Raise InputError if the limits would keep no version."""
        if self.versions is None and self.days is None:
            raise InputError("set `versions` or `days`", place="retain")
        if (self.versions is not None and self.versions < 1) or (self.days is not None and self.days <= 0):
            raise InputError("`versions` must be 1 or more, and `days` more than 0", place="retain")


def beyond(
    versions: Sequence[Artifact], wanted: Mapping[str, Retention], now: float, stay: frozenset[str]
) -> tuple[Artifact, ...]:
    """Return the versions that may be deleted, out of all existing versions (newest first for each name).

    `wanted` has the retention of each name. `stay` has the ids of versions that must not be deleted.
    """
    going: dict[str, Artifact] = {}
    while True:
        used = {source for one in versions if one.id not in going for source in one.made_from}
        more = [
            one
            for one in _old(versions, wanted, now)
            if one.id not in going and one.id not in used and one.id not in stay
        ]
        if not more:
            return tuple(going.values())
        going.update((one.id, one) for one in more)


def _old(versions: Sequence[Artifact], wanted: Mapping[str, Retention], now: float) -> list[Artifact]:
    places: dict[str, int] = {}
    old: list[Artifact] = []
    for version in versions:
        place = places[version.name] = places.get(version.name, -1) + 1
        limits = wanted.get(version.name)
        if limits is None or place == 0:
            continue
        few = limits.versions is None or place >= limits.versions
        if few and (limits.days is None or now - version.created > limits.days * DAY_SECONDS):
            old.append(version)
    return old
