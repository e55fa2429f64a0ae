"""The use cases of projects that share a grid."""

from typing import Protocol

from gridmill.model.project import Project, ProjectView


class Sharing(Protocol):
    """What a face can ask about projects."""

    def configure_project(self, project: Project) -> ProjectView:
        """Create the project of that name, or replace its share and quota; what it used stays.

        Raises InputError.
        """
        ...

    def projects(self) -> tuple[ProjectView, ...]:
        """All projects as they stand, by name."""
        ...

    def remove_project(self, name: str) -> None:
        """Remove it, and what it used. Raises NotFoundError, ConflictError while runs of it are active."""
        ...
