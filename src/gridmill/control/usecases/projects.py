"""This module has the use cases of projects that share a grid."""

from functools import partial

from gridmill.control.usecases.base import UseCases
from gridmill.domain.frozen import replace
from gridmill.domain.lease import Lease
from gridmill.domain.lease_cost import PROJECT, Bounds, month_bounds_micros, month_of
from gridmill.domain.naming import check_name
from gridmill.domain.project import Project, ProjectView
from gridmill.errors import ConflictError, NotFoundError
from gridmill.ports.pages import PAGE_ITEMS, Page, page_by_names, page_request
from gridmill.scheduler.capacity_index import ProjectTotals
from gridmill.scheduler.fair_share import used_now


class ProjectUseCases(UseCases):
    """The use cases of projects, their shares and quotas."""

    def configure_project(self, project: Project) -> ProjectView:
        """Create a project, or replace its share and quota. The past use of the project is kept."""
        check_name("project", project.name)
        project.check()
        with self._node.changing() as transaction:
            stored_project = transaction.get(Project, project.name)
            used = (
                (stored_project.used_seconds, stored_project.used_at)
                if stored_project
                else (0.0, transaction.now)
            )
            transaction.put(replace(project, used_seconds=used[0], used_at=used[1]))
        return next(view for view in self._project_views() if view.name == project.name)

    def projects(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[ProjectView]:
        """Return the current state of all projects, by name."""
        request = page_request(tuple, "projects", limit, cursor)
        return page_by_names(request, self._project_views(), lambda one: (one.name,))

    def _project_views(self) -> tuple[ProjectView, ...]:
        with self._node.lock:
            snapshot, now = self._ledger.snapshot, self._control.timeline.now()
            projects = sorted(snapshot.projects.values(), key=lambda project: project.name)
            tallies = {one.name: snapshot.places.tallies.get(one.name, ProjectTotals()) for one in projects}
            used = {one.name: used_now(one, tallies[one.name], now) for one in projects}
            spent = self._spent(now) if any(one.budget_micros is not None for one in projects) else ()
            return tuple(_view(one, tallies[one.name], used, spent) for one in projects)

    def _spent(self, now: float) -> tuple[Bounds, ...]:
        """Return the highest possible costs of rented machines in the present month."""
        month, leases = month_of(now), self._ledger.snapshot.leases.values()
        closed = self._control.rentals.month_costs(month, partial(self._ledger.read_all, Lease))
        return closed.bounds, month_bounds_micros(leases, now, month)

    def remove_project(self, name: str) -> None:
        """Remove a project that has no active runs."""
        with self._node.changing() as transaction:
            if name not in self._ledger.snapshot.projects:
                raise NotFoundError(
                    f"there is no project {name!r}", hint="`gridmill list projects` shows them."
                )
            run = next((run for run in self._ledger.snapshot.runs.values() if run.project == name), None)
            if run is not None:
                raise ConflictError(
                    f"run {run.id} of project {name!r} is active",
                    hint=f"`gridmill stop {run.id}`, or wait for its end.",
                )
            transaction.delete(Project, name)


def _view(
    project: Project, tally: ProjectTotals, used: dict[str, float], spent: tuple[Bounds, ...]
) -> ProjectView:
    together = sum(used.values())
    key = (PROJECT, project.name, project.currency)
    return ProjectView(
        project=project,
        used_seconds=used[project.name],
        used_share=used[project.name] / together if together else 0.0,
        cpus=tally.cpus,
        memory_bytes=tally.memory_bytes,
        gpus=tally.gpus,
        month_micros=sum(bounds.get(key, 0) for bounds in spent),
    )
