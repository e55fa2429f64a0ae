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
        """Return a version: `weather/lstm@3`, `weather/lstm@prod`, or the newest version of
        `weather/lstm`."""
        return self.grid.artifact(reference)

    def load(self, reference: str) -> Version:
        """Load a version to read it: `load("weather/features@3").to_pandas()`,
        `load("weather/lstm").predict(rows)`.

        It is usable after the client is closed. Raises NotFoundError.
        """
        artifact = self.grid.artifact(reference)
        if artifact.removed:
            raise NotFoundError(
                f"{artifact.id} was removed",
                hint=f"Only its record is kept: gridmill show artifact {artifact.id}",
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
        """Return the differences between two versions: columns, statistics, metrics, settings, and rows by
        `key` columns."""
        return self.grid.diff(before, after, key=key)

    def compare(self, name: str, *versions: int | str) -> ModelComparison:
        """Compare versions of a model: `compare("weather/lstm", 2, "prod", "weather/gbdt")`.

        Without versions, it compares the last five, oldest first. Raises NotFoundError; InputError if a
        version is not a model, and for a single version.
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

        With `expected`, the alias is set only if it refers to that version now (0: if it is not set), else
        StaleVersionError is raised: two users cannot overwrite each other's change. `best_by` is the name of
        a metric of the version (`validation_auc`). Put `max:` or `min:` before a name whose direction is
        unknown.
        """
        kept = Alias(id=f"{name}@{alias}", name=name, alias=alias, number=version, metric=best_by)
        return self.grid.set_alias(kept, expected=expected)

    def remove_alias(self, reference: str) -> None:
        """Delete an alias (`weather/lstm@prod`); the version is kept."""
        self.grid.remove_alias(reference)

    def verify(self, reference: str = "") -> tuple[VerificationResult, ...]:
        """Compare files with the hashes that were stored when their versions were made: the files of
        `weather/lstm@3`, of all versions of `weather/lstm` or `weather`, or without a name of all versions
        (see `VerificationResult.is_wrong`)."""
        return self.grid.verify(reference)

    def backup(self, *pipelines: str, path: str | Path) -> ArchiveResult:
        """Write pipelines, their versions with lineage, aliases, tables and models into one archive.

        The archive is written on the control node's machine. Raises ConflictError while a run may change the
        pipelines.
        """
        return self.grid.backup(pipelines, str(Path(path).absolute()))

    def restore(self, path: str | Path) -> ArchiveResult:
        """Verify an archive, then restore all its pipelines in one step. Can be repeated.

        Raises InputError for a damaged archive, ConflictError if this grid has another pipeline with the same
        name.
        """
        return self.grid.restore(str(Path(path).absolute()))

    def usage(self) -> tuple[DiskUsage, ...]:
        """Return the disk space of versions, records, pods' folders and caches on the control node's
        machine."""
        return self.grid.usage()

    def clean(self, *, days: float = HISTORY_DAYS, dry_run: bool = False) -> tuple[ReclaimableItem, ...]:
        """Delete versions that their jobs do not retain, leftovers, and history older than `days`."""
        return self.grid.clean(days=days, dry_run=dry_run)

    def list_aliases(self, name: str | None = None, *, limit: int | None = None) -> Listing[Alias]:
        """List the aliases that were set, by name."""
        return Listing(partial(self.grid.aliases, name=name), limit=limit)

    def remove_artifact(self, artifact: str, *, force: bool = False, dry_run: bool = False) -> RemovalPreview:
        """Delete the files of a version (`weather/lstm@3`) or of all versions (`weather/lstm`); return the
        deleted versions.

        Raises ConflictError while a run may use a version; without `force` also if an alias refers to it, or
        if another version was made from it.
        """
        return self.grid.remove_artifact(artifact, force=force, dry_run=dry_run)


def read_artifact_kind(kind: ArtifactKind | str) -> ArtifactKind:
    """Parse a kind of version. Raises InputError with the list of kinds."""
    if kind not in list(ArtifactKind):
        raise InputError(f"unknown kind {str(kind)!r}", hint=f"The kinds are {', '.join(ArtifactKind)}.")
    return ArtifactKind(kind)
