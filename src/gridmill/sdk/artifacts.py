"""Client methods for versions: sinks, datasets, models, predictions and files."""

from functools import partial
from pathlib import Path

from gridmill.domain.archive import ArchiveResult
from gridmill.domain.artifact import Alias, Artifact, ArtifactKind
from gridmill.domain.comparison import ModelComparison, Preview, VersionDiff
from gridmill.domain.usage import HISTORY_DAYS, DiskUsage, ReclaimableItem
from gridmill.domain.version_manifest import VerificationResult
from gridmill.domain.views import RemovalPreview, VersionView
from gridmill.errors import InputError, NotFoundError
from gridmill.sdk.base import Connected
from gridmill.sdk.listing import Listing
from gridmill.sdk.loaded import Version


class VersionVerbs(Connected):
    """Client methods for versions, which are the results of jobs."""

    def list_artifacts(
        self, *, kind: ArtifactKind | str | None = None, name: str | None = None, limit: int | None = None
    ) -> Listing[Artifact]:
        """List versions of sinks, datasets, models, predictions and files, newest first."""
        known = None if kind is None else read_artifact_kind(kind)
        return Listing(partial(self.grid.artifacts, kind=known, name=name), limit=limit)

    def artifact(self, reference: str) -> Artifact:
        """Return the version with this reference, such as `weather/lstm@3` or `weather/lstm@prod`. The
        reference `weather/lstm` returns the newest version."""
        return self.grid.artifact(reference)

    def load(self, reference: str) -> Version:
        """Load a version to read it, for example `load("weather/features@3").to_pandas()` or
        `load("weather/lstm").predict(rows)`.

        The loaded version can still be used after the client is closed. Raises NotFoundError.
        """
        artifact = self.grid.artifact(reference)
        if artifact.removed:
            raise NotFoundError(
                f"{artifact.id} was removed",
                hint=f"Its files were deleted and its record is kept: gridmill show artifact {artifact.id}",
            )
        return Version(artifact=artifact, root=self.grid.control().root)

    def version(self, reference: str) -> VersionView:
        """Return a version with its aliases, the versions from which it was made (back to the sources), and
        the versions that were made from it."""
        return self.grid.version(reference)

    def preview(self, reference: str, *, rows: int = 10, rejects: bool = False) -> Preview:
        """Return the first rows of a version (or the rejected rows of a sink), or the files of a model or a
        command."""
        return self.grid.preview(reference, rows=rows, rejects=rejects)

    def diff(self, before: str, after: str, *, key: tuple[str, ...] = ()) -> VersionDiff:
        """Return the differences between two versions: columns, statistics, metrics, settings, and rows.
        `key` contains the names of the columns that identify a row."""
        return self.grid.diff(before, after, key=key)

    def compare(self, name: str, *versions: int | str) -> ModelComparison:
        """Compare versions of a model, for example `compare("weather/lstm", 2, "prod", "weather/gbdt")`.

        If no versions are given, the method compares the last five versions, oldest first. Raises
        NotFoundError. Raises InputError if a version is not a model, or if there is only a single version.
        """
        return self.grid.compare(name, tuple(map(str, versions)))

    def set_alias(
        self,
        name: str,
        alias: str,
        version: int | None = None,
        *,
        best_by: str = "",
        expected: int | None = None,
    ) -> Alias:
        """Set `alias` to a version of `name` (`weather/lstm`), or to the best version by a metric.

        With `expected`, the alias is set only if it currently refers to the version with this number. If
        `expected` is 0, the alias is set only if it does not exist yet. If the alias refers to a different
        version than expected, StaleVersionError is raised, so that two users cannot overwrite each other's
        change. `best_by` is the name of a metric of the version (`validation_auc`). Put `max:` or `min:`
        before the name of a metric if Gridmill does not know whether a higher value is better.
        """
        kept = Alias(id=f"{name}@{alias}", name=name, alias=alias, number=version, metric=best_by)
        return self.grid.set_alias(kept, expected=expected)

    def promote_alias(self, reference: str) -> Alias:
        """Move an alias (`weather/lstm@champion`) to the new version that waits for approval. Raises
        ConflictError if no version waits, NotFoundError."""
        return self.grid.promote_alias(reference)

    def rollback_alias(self, reference: str) -> Alias:
        """Refuse the version that waits for approval, or return the alias to the version before the last move
        by a comparison. Raises ConflictError, NotFoundError."""
        return self.grid.rollback_alias(reference)

    def remove_alias(self, reference: str) -> None:
        """Delete an alias (`weather/lstm@prod`). The version to which the alias refers is not deleted."""
        self.grid.remove_alias(reference)

    def verify(self, reference: str = "") -> tuple[VerificationResult, ...]:
        """Compare the files of versions with the hashes that were stored when the versions were made. The
        reference `weather/lstm@3` selects a version, and `weather/lstm` or `weather` selects all its
        versions. Without a reference, the method checks all versions (see `VerificationResult.is_wrong`)."""
        return self.grid.verify(reference)

    def backup(self, *pipelines: str, path: str | Path) -> ArchiveResult:
        """Write pipelines, their versions with lineage, aliases, tables and models into a single archive.

        The archive is written on the machine of the control node. Raises ConflictError while a run may
        change the pipelines.
        """
        return self.grid.backup(pipelines, str(Path(path).absolute()))

    def restore(self, path: str | Path) -> ArchiveResult:
        """Verify an archive, then restore all its pipelines in one step. If the method is called again with
        the same archive, nothing changes.

        Raises InputError for a damaged archive, ConflictError if this grid has another pipeline with the same
        name.
        """
        return self.grid.restore(str(Path(path).absolute()))

    def usage(self) -> tuple[DiskUsage, ...]:
        """Return the disk space that versions, records, folders of pods and caches use on the machine of the
        control node."""
        return self.grid.usage()

    def clean(self, *, days: float = HISTORY_DAYS, dry_run: bool = False) -> tuple[ReclaimableItem, ...]:
        """Delete versions that their jobs do not retain, leftover files, and history that is older than
        `days`."""
        return self.grid.clean(days=days, dry_run=dry_run)

    def list_aliases(self, name: str | None = None, *, limit: int | None = None) -> Listing[Alias]:
        """List the aliases that were set, sorted by name."""
        return Listing(partial(self.grid.aliases, name=name), limit=limit)

    def remove_artifact(self, artifact: str, *, force: bool = False, dry_run: bool = False) -> RemovalPreview:
        """Delete the files of a version (`weather/lstm@3`) or of all versions (`weather/lstm`), and return
        the deleted versions.

        Raises ConflictError while a run may use a version. Without `force`, raises ConflictError also if an
        alias refers to a version, or if another version was made from it.
        """
        return self.grid.remove_artifact(artifact, force=force, dry_run=dry_run)


def read_artifact_kind(kind: ArtifactKind | str) -> ArtifactKind:
    """Parse the name of a kind of version. Raises InputError with a list of the valid kinds."""
    if kind not in list(ArtifactKind):
        raise InputError(f"unknown kind {str(kind)!r}", hint=f"The kinds are {', '.join(ArtifactKind)}.")
    return ArtifactKind(kind)
