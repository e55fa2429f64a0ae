"""This module decides which records are restored from a storage root because the store lacks them.

Records in the store are never replaced, so a recovery may be repeated.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter

from gridmill.control.counters import FLOOR
from gridmill.domain.artifact import LATEST, Alias, Artifact, Latest
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.provenance import Provenance
from gridmill.domain.recovery import Declared, RootRecords
from gridmill.domain.schedule import Schedule
from gridmill.domain.site import LOCAL, Site, SiteKind
from gridmill.domain.version_manifest import AliasMove
from gridmill.ports.store import Noun, Store, key_of

LOST = (
    "runs with their jobs and attempts: `gridmill list runs` is empty",
    "measurements of jobs: the next runs estimate sizes again",
    "unfinished backfills: start them again; unchanged chunks are not repeated",
    "the usage of each project, which decides when the project gets resources",
)
"""The information that exists only in the store."""
_STEP = 1000
_BEST = "best by "


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """The records that are missing in a store and can be restored, each with a text for users. A
    `Restoration` also has the number of records that the store already has, and the records that cannot be
    restored."""

    nouns: tuple[Noun, ...]
    names: tuple[str, ...]
    present: int
    problems: tuple[tuple[str, str], ...]


def restoration(found: RootRecords, store: Store, now: float) -> Restoration:
    """Return the records that must be added to the store."""
    versions = {one.version.id: one.version for one in found.manifests}
    problems = [*found.problems]
    wanted: list[Noun] = [*versions.values()]
    wanted += [one.provenance for one in found.manifests if one.provenance is not None]
    for moves in _by_name(found.moves).values():
        wanted += _aliases(moves, versions, problems)
    wanted += _latest(found, versions.values())
    wanted += [_declared(one, now) for one in found.declared]
    if found.mark:
        wanted.append(Site(name=LOCAL, kind=SiteKind.LOCAL, settings={"store": found.mark}))
    # a key can occur several times, and its last provenance is the valid one
    newest = {(type(noun), key_of(noun)): noun for noun in wanted}
    lacking = [noun for noun in newest.values() if store.get(type(noun), key_of(noun)) is None]
    told = [noun for noun in newest.values() if _is_told(noun)]
    return Restoration(
        nouns=tuple(lacking),
        names=tuple(_name(noun) for noun in lacking if _is_told(noun)),
        present=len(told) - sum(map(_is_told, lacking)),
        problems=tuple(problems),
    )


def numbers(found: RootRecords, *, forgotten: bool) -> Mapping[str, int]:
    """Return the highest number that is used for each kind of id. If `forgotten` is true, the store has lost
    its highest numbers, and some of these numbers may not be found in files either. New numbers therefore
    begin at the next thousand."""
    used: dict[str, int] = {**found.deployments, **found.runs}
    for manifest in found.manifests:
        pipeline, _, number = manifest.version.run_id.rpartition("-")
        if number.isdecimal():
            used[pipeline] = max(int(number), used.get(pipeline, 0))
    if forgotten:
        used[FLOOR] = (max(used.values(), default=0) // _STEP + 1) * _STEP
    return used


def _by_name(moves: Iterable[AliasMove]) -> Mapping[str, Sequence[AliasMove]]:
    by_name = attrgetter("name")
    return {name: tuple(some) for name, some in groupby(sorted(moves, key=by_name), key=by_name)}


def _aliases(
    moves: Sequence[AliasMove], versions: Mapping[str, Artifact], problems: list[tuple[str, str]]
) -> Iterator[Alias]:
    """Return the aliases of one name as they were after the last recorded move of each alias."""
    last = {move.alias: move for move in moves}
    for alias, move in last.items():
        if alias == LATEST or not move.after:
            continue
        kept = Alias(id=f"{move.name}@{alias}", name=move.name, alias=alias, changed=move.time)
        if move.after.startswith(_BEST):
            yield replace(kept, metric=move.after.removeprefix(_BEST))
        elif move.after in versions:
            yield replace(kept, number=versions[move.after].number)
        else:
            problems.append((f"alias {kept.id}", f"the alias named {move.after}, which does not exist"))


def _latest(found: RootRecords, versions: Iterable[Artifact]) -> Iterator[Latest]:
    """Return the latest version of each name: the target of the last move of `latest` if it exists,
    otherwise the version with the highest number. Any later run replaces this restored version as the latest
    version."""
    highest: dict[str, Artifact] = {}
    for version in versions:
        before = highest.get(version.name)
        highest[version.name] = version if before is None else max(before, version, key=attrgetter("number"))
    moved = {move.name: move.after for move in found.moves if move.alias == LATEST}
    ids = {one.version.id: one.version for one in found.manifests}
    for name, version in highest.items():
        latest = ids.get(moved.get(name, ""), version)
        yield Latest(name=name, artifact=latest.id, run=latest.run_id, order=0)


def _declared(noun: Declared, now: float) -> Declared:
    """Return the schedule as restored, without due times before now. Missed runs of the schedule are not
    repeated."""
    return replace(noun, done=now, message="restored") if isinstance(noun, Schedule) else noun


def _is_told(noun: Noun) -> bool:
    return not isinstance(noun, Provenance | Latest) and not (isinstance(noun, Site) and noun.name == LOCAL)


def _name(noun: Noun) -> str:
    kind = "version" if isinstance(noun, Artifact) else type(noun).__name__.lower()
    return f"{kind} {key_of(noun)}"
