"""The use cases of versions: what jobs made, and the names that users give them."""

from typing import Protocol

from gridmill.model.alias import Alias
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.compared import ModelComparison
from gridmill.model.look import Preview, VersionDiff
from gridmill.model.parcel import Moved
from gridmill.model.space import HISTORY_DAYS, Usage, Waste
from gridmill.model.stored import Verified
from gridmill.model.view import Removal, RunRemoval, VersionView
from gridmill.ports.alterations import Altering


class Projects(Protocol):
    """What a face can ask about whole projects. Paths are on the control node's machine."""

    def backup(self, pipelines: tuple[str, ...], path: str) -> Moved:
        """Write pipelines, their versions with lineage, aliases, tables and models into one archive.

        Raises NotFoundError, ConflictError while a run may be changing them, StorageError.
        """
        ...

    def restore(self, path: str) -> Moved:
        """Verify an archive, then make all of it visible at once; what is here already and the same stays.

        Raises InputError for one that is damaged, UnsafePathError, ConflictError where this grid has another
        version or pipeline of the same name.
        """
        ...


class Housekeeping(Protocol):
    """What a face can ask about space."""

    def usage(self) -> tuple[Usage, ...]:
        """What takes space on the control node's disk: versions, records, folders of pods, caches."""
        ...

    def clean(self, *, days: float = HISTORY_DAYS, dry_run: bool = False) -> tuple[Waste, ...]:
        """Take away versions beyond what their jobs retain, what removed versions and failed attempts left,
        folders of pods that ended, and history (events, reports, code, runs that no version tells of) older
        than `days`.

        What a run may be using stays. With `dry_run` only what would go is told.
        """
        ...

    def remove_run(self, run_id: str, *, dry_run: bool = False) -> RunRemoval:
        """Delete a finished run: its records, events (with the logs), report, and what failed attempts left.

        The versions that it made stay. With `dry_run` nothing is deleted. Raises NotFoundError, ConflictError
        while it is active, and for a run of a backfill, which needs it to know what is done.
        """
        ...


class Versions(Altering, Protocol):
    """What a face can ask about versions. Where one is named, `pipeline/job@3` is a number,
    `pipeline/job@prod` an alias, and `pipeline/job` the newest."""

    def artifacts(self, *, kind: ArtifactKind | None = None, name: str | None = None) -> tuple[Artifact, ...]:
        """Versions that are not removed, newest first; `name` is `pipeline/job`."""
        ...

    def artifact(self, artifact_id: str) -> Artifact:
        """A version (`pipeline/job@N`, `pipeline/job@ALIAS`); `pipeline/job` alone is the newest."""
        ...

    def version(self, artifact_id: str) -> VersionView:
        """A version with its names, what it was made from and what was made from it."""
        ...

    def preview(self, artifact_id: str, *, rows: int = 10, rejects: bool = False) -> Preview:
        """The first rows of a table (or of a sink's rejects), or the files of a model or a command.

        Raises InputError where there are none to show, StorageError when they cannot be read.
        """
        ...

    def diff(self, before: str, after: str, *, key: tuple[str, ...] = ()) -> VersionDiff:
        """How two versions differ: columns, statistics, metrics, settings.

        Rows are compared by `key`; without one by the columns that the versions say tell rows apart.
        """
        ...

    def compare(self, name: str, versions: tuple[str, ...] = ()) -> ModelComparison:
        """Versions of a model side by side: metrics, settings, what they were made from and with.

        `versions` are numbers, aliases or other models (`pipeline/job`); without any the last five, oldest
        first. Raises InputError for what is no model, and where there is only one.
        """
        ...

    def verify(self, reference: str = "") -> tuple[Verified, ...]:
        """Read all content of versions, and compare it with what it was when they were made.

        `reference` is a version, `pipeline/job` for all versions of it, a pipeline for all of its, or empty
        for all there are. Raises NotFoundError where nothing has that name.
        """
        ...

    def remove_artifact(self, artifact_id: str, *, force: bool = False, dry_run: bool = False) -> Removal:
        """Delete the content of a version, or of all (`pipeline/job`); their records stay, for lineage.

        Raises ConflictError while a run may use it; without `force` also where an alias stands for it or
        another version was made from it. With `dry_run` nothing is removed or raised for that.
        May be repeated.
        """
        ...

    def aliases(self, *, name: str | None = None) -> tuple[Alias, ...]:
        """The aliases that were set, of one `pipeline/job` or of all. `latest` and `best` need none."""
        ...

    def set_alias(self, alias: Alias, *, expected: int | None = None) -> Alias:
        """Set or move an alias; it as it is kept.

        With `expected` only where it stands for that version now (0: where it is not set), else
        StaleVersionError. Raises InputError, NotFoundError for a version that is not there.
        """
        ...

    def remove_alias(self, alias_id: str) -> None:
        """Forget an alias; the version stays. One that is not set is fine."""
        ...
