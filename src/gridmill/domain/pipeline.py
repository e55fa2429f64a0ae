"""A pipeline: jobs and their dependencies, the folder it comes from, and the lines of its fields.

The lines are kept for errors that are found after the file was read. `Origin` is the folder to which the
pipeline's name belongs.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path, PurePath

from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job
from gridmill.domain.project import DEFAULT
from gridmill.domain.resource import Resource
from gridmill.domain.retention import Retention
from gridmill.domain.schedule import ScheduleSpec
from gridmill.domain.sql_statement import Given
from gridmill.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldLines:
    """`at` has the line (from 1) of a field by its path, such as `jobs.features.dataset.label`. A field that
    is not in it is written in the line of the field that it belongs to."""

    file: str
    at: Mapping[str, int] = field(default_factory=dict)

    def place(self, path: str) -> str:
        """`FILE:LINE: PATH`, or the path alone where no part of it is written in the file."""
        line = self.line(path)
        return path if line is None else f"{self.file}:{line}: {path}"

    def line(self, path: str) -> int | None:
        """The line of the field, or of the nearest field around it; None for another job."""
        while path and path not in self.at:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.at.get(path)

    def of_job(self, name: str) -> "FieldLines":
        """Those of one job."""
        begin = f"jobs.{name}"
        own = {
            path: line
            for path, line in self.at.items()
            if path.startswith(begin) and path[len(begin) : len(begin) + 1] in ("", ".")
        }
        return FieldLines(file=self.file, at=own)


def place_message(message: str, kind: str, job: str, lines: FieldLines | None) -> str:
    """A job's message that begins with a field of its kind (`dataset.sql: ...`), with file and line."""
    path, sign, rest = message.partition(": ")
    if lines is None or not sign or path.partition(".")[0] != kind or " " in path:
        return message
    return f"{lines.place(f'jobs.{job}.{path}')}: {rest}"


@contextmanager
def with_lines(lines: FieldLines | None, pipeline: str) -> Iterator[None]:
    """An error about a field of a job, raised within, also has the file and the line."""
    try:
        yield
    except InputError as error:
        path = error.place.removeprefix(f"{pipeline}: ")
        if lines is not None and path.startswith("jobs."):
            error.place = lines.place(path)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSource:
    """What a pipeline was read from, so that it can be read again with other values for its parameters.

    `document` counts the YAML documents of `text` from 0, `file` is how messages call it, `values` are the
    words that were given in place of the parameters' defaults. `lines` has the line of each field below
    `jobs`, by its path.
    """

    text: str
    file: str
    lines: Mapping[str, int] = field(default_factory=dict)
    document: int = 0
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """`folder` is where the file lies (relative source paths and the code bundle start there), on the machine
    `host` (empty: not known). Its name belongs to that folder.

    `schedule` says when a kept pipeline runs by itself, under `gridmill up`; jobs may have their own.
    `at` is the site of jobs that name neither a site nor a resource (default: this machine, `local`).
    `project` is whose share of the grid and whose quota its runs count against; others than `default` are
    made by `gridmill configure project`. `bundle` is the hash of the code bundle that commands run in, when
    one was made; `commit` the Git commit that the folder had checked out (empty: none). `retain` is for jobs
    that do not say it themselves. `written` is there where the pipeline was read from a file. `awaits` are
    the times that only a schedule gives (`due`, `due_before`) and that it was not given: it is read again
    with them for each run. `applied` is false for a pipeline that was only run: the control node keeps it as
    it was declared for its last run, and starts none of its schedules. `data` are the files of its folder
    that its sinks load, as they name them; it is set where some of its jobs are left out.
    """

    name: str
    jobs: tuple[Job, ...]
    description: str = ""
    parameters: Mapping[str, Given] = field(default_factory=dict)
    resources: tuple[Resource, ...] = ()
    retain: Retention | None = None
    schedule: ScheduleSpec | None = None
    at: str | None = None
    project: str = DEFAULT
    folder: str = ""
    host: str = ""
    bundle: str | None = None
    commit: str = ""
    written: PipelineSource | None = None
    awaits: tuple[str, ...] = ()
    applied: bool = True
    data: tuple[str, ...] | None = None

    @property
    def lines(self) -> FieldLines | None:
        """Where its fields are written; None where it was not read from a file."""
        return None if self.written is None else FieldLines(file=self.written.file, at=self.written.lines)

    @property
    def path(self) -> Path | None:
        """The file that declares it, on the machine `host`; None where it was not read from a file."""
        if self.written is None or not self.folder:
            return None
        return Path(self.folder) / Path(self.written.file).name

    def job(self, name: str) -> Job:
        """The job of that name. Raises KeyError."""
        return next(job for job in self.jobs if job.name == name)

    @property
    def file(self) -> str:
        """The name of the file that it was read from, in its folder; empty where it was not read from one."""
        return PurePath(self.written.file).name if self.written is not None else ""

    @property
    def loads(self) -> tuple[str, ...]:
        """The paths and patterns of files that its sinks load, as they are written."""
        if self.data is not None:
            return self.data
        paths = (path for job in self.jobs if job.sink is not None for path in job.sink.source.project_paths)
        return tuple(dict.fromkeys(paths))

    @property
    def schedules(self) -> Mapping[str, ScheduleSpec]:
        """The schedule of the pipeline under its name, and those of its jobs under `PIPELINE/JOB`."""
        jobs = {f"{self.name}/{job.name}": job.schedule for job in self.jobs}
        return {name: spec for name, spec in {self.name: self.schedule, **jobs}.items() if spec is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The pipeline `name` is submitted from `folder` of the machine `host` (empty: it is not known).

    Its tables and versions are found by its name alone: a pipeline of that name from another folder would
    write into them.
    """

    name: str
    folder: str
    host: str = ""
