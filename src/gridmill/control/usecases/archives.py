"""This module has the use cases of archives: back up pipelines with all their results, and restore them into
another grid."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from gridmill.control.ledger import Transaction
from gridmill.control.removable import running
from gridmill.control.steps.latest import find_latest, note_latest_move, note_set
from gridmill.control.steps.provenance import find_code, find_provenance
from gridmill.control.steps.references import aliases_of, versions_of
from gridmill.control.usecases.base import UseCases
from gridmill.domain.archive import FORMAT, ArchiveContents, ArchiveResult
from gridmill.domain.artifact import Alias, Artifact, ArtifactKind, Latest
from gridmill.domain.frozen import replace
from gridmill.domain.naming import check_name
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.provenance import CodeList, Provenance
from gridmill.domain.run import JobRun, Run
from gridmill.errors import ConflictError, InputError, NotFoundError, UnsafePathError
from gridmill.plugins import find
from gridmill.ports.store import key_of
from gridmill.version import __version__

_NUMBER = re.compile("[1-9][0-9]{0,17}")
_MAKER = re.compile(f"|[a-z0-9][a-z0-9_-]*-{_NUMBER.pattern}")
"""The pattern of the id of the run that made a version. The run that made the version may have been deleted.
The id is empty if no run made the version."""

_Moved: TypeAlias = Pipeline | Run | JobRun | Artifact | Alias
_WORDS: dict[type[object], str] = {
    Pipeline: "pipeline",
    Run: "run",
    JobRun: "job",
    Artifact: "version",
    Alias: "alias",
}


class ArchiveUseCases(UseCases):
    """The use cases of archives of whole pipelines. The paths of archives are paths on the machine of the
    control node."""

    def backup(self, pipelines: tuple[str, ...], path: str) -> ArchiveResult:
        """Write pipelines into one archive, with their versions and lineage, aliases, tables and models."""
        with self._node.lock:
            project, before = self._project(pipelines), self._runs_of(pipelines)

        def check() -> None:
            with self._node.lock:
                if (self._project(pipelines), self._runs_of(pipelines)) != (project, before):
                    raise ConflictError(
                        "the project was changed during the backup", hint="Repeat the backup."
                    )

        storage = self._control.storage
        size: int = find("archives", "write")(
            Path(path), project, Path(storage.location), Path(storage.bundles_location), check
        )
        return ArchiveResult(
            path=path, versions=tuple(artifact.id for artifact in project.artifacts), size_bytes=size
        )

    def _runs_of(self, pipelines: tuple[str, ...]) -> frozenset[str]:
        """Return all runs of the pipelines. Failed runs are included, because they may have changed a sink's
        table, too."""
        return frozenset(run.id for name in pipelines for run in self._list(Run, parent=name))

    def _project(self, pipelines: tuple[str, ...]) -> ArchiveContents:
        artifacts = [one for one in self._list(Artifact) if one.name.partition("/")[0] in pipelines]
        kept = [one for one in self._list(Pipeline) if one.name in pipelines]
        known = {*(one.name.partition("/")[0] for one in artifacts), *(one.name for one in kept)}
        for name in pipelines:
            if name not in known:
                hint = "See `gridmill list artifacts`."
                raise NotFoundError(f"unknown pipeline {name!r}", hint=hint)
            busy = next(running(self._ledger, f"{name}/"), None)
            if busy is not None:
                raise ConflictError(f"run {busy} may be changing it", hint="Wait for its end, or stop it.")
        names = dict.fromkeys(one.name for one in artifacts)
        ids = {one.run_id for one in artifacts}
        runs = [run for run in self._list(Run) if run.id in ids]
        provenances = tuple(self._provenances(artifacts))
        bundles = {*(run.bundle for run in runs), *(one.bundle for one in kept)}
        return ArchiveContents(
            format=FORMAT,
            gridmill=__version__,
            pipelines=tuple(kept),
            runs=tuple(runs),
            job_runs=tuple(job for run in runs for job in self._list(JobRun, parent=run.id)),
            artifacts=tuple(artifacts),
            aliases=tuple(alias for name in names for alias in aliases_of(self._ledger, name)),
            uris=tuple(dict.fromkeys(_folders(artifacts))),
            latest=tuple(one for name in names if (one := find_latest(self._ledger, name)) is not None),
            provenances=provenances,
            code=tuple(self._code(provenances)),
            bundles=tuple(sorted(one for one in bundles if one and self._control.storage.has_bundle(one))),
        )

    def restore(self, path: str) -> ArchiveResult:
        """Verify an archive, then make its whole content visible in one step."""
        with find("archives", "read")(Path(path), Path(self._control.storage.location)) as archive:
            project: ArchiveContents = archive.project
            _check(project)
            archive.check_versions()
            for digest in project.bundles:
                self._control.storage.put_bundle(digest, archive.bundle(digest))
            self._check_not_grown(project)
            # before the lock is taken, because it reads all files
            checked = archive.check(self._new_folders(project))
            with self._node.changing() as transaction:
                fresh = [noun for noun in _nouns(project) if self._is_new(noun)]
                for uri in self._new_folders(project):
                    archive.place(uri, checked)
                for noun in fresh:
                    if isinstance(noun, Artifact):
                        archive.place_manifest(noun)
                latest = tuple(self._latest(project))
                transaction.put(*fresh, *latest, *self._new_provenances(project))
                self._note_moves(transaction, [*fresh, *latest], f"restore of {path}")
                # restored runs add no events to this grid, because they did not happen in it
                transaction.events.clear()
                for run in project.runs:
                    self._control.counters.used(run.pipeline, int(run.id.rpartition("-")[2]))
                self._control.catalog.newest_artifacts.clear()
        made = tuple(one.id for one in fresh if isinstance(one, Artifact))
        return ArchiveResult(
            path=path,
            versions=made,
            size_bytes=Path(path).stat().st_size,
            already_present=len(project.artifacts) - len(made),
        )

    def _note_moves(self, transaction: Transaction, nouns: Iterable[_Moved | Latest], by: str) -> None:
        for noun in nouns:
            if isinstance(noun, Alias):
                note_set(self._control.storage, self._control.problems, transaction, None, noun, by)
            elif isinstance(noun, Latest):
                note_latest_move(self._control.storage, self._control.problems, transaction, None, noun, by)

    def _provenances(self, artifacts: Iterable[Artifact]) -> Iterator[Provenance]:
        for artifact in artifacts:
            provenance = find_provenance(self._control.catalog, artifact.name, artifact.fingerprint)
            if provenance is not None and provenance.artifact == artifact.id:
                yield provenance

    def _code(self, provenances: Iterable[Provenance]) -> Iterator[CodeList]:
        for one in dict.fromkeys(one.code for one in provenances if one.code):
            code = find_code(self._control.catalog, one)
            if code is not None:
                yield code

    def _new_provenances(self, project: ArchiveContents) -> Iterator[Provenance | CodeList]:
        for code in project.code:
            if find_code(self._control.catalog, code.hash) is None:
                yield code
        for provenance in project.provenances:
            if find_provenance(self._control.catalog, provenance.name, provenance.fingerprint) is None:
                yield provenance

    def _latest(self, project: ArchiveContents) -> Iterator[Latest]:
        """Return the latest version of each name that has no latest version in this grid. Every later run of
        this grid replaces the restored version as the latest version."""
        for one in project.latest:
            if find_latest(self._ledger, one.name) is None:
                yield replace(one, order=0)

    def _check_not_grown(self, project: ArchiveContents) -> None:
        """Raise ConflictError if a table has different states in this grid and in the archive, because an
        archive is restored as a whole."""
        with self._node.lock:
            for artifact in project.artifacts:
                here = versions_of(self._ledger, artifact.name) if self._is_new(artifact) else ()
                if here and artifact.kind == ArtifactKind.SINK:
                    raise ConflictError(
                        f"this grid has version {here[0].id} and the archive has {artifact.id}: they are"
                        f" different states"
                        " of one table",
                        hint="Restore the archive into a grid that has none of its pipelines, or the same"
                        " versions: "
                        "choose another GRIDMILL_HOME (and GRIDMILL_ROOT).",
                    )

    def _new_folders(self, project: ArchiveContents) -> tuple[str, ...]:
        """Return the folders of the archive's versions that do not exist in this grid yet. Raises
        ConflictError."""
        return tuple(
            dict.fromkeys(_folders(artifact for artifact in project.artifacts if self._is_new(artifact)))
        )

    def _is_new(self, noun: _Moved) -> bool:
        """Return whether the record is new, because this grid has no record with the same key. Raises
        ConflictError if a different record with the same key exists."""
        record = self._ledger.store.get(type(noun), key_of(noun))
        if record is None:
            return True
        if isinstance(noun, Pipeline) and isinstance(record.noun, Pipeline):
            if noun.applied and not record.noun.applied:
                # read into memory first, because only a record in memory can be replaced
                self._ledger.look_up(Pipeline, noun.name)
                return True
            if not noun.applied:
                # kept: the pipeline of the last run here is newer than that of the archive
                return False
        if record.noun != noun:
            raise ConflictError(
                f"this grid has another {_WORDS[type(noun)]} {key_of(noun)!r}",
                hint="Import into a grid (GRIDMILL_HOME) that has no pipeline of that name.",
            )
        return False


def _folders(artifacts: Iterable[Artifact]) -> Iterator[str]:
    """Return the folders of the versions that are not removed. The rejected rows of a sink are in a folder
    beside its table."""
    for artifact in artifacts:
        if artifact.output.uri and not artifact.removed:
            yield (
                artifact.output.uri.rpartition("/")[0]
                if artifact.kind == ArtifactKind.SINK
                else artifact.output.uri
            )


def _nouns(project: ArchiveContents) -> Iterator[_Moved]:
    yield from project.pipelines
    # before their runs, because the jobs of a finished run leave the memory together with the run
    yield from project.job_runs
    yield from project.runs
    yield from project.artifacts
    yield from project.aliases


def _check(project: ArchiveContents) -> None:
    """Check the content of an archive. Raises InputError for another format version and for ids that
    Gridmill does not create, and UnsafePathError for folders that do not belong to versions of the
    archive."""
    if project.format != FORMAT:
        raise InputError(
            f"the archive has format {project.format}; this version of Gridmill reads format {FORMAT}",
            hint="Update Gridmill.",
        )
    _check_runs(project)
    names = {artifact.name for artifact in project.artifacts}
    for uri in project.uris:
        parts: list[Any] = uri.split("/")
        if len(parts) < 3 or "/".join(parts[1:3]) not in names or any(p in ("", ".", "..") for p in parts):
            raise UnsafePathError(f"the archive has a folder at a place that is not allowed: {uri!r}")
    for uri in _folders(project.artifacts):
        if uri not in project.uris:
            raise UnsafePathError(f"a version of the archive is at a place that is not allowed: {uri!r}")


def _check_runs(project: ArchiveContents) -> None:
    """Check the ids of runs, jobs and versions, because folders have these names. Raises InputError for an
    id that Gridmill does not create."""
    for run in project.runs:
        check_name("pipeline", run.pipeline)
        if not _NUMBER.fullmatch(run.id.removeprefix(f"{run.pipeline}-")):
            raise _unknown_id("run", run.id, f"{run.pipeline}-NUMBER")
    runs = {run.id for run in project.runs}
    for job in project.job_runs:
        if job.run_id not in runs or not job.id.startswith(f"{job.run_id}/") or ".." in job.id:
            raise _unknown_id("job", job.id, "RUN/JOB with a run of the archive")
    for version in project.artifacts:
        if version.id != f"{version.name}@{version.number}" or not _MAKER.fullmatch(version.run_id):
            raise _unknown_id("version", version.id, "PIPELINE/JOB@NUMBER, made by PIPELINE-NUMBER")


def _unknown_id(what: str, found: str, form: str) -> InputError:
    return InputError(
        f"the archive has a {what} with the id {found!r}, but the id of a {what} has the form {form}",
        hint="The archive was changed or damaged. Back up the project again.",
    )
