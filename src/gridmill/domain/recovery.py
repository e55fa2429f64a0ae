"""The files beside the store from which lost records are restored, and the report of a recovery."""

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
"""Records of users that cannot be derived from others: each has a copy in a file below the storage root."""
DECLARED: Mapping[str, type[Declared]] = {
    kind.__name__: kind for kind in (Site, Resource, Project, Pipeline, Schedule, Alterations, Origin)
}


def as_declared(noun: object) -> Declared | None:
    """The part of a record that a user declared, without measurements and events; None for records that
    users do not declare."""
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
    """A site as it was added, without observations."""
    return Site(
        name=site.name,
        kind=site.kind,
        cpu_share=site.cpu_share,
        address=site.address,
        settings=site.settings,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RootRecords:
    """What was read below a storage root and a home.

    `mark` is that of the store that owns the pipelines here; `manifests` are those of their versions, by name
    and number; `moves` those of aliases, by name and time; `declared` the copies of what users declared.
    `runs` and `deployments` are the highest numbers that left something, by name. `problems` are files that
    cannot be read, and versions without files: what, and why.
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
    """What `gridmill recover` did, or with `dry_run` would do.

    `found` says in which state the store was, `kept_at` where it is kept if another one took its place.
    `salvaged` counts records that were read from it, by class. `restored` are the records made from the
    storage root (`version weather/model@3`), `present` counts those that were there. `problems` are what
    could not be restored, each with the reason; `lost` what nothing has but a store.
    """

    dry_run: bool
    found: str
    kept_at: str = ""
    salvaged: Mapping[str, int] = field(default_factory=dict)
    restored: tuple[str, ...] = ()
    present: int = 0
    problems: tuple[tuple[str, str], ...] = ()
    lost: tuple[str, ...] = ()
