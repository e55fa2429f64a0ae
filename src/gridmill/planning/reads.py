"""Which files of a project the code of a job reads: those it declares, or all that are code."""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath

from gridmill.errors import InputError
from gridmill.model.job import Job
from gridmill.model.provenance import FOLDER_MARK, CodeFile

_NO_CODE = (".gitignore", ".gitattributes", ".gridmillignore")


def files_read(
    job: Job, files: Sequence[CodeFile], *, file: str, data: Iterable[str], folder: str
) -> Mapping[str, str]:
    """The hashes of the files of the code bundle that the job's code reads, by name.

    With `inputs`: the files that these name, and those that other fields of the job name. Without: all but
    pipeline files (`file` is the pipeline's own), `data` (paths and patterns of files that sinks load,
    relative to `folder`), and rules of what is ignored. Empty folders never count. Raises InputError for an
    input that names no file.
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
        found = [name for name in every if written in (".", "./") or pattern.fullmatch(name)]
        if not found:
            raise InputError(
                f"the input {written!r} of job {job.name!r} names no file of the code bundle",
                hint="Paths are relative to the folder of the pipeline. Files that .gitignore or "
                ".gridmillignore ignores are not in the bundle.",
                place=f"jobs.{job.name}.{job.kind}.inputs",
            )
        yield from found
    yield from (name for name in files_named(job) if name in every)


def files_named(job: Job) -> tuple[str, ...]:
    """Files that other fields than `inputs` name: scripts, models, requirements."""
    training = job.training
    scripts = (training.script, training.predict) if training is not None else ()
    names = (job.environment, training.file if training is not None else None)
    found = (*names, *(script.partition(":")[0] for script in scripts if script))
    return tuple(posixpath.normpath(name) for name in found if name)


def _inside(written: str, folder: str) -> str:
    """A path or pattern relative to the project's folder; empty where it leads out of it, or where the folder
    of an absolute path is not known."""
    if posixpath.isabs(written) and not posixpath.isabs(folder):
        return ""
    path = posixpath.relpath(written, folder) if posixpath.isabs(written) else written
    path = posixpath.normpath(path)
    return "" if path == ".." or path.startswith("../") else path


@cache
def _pattern(glob: str, *, below: bool) -> re.Pattern[str]:
    """The names that a glob matches: `*` matches no slash, `**` any folders. `below`: a folder stands for
    all that lies in it."""
    found: list[str] = []
    at = 0
    while at < len(glob):
        if glob.startswith("**/", at):
            found.append("(?:.*/)?")
            at += 3
        elif glob.startswith("**", at):
            found.append(".*")
            at += 2
        elif glob[at] == "*":
            found.append("[^/]*")
            at += 1
        elif glob[at] == "?":
            found.append("[^/]")
            at += 1
        elif glob[at] == "[" and (end := glob.find("]", at + 2)) > 0:
            inside = glob[at + 1 : end].replace("\\", r"\\")
            found.append(f"[{'^' + inside[1:] if inside[0] == '!' else inside}]")
            at = end + 1
        else:
            found.append(re.escape(glob[at]))
            at += 1
    return re.compile("".join(found) + ("(?:/.*)?" if below else ""), re.DOTALL)
