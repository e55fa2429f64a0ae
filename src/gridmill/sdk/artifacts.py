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
    """The verbs of versions: what jobs made."""

    def list_artifacts(
        self, *, kind: ArtifactKind | str | None = None, name: str | None = None, limit: int | None = None
    ) -> Listing[Artifact]:
        """Versions of sinks, datasets, models, predictions and files, newest first."""
        known = None if kind is None else read_artifact_kind(kind)
        return Listing(partial(self.grid.artifacts, kind=known, name=name), limit=limit)

    def artifact(self, reference: str) -> Artifact:
        """A version: `weather/lstm@3`, `weather/lstm@prod`, or the newest of `weather/lstm`."""
        return self.grid.artifact(reference)

    def load(self, reference: str) -> Version:
        """A version to read: `load("weather/features@3").to_pandas()`, `load("weather/lstm").predict(rows)`.

        It is usable after the client is closed. Raises NotFoundError.
        """
        artifact = self.grid.artifact(reference)
        if artifact.removed:
            raise NotFoundError(f"{artifact.id} was removed", hint="Its record is kept: `gridmill show`.")
        return Version(artifact=artifact, root=self.grid.control().root)

    def version(self, reference: str) -> VersionView:
        """A version with its names, what it was made from (to the sources), and what was made from it."""
        return self.grid.version(reference)

    def preview(self, reference: str, *, rows: int = 10, rejects: bool = False) -> Preview:
        """The first rows of a version (or of a sink's rejects), or the files of a model or a command."""
        return self.grid.preview(reference, rows=rows, rejects=rejects)

    def diff(self, before: str, after: str, *, key: tuple[str, ...] = ()) -> VersionDiff:
        """How two versions differ: columns, statistics, metrics, settings, and rows by `key` columns."""
        return self.grid.diff(before, after, key=key)

    def compare(self, name: str, *versions: int | str) -> ModelComparison:
        """Versions of a model side by side: `compare("weather/lstm", 2, "prod", "weather/gbdt")`.

        Without versions the last five, oldest first. Raises NotFoundError; InputError for what is no model,
        and for only one.
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
        """Let `alias` stand for a version of `name` (`weather/lstm`), or for the best by a metric.

        With `expected` only where it stands for that version now (0: where it is not set), else
        StaleVersionError: two people who move it at once cannot overwrite each other. `best_by` is a metric's
        name as the version has it (`validation_auc`), with `max:` or `min:` before a name that does not say.
        """
        kept = Alias(id=f"{name}@{alias}", name=name, alias=alias, number=version, metric=best_by)
        return self.grid.set_alias(kept, expected=expected)

    def remove_alias(self, reference: str) -> None:
        """Forget an alias (`weather/lstm@prod`); the version stays."""
        self.grid.remove_alias(reference)

    def verify(self, reference: str = "") -> tuple[VerificationResult, ...]:
        """Read all files of `weather/lstm@3`, of all versions of `weather/lstm`, of all of `weather`, or of
        all versions, and compare them with what they were when they were made (see
        `VerificationResult.is_wrong`)."""
        return self.grid.verify(reference)

    def backup(self, *pipelines: str, path: str | Path) -> ArchiveResult:
        """Write pipelines, their versions with lineage, aliases, tables and models into one archive.

        It lies on the control node's machine. Raises ConflictError while a run may be changing them.
        """
        return self.grid.backup(pipelines, str(Path(path).absolute()))

    def restore(self, path: str | Path) -> ArchiveResult:
        """Verify an archive, then make all of it visible at once. May be repeated.

        Raises InputError for a damaged one, ConflictError where this grid has another of the same name.
        """
        return self.grid.restore(str(Path(path).absolute()))

    def usage(self) -> tuple[DiskUsage, ...]:
        """What takes space on the control node's disk: versions, records, folders of pods, caches."""
        return self.grid.usage()

    def clean(self, *, days: float = HISTORY_DAYS, dry_run: bool = False) -> tuple[ReclaimableItem, ...]:
        """Take away versions beyond what their jobs retain, leftovers, and history older than `days`."""
        return self.grid.clean(days=days, dry_run=dry_run)

    def list_aliases(self, name: str | None = None, *, limit: int | None = None) -> Listing[Alias]:
        """The aliases that were set, by name."""
        return Listing(partial(self.grid.aliases, name=name), limit=limit)

    def remove_artifact(self, artifact: str, *, force: bool = False, dry_run: bool = False) -> RemovalPreview:
        """Delete the content of a version (`weather/lstm@3`) or of all (`weather/lstm`); what went.

        Raises ConflictError while a run may use it; without `force` also where an alias stands for it or
        another version was made from it.
        """
        return self.grid.remove_artifact(artifact, force=force, dry_run=dry_run)


def read_artifact_kind(kind: ArtifactKind | str) -> ArtifactKind:
    """A kind of version by name. Raises InputError, naming what there is."""
    if kind not in list(ArtifactKind):
        raise InputError(f"there is no kind {str(kind)!r}", hint=f"There are: {', '.join(ArtifactKind)}.")
    return ArtifactKind(kind)
