"""Projects in a grid in memory: nothing is used."""

from gridmill.errors import NotFoundError
from gridmill.model.project import Project, ProjectView


class FakeSharing:
    """Implements gridmill.ports.sharing for a class that has `_projects`."""

    _projects: dict[str, ProjectView]

    def configure_project(self, project: Project) -> ProjectView:
        """See Sharing."""
        project.check()
        view = ProjectView(
            project=project, used_seconds=0.0, used_share=0.0, cpus=0.0, memory_bytes=0, gpus=0
        )
        self._projects[project.name] = view
        return view

    def projects(self) -> tuple[ProjectView, ...]:
        """See Sharing."""
        return tuple(self._projects[name] for name in sorted(self._projects))

    def remove_project(self, name: str) -> None:
        """See Sharing."""
        if name not in self._projects:
            raise NotFoundError(f"there is no project {name!r}", hint="`gridmill list projects` shows them.")
        del self._projects[name]
