"""Use cases of versions: what jobs made."""

from dataclasses import replace

from gridmill.control.cases import Cases
from gridmill.control.inputs import external_references, fetch_artifact
from gridmill.errors import ConflictError, NotFoundError
from gridmill.model.artifact import Artifact, ArtifactKind


class VersionCases(Cases):
    """What may be asked about versions of sinks, datasets, models, predictions and files."""

    def artifacts(self, *, kind: ArtifactKind | None = None, name: str | None = None) -> tuple[Artifact, ...]:
        """Versions that are not removed, newest first."""
        found = self._list(Artifact, parent=name, newest_first=True)
        return tuple(a for a in found if not a.removed and kind in (None, a.kind))

    def artifact(self, artifact_id: str) -> Artifact:
        """A version by id; a name alone is the newest."""
        with self._node.lock:
            if "@" in artifact_id:
                return fetch_artifact(self._control, artifact_id)
            newest = self._control.newest_artifact(artifact_id)
            if newest is None:
                raise NotFoundError(
                    f"there is no {artifact_id!r}",
                    hint="`gridmill list` shows what there is.",
                )
            return newest

    def remove_artifact(self, artifact_id: str) -> None:
        """Delete a version's content; its record stays as removed, for lineage."""
        with self._node.changing() as transaction:
            artifact = self._ledger.fetch(Artifact, self.artifact(artifact_id).id)
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
