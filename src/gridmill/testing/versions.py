"""The versions of a grid in memory."""

from dataclasses import dataclass, field, replace

from gridmill.errors import NotFoundError, StaleVersionError
from gridmill.model.alias import BEST, LATEST, Alias, best_of, check_alias, split_reference
from gridmill.model.artifact import Artifact, ArtifactKind, Column
from gridmill.model.compared import ModelComparison
from gridmill.model.comparison import differences
from gridmill.model.look import Preview, VersionDiff
from gridmill.model.parcel import Moved
from gridmill.model.side_by_side import check_models, references_of, side_by_side
from gridmill.model.space import HISTORY_DAYS, Usage, Waste
from gridmill.model.stored import Verified
from gridmill.model.view import Removal, VersionView
from gridmill.testing.backfills import FakeBackfills


@dataclass(slots=True)
class FakeVersions(FakeBackfills):
    """Implements `gridmill.ports.versions.Versions` with dicts."""

    calls: list[str] = field(default_factory=list)
    _artifacts: dict[str, Artifact] = field(default_factory=dict)
    _aliases: dict[str, Alias] = field(default_factory=dict)

    def artifacts(self, *, kind: ArtifactKind | None = None, name: str | None = None) -> tuple[Artifact, ...]:
        """See Versions."""
        newest = reversed(self._artifacts.values())
        return tuple(one for one in newest if kind in (None, one.kind) and name in (None, one.name))

    def artifact(self, artifact_id: str) -> Artifact:
        """See Versions."""
        name, version = split_reference(artifact_id)
        alias = self._aliases.get(artifact_id)
        found: Artifact | None
        if alias is not None and alias.number is not None:
            found = self._artifacts.get(f"{name}@{alias.number}")
        elif alias is not None or version == BEST:
            found = best_of(self.artifacts(name=name), alias.metric if alias else "")
        elif version in ("", LATEST):
            found = next(iter(self.artifacts(name=name)), None)
        else:
            found = self._artifacts.get(artifact_id)
        if found is None:
            raise NotFoundError(f"there is no artifact {artifact_id!r}")
        return found

    def version(self, artifact_id: str) -> VersionView:
        """See Versions."""
        return VersionView(artifact=self.artifact(artifact_id))

    def preview(self, artifact_id: str, *, rows: int = 10, rejects: bool = False) -> Preview:
        """See Versions. (A column of numbers, from 0.)"""
        one = self.artifact(artifact_id)
        cells = tuple((number,) for number in range(min(rows, one.output.rows or 0)))
        return Preview(columns=(Column(name="n", type="int64"),), rows=cells, total=one.output.rows or 0)

    def verify(self, reference: str = "") -> tuple[Verified, ...]:
        """See Versions. (All are as they were.)"""
        found = [self.artifact(reference)] if "@" in reference else self._artifacts.values()
        return tuple(Verified(version=one.id) for one in found if one.id.startswith(reference))

    def diff(self, before: str, after: str, *, key: tuple[str, ...] = ()) -> VersionDiff:
        """See Versions. (Rows are not compared.)"""
        old, new = self.artifact(before), self.artifact(after)
        return VersionDiff(before=old.id, after=new.id, differences=tuple(differences(old, new)))

    def compare(self, name: str, versions: tuple[str, ...] = ()) -> ModelComparison:
        """See Versions. (Nobody knows how long they took.)"""
        asked = references_of(name, versions) if versions or "@" in name else ()
        found = [self.artifact(one) for one in asked] or [*reversed(self.artifacts(name=name))]
        views = [VersionView(artifact=one) for one in check_models(found, name)]
        return side_by_side(views, {})

    def remove_artifact(self, artifact_id: str, *, force: bool = False, dry_run: bool = False) -> Removal:
        """See Versions. (Nothing stands against it.)"""
        name, version = split_reference(artifact_id)
        wanted = [self.artifact(artifact_id)] if version else list(self.artifacts(name=name))
        if not wanted:
            raise NotFoundError(f"there is no artifact {artifact_id!r}")
        for one in wanted if not dry_run else ():
            self.calls.append(f"remove artifact {one.id}")
            del self._artifacts[one.id]
        return Removal(versions=tuple(one.id for one in wanted))

    def backup(self, pipelines: tuple[str, ...], path: str) -> Moved:
        """See Projects. (Nothing is written.)"""
        found = tuple(one.id for one in self.artifacts() if one.name.partition("/")[0] in pipelines)
        if not found:
            raise NotFoundError("there is nothing of it")
        return Moved(path=path, versions=found, size_bytes=0)

    def restore(self, path: str) -> Moved:
        """See Projects. (Nothing is read.)"""
        return Moved(path=path, versions=(), size_bytes=0)

    def usage(self) -> tuple[Usage, ...]:
        """See Housekeeping. (A byte for each version.)"""
        return tuple(
            Usage(kind=f"{one.kind}s", name=one.output.uri, size_bytes=1, job=one.name, version=one.id)
            for one in self.artifacts()
        )

    def clean(self, *, days: float = HISTORY_DAYS, dry_run: bool = False) -> tuple[Waste, ...]:
        """See Housekeeping. (There is none.)"""
        return ()

    def aliases(self, *, name: str | None = None) -> tuple[Alias, ...]:
        """See Versions."""
        return tuple(alias for alias in self._aliases.values() if name in (None, alias.name))

    def set_alias(self, alias: Alias, *, expected: int | None = None) -> Alias:
        """See Versions."""
        check_alias(alias)
        self.artifact(alias.name if alias.number is None else f"{alias.name}@{alias.number}")
        before = self._aliases.get(alias.id)
        if expected is not None and (before.number if before else 0) != expected:
            raise StaleVersionError(f"{alias.id} was changed meanwhile")
        self.calls.append(f"set alias {alias.id}")
        self._aliases[alias.id] = replace(alias, changed=1_700_000_000.0)
        return self._aliases[alias.id]

    def remove_alias(self, alias_id: str) -> None:
        """See Versions."""
        self._aliases.pop(alias_id, None)
