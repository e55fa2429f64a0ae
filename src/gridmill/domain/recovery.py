"""This module has the files outside the store from which lost records are restored, and the report of a
recovery."""

from collections.abc import Mapping
from dataclasses import field

from gridmill.domain.frozen import dataclass
from gridmill.domain.pipeline import Origin, Pipeline
from gridmill.domain.project import Project
from gridmill.domain.resource import Resource
from gridmill.domain.schedule import Schedule
from gridmill.domain.sink_overrides import Alterations
from gridmill.domain.site import LOCAL, Site
from gridmill.domain.version_manifest import AliasMove, VersionManifest

Declared = Site | Resource | Project | Pipeline | Schedule | Alterations | Origin
"""The records of users that cannot be derived from other records, and that therefore have a copy in a file
below the storage root."""
DECLARED: Mapping[str, type[Declared]] = {
    kind.__name__: kind for kind in (Site, Resource, Project, Pipeline, Schedule, Alterations, Origin)
}


def as_declared(noun: object) -> Declared | None:
    """Return the part of a record that a user declared, without measurements and events. The result is None
    for records that users do not declare."""
    match noun:
        case Site():
            return _added(noun) if noun.name != LOCAL else None
        case Resource():
            return noun if not noun.default else None
        case Project():
            return Project(
                name=noun.name,
                share=noun.share,
                cpus=noun.cpus,
                memory_bytes=noun.memory_bytes,
                gpus=noun.gpus,
            )
        case Schedule():
            return Schedule(name=noun.name, spec=noun.spec, since=noun.since, paused=noun.paused)
        case Pipeline() | Alterations() | Origin():
            return noun
    return None


def _added(site: Site) -> Site:
    """Return a site as the user added it, without the observations of the site."""
    return Site(
        name=site.name,
        kind=site.kind,
        cpu_share=site.cpu_share,
        address=site.address,
        settings=site.settings,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RootRecords:
    """The records that were read from the files below a storage root and in a home.

    `mark` identifies the store that owns the pipelines below this storage root. `manifests` are the
    manifests of the versions of these pipelines, by name and number. `moves` are the moves of aliases, by
    name and time. `declared` are the copies of the records that users declared. `runs` and `deployments`
    have, by name, the highest number of a run or deployment that left files. `problems` are unreadable
    files, and versions without files, each with the reason.
    """

    mark: str = ""
    manifests: tuple[VersionManifest, ...] = ()
    moves: tuple[AliasMove, ...] = ()
    declared: tuple[Declared, ...] = ()
    runs: Mapping[str, int] = field(default_factory=dict)
    deployments: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """The report of the actions of `gridmill recover`. With `dry_run`, it is the report of the actions that
    the command would take.

    `found` describes the state of the store before the recovery. `kept_at` is the path to which the old
    store was moved if a new store replaced it. `salvaged` has the number of records that were read from the
    old store, by class. `restored` are the records that were made from the storage root (`version
    weather/model@3`), and `present` is the number of records that already existed. `problems` are the
    records that could not be restored, each with the reason. `lost` are the records that cannot be restored
    because they exist only in a store.
    """

    dry_run: bool
    found: str
    kept_at: str = ""
    salvaged: Mapping[str, int] = field(default_factory=dict)
    restored: tuple[str, ...] = ()
    present: int = 0
    problems: tuple[tuple[str, str], ...] = ()
    lost: tuple[str, ...] = ()
