"""Use cases of versions: what jobs made, and the names that users give them."""

from dataclasses import replace

from gridmill.control.cases import Cases
from gridmill.control.inputs import external_references
from gridmill.control.lineage import version_view
from gridmill.control.references import aliases_of, find_alias, find_version
from gridmill.errors import ConflictError, InputError, NotFoundError, StaleVersionError
from gridmill.model.alias import Alias, check_alias, split_reference
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.view import VersionView


class VersionCases(Cases):
    """What may be asked about versions of sinks, datasets, models, predictions and files."""

    def artifacts(self, *, kind: ArtifactKind | None = None, name: str | None = None) -> tuple[Artifact, ...]:
        """Versions that are not removed, newest first."""
        found = self._list(Artifact, parent=name, newest_first=True)
        return tuple(a for a in found if not a.removed and kind in (None, a.kind))

    def artifact(self, artifact_id: str) -> Artifact:
        """A version by its number or an alias; a name alone is the newest."""
        with self._node.lock:
            return find_version(self._control, artifact_id)

    def version(self, artifact_id: str) -> VersionView:
        """A version with its names and its lineage."""
        with self._node.lock:
            return version_view(self._control, artifact_id)

    def aliases(self, *, name: str | None = None) -> tuple[Alias, ...]:
        """The aliases that were set."""
        return aliases_of(self._control, name)

    def set_alias(self, alias: Alias, *, expected: int | None = None) -> Alias:
        """Set or move an alias."""
        check_alias(alias)
        with self._node.changing() as transaction:
            if alias.number is not None:
                self._check_alive(f"{alias.name}@{alias.number}")
            else:
                find_version(self._control, alias.name)
            before = find_alias(self._control, alias.id)
            if expected is not None and (before.number if before else 0) != expected:
                raise StaleVersionError(_moved(alias, before, expected))
            if before is not None:
                self._ledger.fetch(Alias, alias.id)
            kept = replace(alias, changed=transaction.now)
            transaction.put(kept)
        return kept

    def _check_alive(self, artifact_id: str) -> None:
        artifact = find_version(self._control, artifact_id)
        if artifact.removed:
            raise NotFoundError(f"{artifact.id} was removed", hint="Choose a version that is there.")

    def remove_alias(self, alias_id: str) -> None:
        """Forget an alias; one that is not there is fine."""
        with self._node.changing() as transaction:
            if find_alias(self._control, alias_id) is not None:
                self._ledger.fetch(Alias, alias_id)
                transaction.delete(Alias, alias_id)

    def remove_artifact(self, artifact_id: str) -> None:
        """Delete a version's content; its record stays as removed, for lineage."""
        with self._node.changing() as transaction:
            _, version = split_reference(artifact_id)
            if version and not version.isdecimal():
                raise InputError(
                    f"{version!r} is a name for a version, not a version",
                    hint=f"`gridmill remove alias {artifact_id}` removes the name. "
                    f"`gridmill show artifact {artifact_id}` says which version it stands for.",
                )
            artifact = self._ledger.fetch(Artifact, find_version(self._control, artifact_id).id)
            aliases = aliases_of(self._control, artifact.name)
            named = [one.id for one in aliases if one.number == artifact.number]
            if named and not artifact.removed:
                raise ConflictError(
                    f"{artifact.id} is what {named[0]!r} stands for",
                    hint=f"Move the alias to another version, or `gridmill remove alias {named[0]}`.",
                )
            user = None if artifact.removed else self._user_of(artifact)
            if user is not None:
                raise ConflictError(f"run {user} may be using {artifact.id}", hint="Wait for its end.")
            if artifact.kind == ArtifactKind.SINK:
                raise ConflictError(
                    f"{artifact.id} is one version of a table that later versions share",
                    hint="Versions of datasets, models, predictions and files can be removed.",
                )
            transaction.put(replace(artifact, removed=True))
            self._control.newest.pop(artifact.name, None)
            self._control.versions.clear()
        if artifact.output.uri:  # without the lock: it may take long; again for what a crash kept from it
            self._control.storage.remove(artifact.output.uri)

    def _user_of(self, artifact: Artifact) -> str | None:
        """An active run of its pipeline, or of one whose jobs read it."""
        for job_run in self._ledger.snapshot.job_runs.values():
            names = external_references(job_run.job)
            if job_run.pipeline == artifact.name.partition("/")[0] or artifact.name in names:
                return job_run.run_id
        return None


def _moved(alias: Alias, before: Alias | None, expected: int) -> str:
    stands = f"stands for version {before.number or f'best by {before.metric}'}" if before else "is not set"
    return f"{alias.id} {stands}; version {expected or 'none'} was expected"
