"""The use cases of a grid in memory that do not concern runs: sites, schedules, backfills, versions, rented
machines, projects, and alterations of sinks.

Every site has one node, and no pods start. Schedules are stored, but they never start runs. Backfills are
stored, but they never start runs. Alterations and load tasks of sinks are stored, but not executed. Projects
use no resources.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TypeVar

from gridmill.control.steps.stored_pipelines import chunks_of
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.archive import ArchiveResult
from gridmill.domain.artifact import (
    BEST,
    LATEST,
    Alias,
    Artifact,
    ArtifactKind,
    Column,
    best_of,
    check_alias,
    split_reference,
)
from gridmill.domain.backfill import Backfill, BackfillView, Chunk, ChunkState, ChunkView, spans
from gridmill.domain.comparison import (
    ModelComparison,
    Preview,
    VersionDiff,
    check_models,
    differences,
    references_of,
    side_by_side,
)
from gridmill.domain.deployment import Deployment
from gridmill.domain.frozen import dataclass
from gridmill.domain.lease import LeaseState
from gridmill.domain.lease_cost import CostBy, CostRow, LeaseView
from gridmill.domain.machine import Offer
from gridmill.domain.machine_image import ImageOrder, ImageView
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.project import Project, ProjectView
from gridmill.domain.promotion import approved, refused
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.schedule import Schedule
from gridmill.domain.service import ServiceView
from gridmill.domain.sink_overrides import Alterations, SinkChange, with_change
from gridmill.domain.sink_status import LoadTask
from gridmill.domain.site import Node, NodeView, Site, SiteKind
from gridmill.domain.usage import HISTORY_DAYS, DiskUsage, ReclaimableItem
from gridmill.domain.version_manifest import VerificationResult
from gridmill.domain.views import FarmView, RemovalPreview, ScheduleView, VersionView
from gridmill.errors import ConflictError, NotFoundError, StaleVersionError
from gridmill.ports.cloud import AccountCheck
from gridmill.ports.pages import (
    PAGE_ITEMS,
    Page,
    PageRequest,
    cut_page,
    names_of_deployment,
    page_by_names,
    page_of_views,
    page_request,
)

T = TypeVar("T")
HERE = Node(name="here", capacity=Amounts(cpus=2, memory_bytes=8 * GIB))
with_changes = replace  # another name, because some functions have a parameter named `replace`


def page_of_newest(request: PageRequest[int], newest: Sequence[T]) -> Page[T]:
    """Returns a page of a list that only grows and whose newest entry is first. The keys are numbers that
    count from the oldest entry."""
    keyed = zip(range(len(newest) - 1, -1, -1), newest, strict=True)
    return cut_page(request, (one for one in keyed if request.after is None or one[0] < request.after))


def found(table: Mapping[str, T], key: str, what: str) -> T:
    """Returns the entry with this key. Raises NotFoundError."""
    if key not in table:
        raise NotFoundError(f"there is no {what} {key!r}")
    return table[key]


class FakeSites:
    """Implements the methods of `gridmill.ports.grid` for resources and sites, for a class that has these
    tables."""

    _resources: dict[str, Resource]
    _sites: dict[str, Site]
    _deployments: dict[str, Deployment]

    def configure_resource(self, resource: Resource) -> tuple[Resource, Sizing]:
        """See Grid."""
        self._resources[resource.name] = resource
        amounts = Amounts(
            cpus=resource.cpus or 1.0, memory_bytes=resource.memory_bytes or GIB, gpus=resource.gpus
        )
        return resource, Sizing(amounts=amounts, workers=resource.workers or 1, why=("as asked",))

    def resources(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Resource]:
        """See Grid."""
        return page_by_names(
            page_request(tuple, "resources", limit, cursor), self._resources.values(), lambda one: (one.name,)
        )

    def remove_resource(self, name: str) -> None:
        """See Grid."""
        found(self._resources, name, "resource")
        del self._resources[name]

    def sites(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Site]:
        """See Grid."""
        request = page_request(tuple, "sites", limit, cursor)
        return page_by_names(request, self._all_sites(), lambda one: (one.name,))

    def _all_sites(self) -> tuple[Site, ...]:
        return (Site(name="local", kind=SiteKind.LOCAL, nodes=(HERE,)), *self._sites.values())

    def nodes(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[NodeView]:
        """See Grid."""
        nodes = (NodeView(site=site.name, node=HERE, claimed=Amounts()) for site in self._all_sites())
        return page_by_names(page_request(tuple, "nodes", limit, cursor), nodes, lambda one: (one.site,))

    def farms(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[FarmView]:
        """See Grid. No farm answers."""
        clusters = (site for site in self._all_sites() if site.kind == SiteKind.CLUSTER)
        farms = (FarmView(site=site.name, problem="it does not answer") for site in clusters)
        return page_by_names(page_request(tuple, "farms", limit, cursor), farms, lambda one: (one.site,))

    def add_site(self, site: Site, *, replace: bool = False) -> Site:
        """See Grid. Every site of a FakeGrid has one node."""
        known = self._sites.get(site.name)
        seen = with_changes(site, nodes=(HERE,))
        if known not in (None, seen) and not replace:
            raise ConflictError(f"there is a site {site.name!r} with other settings")
        self._sites[site.name] = seen
        return seen

    def remove_site(self, name: str) -> None:
        """See Grid."""
        found(self._sites, name, "site")
        del self._sites[name]

    def deployments(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Deployment]:
        """See Grid."""
        request = page_request(tuple, "deployments", limit, cursor)
        return page_by_names(request, self._deployments.values(), names_of_deployment)

    def release(self, deployment_id: str) -> None:
        """See Grid."""
        self._deployments.pop(deployment_id, None)


@dataclass(slots=True)
class FakeSchedules:
    """Implements `gridmill.ports.grid.Schedules`."""

    _pipelines: dict[str, Pipeline] = field(default_factory=dict)
    _paused: set[str] = field(default_factory=set)

    def schedules(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[ScheduleView]:
        """See Schedules."""
        request = page_request(tuple, "schedules", limit, cursor)
        return page_by_names(request, self._schedules(), lambda one: (one.name,))

    def _schedules(self) -> tuple[ScheduleView, ...]:
        return tuple(
            ScheduleView(
                schedule=Schedule(name=name, spec=spec, since=0.0, paused=name in self._paused),
                why="paused" if name in self._paused else "",
            )
            for pipeline in self._pipelines.values()
            for name, spec in pipeline.schedules.items()
        )

    def schedule(self, name: str) -> ScheduleView:
        """See Schedules."""
        for view in self._schedules():
            if view.name == name:
                return view
        raise NotFoundError(f"there is no schedule {name!r}")

    def pause_schedule(self, name: str) -> ScheduleView:
        """See Schedules."""
        self._paused.add(self.schedule(name).name)
        return self.schedule(name)

    def start_schedule(self, name: str) -> ScheduleView:
        """See Schedules."""
        self._paused.discard(self.schedule(name).name)
        return self.schedule(name)


@dataclass(slots=True)
class FakeBackfills(FakeSchedules):
    """Implements `gridmill.ports.grid.Backfills`."""

    _backfills: dict[str, Backfill] = field(default_factory=dict)

    def backfills(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[BackfillView]:
        """See Backfills."""
        request = page_request(tuple, "backfills", limit, cursor)
        return page_of_views(request, self._backfills, lambda name: (name,), self.backfill)

    def backfill(self, name: str) -> BackfillView:
        """See Backfills."""
        if name not in self._backfills:
            raise NotFoundError(f"there is no backfill {name!r}")
        kept = self._backfills[name]
        chunks = tuple(ChunkView(begins=b, ends=e, state=ChunkState.LEFT) for b, e in spans(kept))
        return BackfillView(backfill=kept, chunks=chunks, counts=dict(Counter(c.state for c in chunks)))

    def start_backfill(self, backfill: Backfill, chunks: tuple[Chunk, ...] = ()) -> BackfillView:
        """See Backfills."""
        spans(backfill)
        self._backfills[backfill.name] = replace(backfill, stopped=False)
        return self.backfill(backfill.name)

    def backfill_pipeline(self, backfill: Backfill, values: Mapping[str, str]) -> BackfillView:
        """See Backfills."""
        if backfill.name not in self._pipelines:
            raise NotFoundError(f"there is no pipeline {backfill.name!r}")
        return self.start_backfill(backfill, chunks_of(self._pipelines[backfill.name], backfill, values))

    def stop_backfill(self, name: str) -> BackfillView:
        """See Backfills."""
        self._backfills[name] = replace(self.backfill(name).backfill, stopped=True)
        return self.backfill(name)


@dataclass(slots=True)
class FakeServices(FakeBackfills):
    """Implements the methods of `gridmill.ports.services.Services` that show services. Services are added to
    `kept_services`."""

    kept_services: tuple[ServiceView, ...] = ()

    def services(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[ServiceView]:
        """See Services."""
        request = page_request(tuple, "services", limit, cursor)
        return page_by_names(request, self.kept_services, lambda one: (one.name,))


@dataclass(slots=True)
class FakeRenting(FakeServices):
    """Implements `gridmill.ports.grid.Renting`, `CloudAccounts` and `MachineImages`. Leases are added to
    `kept_leases`, offers to `kept_offers`, and images to `kept_images`."""

    kept_leases: dict[str, LeaseView] = field(default_factory=dict)
    kept_costs: tuple[CostRow, ...] = ()
    kept_offers: tuple[Offer, ...] = ()
    kept_images: tuple[ImageView, ...] = ()
    kept_check: AccountCheck = AccountCheck(account="123456789012")

    def leases(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[LeaseView]:
        """See Renting."""
        request = page_request(tuple, "leases", limit, cursor)
        return page_by_names(request, self.kept_leases.values(), lambda view: (view.id,))

    def lease(self, lease_id: str) -> LeaseView:
        """See Renting."""
        if lease_id not in self.kept_leases:
            raise NotFoundError(f"there is no lease {lease_id!r}")
        return self.kept_leases[lease_id]

    def stop_lease(self, lease_id: str) -> LeaseView:
        """See Renting."""
        view = self.lease(lease_id)
        stopped = replace(view.lease, state=LeaseState.RELEASING, reason="stopped by a user")
        self.kept_leases[lease_id] = replace(view, lease=stopped)
        return self.kept_leases[lease_id]

    def costs(
        self, *, by: CostBy = CostBy.PROJECT, month: str = "", project: str = "", run: str = "", job: str = ""
    ) -> tuple[CostRow, ...]:
        """See Renting."""
        return self.kept_costs

    def check_account(self, site: Site) -> AccountCheck:
        """See CloudAccounts."""
        return self.kept_check

    def offers(self, *, site: str = "", region: str = "", instance_type: str = "") -> tuple[Offer, ...]:
        """See CloudAccounts."""
        return tuple(
            one
            for one in self.kept_offers
            if one.region.startswith(region) and instance_type in ("", one.instance_type)
        )

    def images(self, *, site: str = "") -> tuple[ImageView, ...]:
        """See MachineImages."""
        return tuple(one for one in self.kept_images if site in ("", one.site))

    def build_image(self, order: ImageOrder) -> LeaseView:
        """See MachineImages. Returns the lease in `kept_leases` that builds the image."""
        for view in self.kept_leases.values():
            if view.lease.image_name == order.name:
                return view
        raise ConflictError(f"the image {order.name!r} exists")

    def remove_image(self, name: str) -> None:
        """See MachineImages."""
        self.kept_images = tuple(one for one in self.kept_images if one.name != name)


@dataclass(slots=True)
class FakeVersions(FakeRenting):
    """Implements `gridmill.ports.grid.Versions` with dicts."""

    calls: list[str] = field(default_factory=list)
    _artifacts: dict[str, Artifact] = field(default_factory=dict)
    _aliases: dict[str, Alias] = field(default_factory=dict)

    def artifacts(
        self,
        *,
        kind: ArtifactKind | None = None,
        name: str | None = None,
        limit: int = PAGE_ITEMS,
        cursor: str | None = None,
    ) -> Page[Artifact]:
        """See Versions."""
        request = page_request(int, "artifacts", limit, cursor, kind, name)
        return page_of_newest(request, self._versions(kind, name))

    def _versions(self, kind: ArtifactKind | None = None, name: str | None = None) -> list[Artifact]:
        """The versions, newest first."""
        newest = reversed(self._artifacts.values())
        return [one for one in newest if kind in (None, one.kind) and name in (None, one.name)]

    def artifact(self, artifact_id: str) -> Artifact:
        """See Versions."""
        name, version = split_reference(artifact_id)
        alias = self._aliases.get(artifact_id)
        artifact: Artifact | None
        if alias is not None and alias.number is not None:
            artifact = self._artifacts.get(f"{name}@{alias.number}")
        elif alias is not None or version == BEST:
            artifact = best_of(self._versions(name=name), alias.metric if alias else "")
        elif version in ("", LATEST):
            artifact = next(iter(self._versions(name=name)), None)
        else:
            artifact = self._artifacts.get(artifact_id)
        if artifact is None:
            raise NotFoundError(f"there is no artifact {artifact_id!r}")
        return artifact

    def version(self, artifact_id: str) -> VersionView:
        """See Versions."""
        return VersionView(artifact=self.artifact(artifact_id))

    def preview(self, artifact_id: str, *, rows: int = 10, rejects: bool = False) -> Preview:
        """See Versions. (The preview has one column of numbers, starting at 0.)"""
        one = self.artifact(artifact_id)
        cells = tuple((number,) for number in range(min(rows, one.output.rows or 0)))
        return Preview(columns=(Column(name="n", type="int64"),), rows=cells, total=one.output.rows or 0)

    def verify(self, reference: str = "") -> tuple[VerificationResult, ...]:
        """See Versions. (All versions are unchanged.)"""
        found = [self.artifact(reference)] if "@" in reference else self._artifacts.values()
        return tuple(VerificationResult(version=one.id) for one in found if one.id.startswith(reference))

    def diff(self, before: str, after: str, *, key: tuple[str, ...] = ()) -> VersionDiff:
        """See Versions. (Rows are not compared.)"""
        old, new = self.artifact(before), self.artifact(after)
        return VersionDiff(before=old.id, after=new.id, differences=tuple(differences(old, new)))

    def compare(self, name: str, versions: tuple[str, ...] = ()) -> ModelComparison:
        """See Versions. (Durations are unknown.)"""
        references = references_of(name, versions) if versions or "@" in name else ()
        found = [self.artifact(one) for one in references] or [*reversed(self._versions(name=name))]
        views = [VersionView(artifact=one) for one in check_models(found, name)]
        return side_by_side(views, {})

    def remove_artifact(
        self, artifact_id: str, *, force: bool = False, dry_run: bool = False
    ) -> RemovalPreview:
        """See Versions. (Removal is never refused.)"""
        name, version = split_reference(artifact_id)
        wanted = [self.artifact(artifact_id)] if version else list(self._versions(name=name))
        if not wanted:
            raise NotFoundError(f"there is no artifact {artifact_id!r}")
        for one in wanted if not dry_run else ():
            del self._artifacts[one.id]
        return RemovalPreview(versions=tuple(one.id for one in wanted))

    def backup(self, pipelines: tuple[str, ...], path: str) -> ArchiveResult:
        """See Projects. (No file is written.)"""
        found = tuple(one.id for one in self._versions() if one.name.partition("/")[0] in pipelines)
        if not found:
            raise NotFoundError("there is nothing of it")
        return ArchiveResult(path=path, versions=found, size_bytes=0)

    def restore(self, path: str) -> ArchiveResult:
        """See Projects. (No file is read.)"""
        return ArchiveResult(path=path, versions=(), size_bytes=0)

    def usage(self) -> tuple[DiskUsage, ...]:
        """See Housekeeping. (Each version uses one byte.)"""
        return tuple(
            DiskUsage(kind=f"{one.kind}s", name=one.output.uri, size_bytes=1, job=one.name, version=one.id)
            for one in self._versions()
        )

    def clean(self, *, days: float = HISTORY_DAYS, dry_run: bool = False) -> tuple[ReclaimableItem, ...]:
        """See Housekeeping. (There is never anything to delete.)"""
        return ()

    def aliases(
        self, *, name: str | None = None, limit: int = PAGE_ITEMS, cursor: str | None = None
    ) -> Page[Alias]:
        """See Versions."""
        found = (alias for alias in self._aliases.values() if name in (None, alias.name))
        return page_by_names(
            page_request(tuple, "aliases", limit, cursor, name), found, lambda one: (one.id,)
        )

    def set_alias(self, alias: Alias, *, expected: int | None = None) -> Alias:
        """See Versions."""
        check_alias(alias)
        self.artifact(alias.name if alias.number is None else f"{alias.name}@{alias.number}")
        before = self._aliases.get(alias.id)
        if expected is not None and (before.number if before else 0) != expected:
            raise StaleVersionError(f"{alias.id} was changed meanwhile")
        self._aliases[alias.id] = replace(alias, changed=1_700_000_000.0)
        return self._aliases[alias.id]

    def promote_alias(self, alias_id: str) -> Alias:
        """See Versions."""
        before = self._known_alias(alias_id)
        promotion = approved(before.promotion, alias_id, before.version, 1_700_000_000.0)
        number = int(split_reference(promotion.measured.candidate)[1])
        self._aliases[alias_id] = replace(before, number=number, promotion=promotion)
        return self._aliases[alias_id]

    def rollback_alias(self, alias_id: str) -> Alias:
        """See Versions."""
        before = self._known_alias(alias_id)
        self._aliases[alias_id] = replace(
            before, promotion=refused(before.promotion, alias_id, 1_700_000_000.0)
        )
        return self._aliases[alias_id]

    def _known_alias(self, alias_id: str) -> Alias:
        if alias_id not in self._aliases:
            raise NotFoundError(f"there is no alias {alias_id!r}")
        return self._aliases[alias_id]

    def remove_alias(self, alias_id: str) -> None:
        """See Versions."""
        self._aliases.pop(alias_id, None)


@dataclass(slots=True)
class FakeAlterations(FakeVersions):
    """Implements `gridmill.ports.grid.Altering` with dicts."""

    _pipelines: dict[str, Pipeline] = field(default_factory=dict)
    _alterations: dict[str, Alterations] = field(default_factory=dict)

    def alterations(
        self, *, name: str | None = None, limit: int = PAGE_ITEMS, cursor: str | None = None
    ) -> Page[Alterations]:
        """See Altering."""
        found = (
            alteration
            for alteration in self._alterations.values()
            if alteration.changes and name in (None, alteration.name)
        )
        return page_by_names(
            page_request(tuple, "alterations", limit, cursor, name), found, lambda one: (one.name,)
        )

    def alter_sink(self, name: str, change: SinkChange) -> Alterations:
        """See Altering."""
        pipeline = self._pipelines.get(name.partition("/")[0])
        jobs = pipeline.jobs if pipeline else ()
        spec = next((job.sink for job in jobs if job.name == name.partition("/")[2]), None)
        if spec is None:
            raise NotFoundError(f"there is no sink {name!r}")
        before = self._alterations.get(name, Alterations(name=name))
        after = replace(before, changes=with_change(spec, before.changes, change), changed=1_700_000_000.0)
        self._alterations[name] = after
        return after

    def load_tasks(
        self, *, name: str | None = None, limit: int = PAGE_ITEMS, cursor: str | None = None
    ) -> Page[LoadTask]:
        """See Altering. Returns the declared load tasks, which are never executed."""
        declared = {
            f"{pipeline.name}/{job.name}": job.sink
            for pipeline in self._pipelines.values()
            for job in pipeline.jobs
        }
        sinks = {key: spec for key, spec in declared.items() if spec is not None and name in (None, key)}
        if name is not None and not sinks:
            raise NotFoundError(f"there is no sink {name!r}")
        tasks = (LoadTask(sink=key, source=spec.source.name) for key, spec in sinks.items())
        return page_by_names(
            page_request(tuple, "load_tasks", limit, cursor, name), tasks, lambda one: (one.sink, one.source)
        )


class FakeSharing:
    """Implements the methods of gridmill.ports.grid for projects, for a class that has `_projects`."""

    _projects: dict[str, ProjectView]

    def configure_project(self, project: Project) -> ProjectView:
        """See Sharing."""
        project.check()
        view = ProjectView(
            project=project, used_seconds=0.0, used_share=0.0, cpus=0.0, memory_bytes=0, gpus=0
        )
        self._projects[project.name] = view
        return view

    def projects(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[ProjectView]:
        """See Sharing."""
        return page_by_names(
            page_request(tuple, "projects", limit, cursor), self._projects.values(), lambda one: (one.name,)
        )

    def remove_project(self, name: str) -> None:
        """See Sharing."""
        if name not in self._projects:
            raise NotFoundError(f"there is no project {name!r}", hint="`gridmill list projects` shows them.")
        del self._projects[name]
