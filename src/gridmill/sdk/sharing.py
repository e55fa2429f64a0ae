"""The verbs of projects that share a grid."""

from gridmill.model.amounts import parse_bytes
from gridmill.model.project import Project, ProjectView
from gridmill.sdk.connected import Connected


class ShareVerbs(Connected):
    """The verbs of projects."""

    def configure_project(
        self,
        name: str,
        *,
        share: float = 1.0,
        cpus: float | None = None,
        memory: int | str | None = None,
        gpus: int | None = None,
    ) -> ProjectView:
        """Create a project, or replace its share and quota (`memory="64GB"`; None: no bound).

        Raises InputError.
        """
        memory_bytes = None if memory is None else parse_bytes(memory)
        return self.grid.configure_project(
            Project(name=name, share=share, cpus=cpus, memory_bytes=memory_bytes, gpus=gpus)
        )

    def list_projects(self) -> tuple[ProjectView, ...]:
        """Projects as they stand, by name."""
        return self.grid.projects()

    def remove_project(self, name: str) -> None:
        """Remove a project, and what it used. Raises ConflictError while runs of it are active."""
        self.grid.remove_project(name)
