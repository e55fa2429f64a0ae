"""The use cases of projects over HTTP."""

from gridmill.codec import decode, encode
from gridmill.model.project import Project, ProjectView
from gridmill.sdk.http_versions import Sender, quoted


class HttpSharing:
    """Implements gridmill.ports.sharing for a class that can `_get` and `_send`."""

    def configure_project(self: Sender, project: Project) -> ProjectView:
        """See Sharing."""
        path = f"/projects/{quoted(project.name)}"
        return decode(self._send("PUT", path, body=encode(project)), ProjectView)

    def projects(self: Sender) -> tuple[ProjectView, ...]:
        """See Sharing."""
        return self._get("/projects", tuple[ProjectView, ...])

    def remove_project(self: Sender, name: str) -> None:
        """See Sharing."""
        self._send("DELETE", f"/projects/{quoted(name)}")
