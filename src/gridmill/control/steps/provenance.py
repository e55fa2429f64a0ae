"""This module computes the provenance of a job's result, and finds an earlier version with the same
provenance.

If there is no such version, the module reports why the job executes.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from hashlib import sha256
from typing import Any, cast

from gridmill.codec import encode, fingerprint, to_builtins
from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Transaction
from gridmill.control.state import CodeFiles
from gridmill.control.steps.latest import latest_of
from gridmill.control.steps.references import fetch_artifact
from gridmill.domain.artifact import Artifact, Input
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job
from gridmill.domain.provenance import FIRST, HASHED, MOST_FILES, SAME, TEXT_BYTES, CodeList, Provenance
from gridmill.domain.run import JobRun, Run
from gridmill.domain.sink import SinkSpec
from gridmill.domain.sink_status import WAITING
from gridmill.domain.source import Format, Source
from gridmill.domain.training import TrainingSpec
from gridmill.errors import NotFoundError
from gridmill.ports.storage import FileStat
from gridmill.scheduler.why_changed import (
    ProvenanceComparison,
    ReadVersion,
    files_named,
    files_read,
    together,
    why_changed,
)

FORMAT = 4
"""The format number, which is part of every fingerprint. The format number is increased when the results of
built-in kinds of jobs change."""
_WITHOUT_EFFECT: Mapping[type, frozenset[str]] = {
    SinkSpec: frozenset({"parts"}),
    Source: frozenset({"headers", "endpoint", "settled_seconds"}),
    TrainingSpec: frozenset({"checkpoint_seconds"}),
}
"""The fields of a job that change how it is executed, but not its result."""
_SECRET = "env."
_SCANNED = 100
_LATER_VERSIONS = 50
_SHORT = 16


def provenance_of(
    code: CodeFiles, run: Run, job_run: JobRun, inputs: tuple[Input, ...], source: Sequence[FileStat]
) -> Provenance:
    """Return the provenance of a job's result in this run. `source` has the files from which a sink loads.

    The provenance contains no other values: no times, no absolute paths, no host, no order of keys, no
    defaults of fields. Raises InputError for a declared input that names no file, and StorageError if the
    code bundle does not exist.
    """
    job = job_run.job
    kind = job.kind
    declared = dict(_declared(job.spec, kind.value))
    code_list = code_of(code, run, job)
    loaded = {stat.name or stat.path: stat.content or _look_of(stat) for stat in source}
    read = {entry.name: entry.artifact.id for entry in inputs}
    name = job_run.name
    whole = fingerprint(FORMAT, name, kind, declared, code_list.hash, loaded, read)
    return Provenance(
        name=name,
        fingerprint=whole,
        format=FORMAT,
        declared={name: _text(name, value) for name, value in declared.items()},
        parameters=job.parameters,
        inputs=read,
        code=code_list.hash,
        source=_bounded(loaded),
        created=code.timeline.now(),
    )


def _look_of(stat: FileStat) -> str:
    return f"{stat.size_bytes} {stat.mtime_ns} {stat.ctime_ns}"


def code_of(code: CodeFiles, run: Run, job: Job) -> CodeList:
    """Return the files of the code bundle that the job's code reads. Jobs that read the same files share the
    result."""
    if not job.runs_code or run.bundle is None:
        return CodeList(hash="")
    reader = fingerprint(run.bundle, run.file, run.data, run.folder, job.reads_files, files_named(job))
    result = code.read.get(reader)
    if result is None:
        every = code.files.get(run.bundle)
        if every is None:
            every = code.files[run.bundle] = code.storage.code_files(run.bundle)
        files = files_read(job, every, file=run.file, data=run.data, folder=run.folder)
        result = CodeList(hash=fingerprint(files), files=_bounded(files), created=code.timeline.now())
        code.read[reader] = result
    return result


def _declared(noun: Any, path: str) -> Iterator[tuple[str, object]]:  # noqa: ANN401  any part of a declaration
    """Return each field whose value differs from its default, by its path, such as `command.run`. If a later
    version of Gridmill adds a field, the provenance does not change as long as the field has its default."""
    empty = True
    for name, default in _defaults(cast(Hashable, type(noun))):
        value = getattr(noun, name)
        if value is not default and value != default:
            empty = False
            yield from _value(value, f"{path}.{name}")
    if empty:
        yield path, {}


def _value(value: Any, path: str) -> Iterator[tuple[str, object]]:  # noqa: ANN401  as _declared
    if is_dataclass(value):
        yield from _declared(value, path)
    elif isinstance(value, Mapping) and value:
        for key in sorted(value, key=str):
            yield from _value(value[key], f"{path}.{key}")
    elif isinstance(value, tuple | list) and any(is_dataclass(one) for one in value):
        for number, one in enumerate(value):
            yield from _value(one, f"{path}[{getattr(one, 'name', None) or number}]")
    else:
        yield path, _as_meant(to_builtins(value))


def _as_meant(value: object) -> object:
    """Return a multi-line text without the blanks that the notations of YAML add at its ends."""
    return value.strip() if isinstance(value, str) and "\n" in value and value.strip() else value


@cache
def _defaults(made: Hashable) -> Sequence[tuple[str, object]]:
    """Return the fields of a class that affect results, with their defaults."""
    kind = cast(type, made)
    without_effect = _WITHOUT_EFFECT.get(kind, frozenset())
    return [(one.name, _default(one)) for one in fields(kind) if one.name not in without_effect]


def _default(one: Field[Any]) -> object:
    if one.default is not MISSING:
        return one.default
    return one.default_factory() if one.default_factory is not MISSING else MISSING


def _text(name: str, value: object) -> str:
    """Return the value as it is shown to users. Long texts and environment variables, which may be secrets,
    are shown as a hash."""
    result = value if isinstance(value, str) else encode(value).decode()
    if len(result) > TEXT_BYTES or _SECRET in name:
        return HASHED + sha256(result.encode("utf-8", "surrogateescape")).hexdigest()[:_SHORT]
    return result


def _bounded(files: Mapping[str, str]) -> Mapping[str, str]:
    """Return the files by name, with a limited number of entries. If there are more files, each top folder
    (`src/`) is one entry, with the number of its files."""
    if len(files) <= MOST_FILES:
        return {name: digest[:_SHORT] + digest[64:] for name, digest in files.items()}
    folders: dict[str, list[str]] = {}
    for name in sorted(files):
        folder = name.partition("/")[0] + "/" if "/" in name else "./"
        folders.setdefault(folder, []).append(f"{name} {files[name]}")
    if len(folders) > MOST_FILES:
        folders = {"./": [one for some in folders.values() for one in some]}
    return {name: f"{fingerprint(some)[:_SHORT]} {len(some)}" for name, some in folders.items()}


def find_provenance(catalog: Catalog, name: str, whole: str) -> Provenance | None:
    """Return the provenance record of that name with this fingerprint."""
    if catalog.ledger.has_no_provenance(name):
        return None
    key = f"{name}#{whole}"
    provenance = catalog.provenances.get(key)
    if provenance is None:
        provenance = catalog.ledger.read(Provenance, key)
        if provenance is None:
            return None
        catalog.provenances[key] = provenance
    return provenance


def find_code(catalog: Catalog, whole: str) -> CodeList | None:
    """Return the list of code files with this hash (an empty hash: no code). The result is None if the list
    is unknown."""
    code_list = catalog.code_lists.get(whole)
    if code_list is None and whole:
        code_list = catalog.ledger.read(CodeList, whole)
        if code_list is None:
            return None
        catalog.code_lists[whole] = code_list
    return code_list or CodeList(hash="")


def note_provenance(catalog: Catalog, transaction: Transaction, now: Provenance, code: CodeList) -> None:
    """Record the provenance and the files of its code, unless they are already recorded."""
    provenance = find_provenance(catalog, now.name, now.fingerprint) or transaction.get(Provenance, now.id)
    if provenance is None:
        transaction.put(now)
    if now.code and find_code(catalog, now.code) is None and not transaction.get(CodeList, now.code):
        transaction.put(code)


def look_up_provenance(catalog: Catalog, transaction: Transaction, job_run: JobRun) -> Provenance | None:
    """Return the provenance record of the job, ready to be changed. The result is None if there is no such
    record."""
    key = f"{job_run.name}#{job_run.fingerprint}"
    return transaction.get(Provenance, key) or catalog.ledger.look_up(Provenance, key)


def note_made(
    catalog: Catalog, transaction: Transaction, provenance: Provenance | None, artifact_id: str
) -> None:
    """Record the version with this provenance, whether it was made or found unchanged."""
    if provenance is not None and provenance.artifact != artifact_id:
        after = replace(provenance, artifact=artifact_id)
        transaction.put(after)
        catalog.provenances[after.id] = after


def restorable(catalog: Catalog, job_run: JobRun, now: Provenance) -> Artifact | None:
    """Return the newest earlier version with the same provenance that was not removed. The result is None if
    only the job itself can find out whether its source has new data."""
    newest = catalog.newest_artifact(job_run.name)
    if newest is None or (job_run.job.sink and job_run.job.sink.source.live):
        return None
    # no version is restored, because a file that was still changing may be stable now, even if clocks differ
    if newest.output.details.get(WAITING):
        return None
    if newest.fingerprint == now.fingerprint and not newest.removed:
        return newest
    result = _made_from_the_same(catalog, now)
    if result is not None and job_run.job.sink is not None:
        return result if _may_go_back(catalog, job_run.job, now, result, newest) else None
    return result


def _made_from_the_same(catalog: Catalog, now: Provenance) -> Artifact | None:
    provenance = find_provenance(catalog, now.name, now.fingerprint)
    if provenance is not None and provenance.artifact:
        version = _fetched(catalog, provenance.artifact)
        if version is not None and not version.removed:
            return version
    elif provenance is None:
        return None
    versions = catalog.ledger.read_all(Artifact, parent=now.name, newest_first=True, limit=_SCANNED)
    return next((a for a in versions if a.fingerprint == now.fingerprint and not a.removed), None)


def _fetched(catalog: Catalog, artifact_id: str) -> Artifact | None:
    try:
        return fetch_artifact(catalog, artifact_id)
    except NotFoundError:  # no error, because the record of an old version may have been deleted
        return None


def _may_go_back(catalog: Catalog, job: Job, now: Provenance, artifact: Artifact, newest: Artifact) -> bool:
    """Return whether a new load of a sink would make the same table as the version `artifact`. The rows of a
    deleted file stay in the table. Therefore the result is False if a later version has loaded a file that
    no longer exists."""
    if job.sink is None or job.sink.source.format == Format.FILES or job.sink.retain is not None:
        return artifact.id == newest.id
    if newest.number - artifact.number > _LATER_VERSIONS:
        return False
    for number in range(artifact.number + 1, newest.number + 1):
        later = _fetched(catalog, f"{now.name}@{number}")
        made = find_provenance(catalog, now.name, later.fingerprint) if later is not None else None
        if (
            made is None
            or not made.source.keys() <= now.source.keys()
            or any(n[-1:] == "/" for n in made.source)
        ):
            return False
    return True


def is_declared_alike(catalog: Catalog, name: str, one: str, other: str) -> bool:
    """Return whether the declarations of two fingerprints of a job are equal."""
    if one == other:
        return True
    a, b = find_provenance(catalog, name, one), find_provenance(catalog, name, other)
    return a is not None and b is not None and (a.format, a.declared) == (b.format, b.declared)


def why_restored(same: Artifact) -> str:
    """Return the reason why a job is restored and does not execute."""
    return f"{SAME} {same.id}"


def why_executes(
    catalog: Catalog, code: CodeFiles, run: Run, job_run: JobRun, now: Provenance, *, broken: str = ""
) -> str:
    """Return the reason why a job executes instead of being restored: the changes since its latest version,
    or the rule by which it always executes. `broken` is the problem with the files of an earlier version,
    which would be restored if its files were complete."""
    if job_run.probe is not None:
        return "a probe runs the job on a part of its data"
    if job_run.force:
        return "`--force`"
    ruled = job_run.job.why_executed(scheduled=run.scheduled) or broken
    if ruled:
        return ruled
    if catalog.newest_artifact(job_run.name) is None:
        return FIRST
    latest = latest_of(catalog, job_run.name)
    if latest is None:
        return "all earlier versions were removed"
    if latest.removed:
        return f"{latest.id} was removed"
    reasons = list(_reasons(catalog, code, run, job_run, now, latest))
    return together(reasons, latest.id) if reasons else _no_change(job_run.job, latest)


def _no_change(job: Job, latest: Artifact) -> str:
    if job.sink is not None and job.sink.source.live:
        return "the job reads its source in every run, because only the job can find new data"
    if latest.output.details.get(WAITING):
        return f"files of the source were still changing when {latest.id} was made"
    return f"{latest.id} cannot be restored: files that were loaded since do not exist now"


def _reasons(
    catalog: Catalog, code: CodeFiles, run: Run, job_run: JobRun, now: Provenance, latest: Artifact
) -> Iterator[str]:
    before = find_provenance(catalog, job_run.name, latest.fingerprint)
    if before is None:
        yield f"{latest.id} has no record of its inputs"
        return
    code_list, before_code = code_of(code, run, job_run.job), find_code(catalog, before.code)
    yield from why_changed(
        ProvenanceComparison(
            job=job_run.job.name,
            now=now,
            before=before,
            inputs_now=_versions(catalog, now),
            inputs_before=_versions(catalog, before),
            code_now=code_list.files,
            code_before=before_code.files if before_code is not None else None,
        )
    )


def _versions(catalog: Catalog, provenance: Provenance) -> Mapping[str, ReadVersion]:
    versions = {name: _fetched(catalog, artifact_id) for name, artifact_id in provenance.inputs.items()}
    return {
        name: ReadVersion(
            artifact=artifact, provenance=find_provenance(catalog, artifact.name, artifact.fingerprint)
        )
        for name, artifact in versions.items()
        if artifact is not None
    }
