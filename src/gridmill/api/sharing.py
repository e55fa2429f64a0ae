"""The routes of projects that share a grid."""

from starlette.responses import Response

from gridmill.api.replies import Name, TheGrid, check_name, done, make_router, reply
from gridmill.model.project import Project, ProjectView

router = make_router()


@router.get("/projects", response_model=tuple[ProjectView, ...], tags=["projects"])
def list_projects(grid: TheGrid) -> Response:
    """Projects as they stand, by name."""
    return reply(grid.projects())


@router.put("/projects/{name}", response_model=ProjectView, tags=["projects"])
def configure_project(grid: TheGrid, name: Name, project: Project) -> Response:
    """Create a project, or replace its share and quota; what it used stays."""
    check_name(project.name, name)
    return reply(grid.configure_project(project))


@router.delete("/projects/{name}", status_code=204, response_class=Response, tags=["projects"])
def remove_project(grid: TheGrid, name: Name) -> Response:
    """Remove a project without active runs, and what it used."""
    grid.remove_project(name)
    return done()
