"""The verbs of versions: sinks, datasets, models, predictions and files."""

from gridmill.errors import InputError
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.sdk.connected import Connected


class VersionVerbs(Connected):
    """The verbs of versions: what jobs made."""

    def list_artifacts(
        self, *, kind: ArtifactKind | str | None = None, name: str | None = None
    ) -> tuple[Artifact, ...]:
        """Versions of sinks, datasets, models, predictions and files, newest first."""
        return self.grid.artifacts(kind=None if kind is None else read_artifact_kind(kind), name=name)

    def remove_artifact(self, artifact: str) -> None:
        """Delete a version's content."""
        self.grid.remove_artifact(artifact)


def read_artifact_kind(kind: ArtifactKind | str) -> ArtifactKind:
    """A kind of version by name. Raises InputError, naming what there is."""
    if kind not in list(ArtifactKind):
        raise InputError(f"there is no kind {str(kind)!r}", hint=f"There are: {', '.join(ArtifactKind)}.")
    return ArtifactKind(kind)
