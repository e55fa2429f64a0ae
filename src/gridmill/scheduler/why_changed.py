"""This module explains why a job executes (what changed since an earlier version) and selects its code
files. All functions of this module are pure.

The code of a job consists of the files that it declares as inputs, or of all code files of the project.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath

from gridmill.domain.amounts import show_count
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job
from gridmill.domain.provenance import FOLDER_MARK, HASHED, CodeFile, Provenance
from gridmill.domain.sql_statement import Given
from gridmill.errors import InputError

_SHOWN = 3
_LONG = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadVersion:
    """A version that a job reads, with the inputs from which it was made if they are known."""

    artifact: Artifact
    provenance: Provenance | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenanceComparison:
    """The comparison of a job's present provenance with the provenance of an earlier version, with the
    versions and the code files that belong to each of the two. `code_before` is None if the earlier files
    are no longer known."""

    job: str
    now: Provenance
    before: Provenance
    inputs_now: Mapping[str, ReadVersion]
    inputs_before: Mapping[str, ReadVersion]
    code_now: Mapping[str, str]
    code_before: Mapping[str, str] | None


def why_changed(compared: ProvenanceComparison) -> tuple[str, ...]:
    """Return the differences between the two provenances as texts, the most informative text first. The
    result is empty if there are no differences."""
    return tuple(_differences(compared))


def _differences(compared: ProvenanceComparison) -> Iterator[str]:
    now, before = compared.now, compared.before
    if now.format != before.format:
        yield "this version of Gridmill computes jobs of this kind differently"
    fields = list(_changed(before.declared, now.declared))
    parameters = {name: (before.parameters.get(name), now.parameters.get(name)) for name in now.parameters}
    parameters = {name: both for name, both in parameters.items() if both[0] != both[1]} if fields else {}
    recorded = {name: both for name, both in parameters.items() if both[0] is not None}
    yield from (
        f"parameter `{name}` changed from {_given(a)} to {_given(b)}" for name, (a, b) in recorded.items()
    )
    own = [one for one in fields if not _follows(one, before.declared, now.declared, recorded)]
    if own:
        yield f"`{compared.job}` changed: {_several([_field(one, before, now) for one in own])}"
    yield from _inputs(compared)
    if compared.code_before is None and before.code != now.code:
        yield "the code changed"
    else:
        yield from _files("file", compared.code_before or {}, compared.code_now)
    yield from _files("source file", before.source, now.source)


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    return (name for name in sorted({*before, *now}) if before.get(name) != now.get(name))


def _field(name: str, before: Provenance, now: Provenance) -> str:
    """Return the change of a field, such as `training.trees 100 -> 200`. If a value is long or missing, the
    function returns only the name of the field."""
    both = (before.declared.get(name), now.declared.get(name))
    texts = [one for one in both if one and not one.startswith(HASHED) and "\n" not in one]
    if len(texts) < len(both) or sum(map(len, texts)) > _LONG:
        return name
    return f"{name} {texts[0]} -> {texts[1]}"


def _follows(
    name: str,
    before: Mapping[str, str],
    now: Mapping[str, str],
    parameters: Mapping[str, tuple[Given | None, Given | None]],
) -> bool:
    """Return whether the change of a field follows only from the changed values of these parameters. If only
    the hashes of a long text are known, a change of this text is treated as a result of the parameters."""
    was, is_ = before.get(name), now.get(name)
    if was is None or is_ is None or not parameters:
        return False
    if was.startswith(HASHED) or is_.startswith(HASHED):
        return True
    for old, new in parameters.values():
        was = was.replace(_given(old), _given(new))
    return was == is_


def _given(value: Given | None) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_given(one) for one in value)}]"
    return str(value)


def _inputs(compared: ProvenanceComparison) -> Iterator[str]:
    before, now = compared.before.inputs, compared.now.inputs
    for name in sorted({*before, *now}):
        if name not in before:
            yield f"input `{name}` is new"
        elif name not in now:
            yield f"input `{name}` is not read any more"
        elif before[name] != now[name]:
            yield _input(name, compared.inputs_before.get(name), compared.inputs_now.get(name))


def _input(name: str, before: ReadVersion | None, now: ReadVersion | None) -> str:
    if before is None or now is None:
        return f"input `{name}` changed"
    if before.provenance is not None and now.provenance is not None:
        texts = list(_counted(before.provenance.source, now.provenance.source))
        if texts:
            return f"input `{name}` has {' and '.join(texts)}"
    rows = (before.artifact.output.rows, now.artifact.output.rows)
    if before.artifact.output.table_version is not None and None not in rows and rows[0] != rows[1]:
        return f"input `{name}` has {rows[1]:,} rows, and had {rows[0]:,}"
    return f"input `{name}` changed: {now.artifact.id} instead of {before.artifact.id}"


def _counted(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    # if there are very many files, only their folders are recorded, with names that end with `/`
    if any(name.endswith("/") for name in (*before, *now)):
        more = _count(now) - _count(before)
        if before != now:
            yield show_count(more, "new file") if more > 0 else "changed files"
        return
    new = [name for name in now if name not in before]
    gone = [name for name in before if name not in now]
    other = [name for name in now if name in before and now[name] != before[name]]
    if new:
        yield show_count(len(new), "new file")
    if other:
        yield f"{show_count(len(other), 'changed file')}"
    if gone:
        yield f"{show_count(len(gone), 'file')} less"


def _count(folders: Mapping[str, str]) -> int:
    numbers = (digest.rpartition(" ")[2] if name.endswith("/") else "1" for name, digest in folders.items())
    return sum(map(int, numbers))


def _files(what: str, before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    verbs = {
        "changed": [name for name in now if name in before and now[name] != before[name]],
        "is new": [name for name in now if name not in before],
        "was deleted": [name for name in before if name not in now],
    }
    for verb, names in verbs.items():
        # a folder: if there are very many files, only their folders are recorded
        if len(names) == 1 and names[0].endswith("/"):
            yield f"{what}s in {names[0]} changed"
        elif len(names) == 1:
            yield f"{what} {names[0]} {verb}"
        elif names:
            several = {"is new": "are new", "was deleted": "were deleted"}.get(verb, verb)
            counted = "folder" if any(name.endswith("/") for name in names) else what
            yield f"{len(names)} {counted}s {several}: {_several(sorted(names))}"


def _several(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def together(reasons: Iterable[str], with_version: str) -> str:
    """Return one line with the reasons and the version that was compared."""
    text = "; ".join(reasons) or "it was made from the same inputs"
    return f"{text} (compared with {with_version})"


_NO_CODE = (".gitignore", ".gitattributes", ".gridmillignore")


def files_read(
    job: Job, files: Sequence[CodeFile], *, file: str, data: Iterable[str], folder: str
) -> Mapping[str, str]:
    """Return the hashes of the files of the code bundle that the code of the job reads, by name.

    If the job declares `inputs`, the result contains the files that `inputs` and other fields of the job
    name. Without `inputs`, the result contains all files except pipeline files (`file` is the pipeline's own
    file), the files in `data`, and ignore files such as `.gitignore`. `data` has the paths and patterns of
    files that sinks load, relative to `folder`. Empty folders are never included. Raises InputError if an
    input names no file.
    """
    every = {one.name: one for one in files if not one.digest.endswith(FOLDER_MARK)}
    if job.reads_files:
        return {name: every[name].digest for name in sorted(_declared(job, every))}
    loaded = [pattern for one in data if (pattern := _inside(one, folder))]
    return {
        name: one.digest
        for name, one in every.items()
        if not one.pipeline
        and name != file
        and PurePosixPath(name).name not in _NO_CODE
        and not any(_pattern(pattern, below=False).fullmatch(name) for pattern in loaded)
    }


def _declared(job: Job, every: Mapping[str, CodeFile]) -> Iterator[str]:
    for written in job.reads_files:
        pattern = _pattern(posixpath.normpath(written), below=True)
        matches = [name for name in every if written in (".", "./") or pattern.fullmatch(name)]
        if not matches:
            raise InputError(
                f"the input {written!r} of job {job.name!r} matches no file of the code bundle",
                hint="Paths are relative to the folder of the pipeline. Files that .gitignore or "
                ".gridmillignore ignores are not in the bundle.",
                place=f"jobs.{job.name}.{job.kind}.inputs",
            )
        yield from matches
    yield from (name for name in files_named(job) if name in every)


def files_named(job: Job) -> tuple[str, ...]:
    """Return the files that fields other than `inputs` name: scripts, models, requirements."""
    training = job.training
    scripts = (training.script, training.predict) if training is not None else ()
    given = (training.file, training.signature, training.samples) if training is not None else ()
    files = (job.environment, *given, *(script.partition(":")[0] for script in scripts if script))
    return tuple(posixpath.normpath(name) for name in files if name)


def _inside(written: str, folder: str) -> str:
    """Return a path or pattern relative to the folder of the project. The result is empty if the path leads
    outside this folder, or if the folder of an absolute path is unknown."""
    if posixpath.isabs(written) and not posixpath.isabs(folder):
        return ""
    path = posixpath.relpath(written, folder) if posixpath.isabs(written) else written
    path = posixpath.normpath(path)
    return "" if path == ".." or path.startswith("../") else path


@cache
def _pattern(glob: str, *, below: bool) -> re.Pattern[str]:
    """Return the regular expression for the names that a glob matches. In the glob, `*` matches no slash,
    and `**` matches any folders. With `below`, a folder matches everything in it."""
    parts: list[str] = []
    at = 0
    while at < len(glob):
        if glob.startswith("**/", at):
            parts.append("(?:.*/)?")
            at += 3
        elif glob.startswith("**", at):
            parts.append(".*")
            at += 2
        elif glob[at] == "*":
            parts.append("[^/]*")
            at += 1
        elif glob[at] == "?":
            parts.append("[^/]")
            at += 1
        elif glob[at] == "[" and (end := glob.find("]", at + 2)) > 0:
            inside = glob[at + 1 : end].replace("\\", r"\\")
            parts.append(f"[{'^' + inside[1:] if inside[0] == '!' else inside}]")
            at = end + 1
        else:
            parts.append(re.escape(glob[at]))
            at += 1
    return re.compile("".join(parts) + ("(?:/.*)?" if below else ""), re.DOTALL)
