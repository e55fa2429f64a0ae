"""This module defines a pipeline: jobs and their dependencies, the folder of its file, and the lines of its
fields.

The line numbers are stored for errors that are found after the file was read. `Origin` is the folder to
which the name of a pipeline belongs.
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
    """The line numbers of the fields in a pipeline file. `at` has the line (from 1) of each field by its
    path, such as `jobs.features.dataset.label`. If `at` has no line for a field, the line of the enclosing
    field is used.
    """

    file: str
    at: Mapping[str, int] = field(default_factory=dict)

    def place(self, path: str) -> str:
        """Return the place of a field as text with the file, the line and the path, or only the path if the
        file contains no part of the path."""
        line = self.line(path)
        return path if line is None else f"{self.file}:{line}: {path}"

    def line(self, path: str) -> int | None:
        """Return the line of the field, or of the nearest field that contains it. The result is None if the
        field belongs to another job."""
        while path and path not in self.at:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.at.get(path)

    def of_job(self, name: str) -> "FieldLines":
        """Return the line numbers of the fields of one job."""
        begin = f"jobs.{name}"
        own = {
            path: line
            for path, line in self.at.items()
            if path.startswith(begin) and path[len(begin) : len(begin) + 1] in ("", ".")
        }
        return FieldLines(file=self.file, at=own)


def place_message(message: str, kind: str, job: str, lines: FieldLines | None) -> str:
    """Return a message about a job with the file and the line of a field added to each of its lines that
    begins with such a field (`dataset.sql: ...`)."""
    if lines is None:
        return message
    return "\n".join(_place_line(line, kind, job, lines) for line in message.split("\n"))


def _place_line(line: str, kind: str, job: str, lines: FieldLines) -> str:
    path, sign, rest = line.partition(": ")
    field_path = path.lstrip()
    if not sign or field_path.partition(".")[0] != kind or " " in field_path:
        return line
    return f"{path[: -len(field_path)]}{lines.place(f'jobs.{job}.{field_path}')}: {rest}"


@contextmanager
def with_lines(lines: FieldLines | None, pipeline: str) -> Iterator[None]:
    """Add the file and the line to an error that the `with` block raises about a field of a job."""
    try:
        yield
    except InputError as error:
        path = error.place.removeprefix(f"{pipeline}: ")
        if lines is not None and path.startswith("jobs."):
            error.place = lines.place(path)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSource:
    """The text of a pipeline file. From this text, the pipeline can be read again with other values for its
    parameters.

    `document` is the number of the YAML document in `text`, counted from 0. `file` is the name of the
    pipeline file that messages show. `values` are the texts that replaced the default values of the
    parameters. `lines` has the line of each field below `jobs`, by the path of the field.
    """

    text: str
    file: str
    lines: Mapping[str, int] = field(default_factory=dict)
    document: int = 0
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The jobs of a pipeline with the settings that apply to all of them. `folder` is the folder of the
    pipeline file: relative source paths and the code bundle begin there. `host` is the machine on which the
    folder is (empty: unknown). The name of the pipeline belongs to the folder `folder` of the machine
    `host`.

    `schedule` is the schedule by which an applied pipeline runs under `gridmill up`; jobs may have schedules
    of their own. `at` is the site of all jobs that name neither a site nor a resource (default: this
    machine, `local`). `project` is the project whose share of the grid and whose quota the runs of the
    pipeline use; projects other than `default` are made by `gridmill configure project`. `bundle` is the
    hash of the code bundle in which commands run, if the pipeline has one. `commit` is the Git commit that
    is checked out in the folder, or empty if the folder has no Git commit. `retain` applies to jobs that do
    not declare `retain` themselves. `written` has the text of the pipeline file if the pipeline was read
    from a file. `awaits` has the names of time parameters that only a schedule sets (`due`, `due_before`):
    for each run, the pipeline is read again with these times. `applied` is false for a pipeline that was run
    but not applied: the control node stores it as it was declared for its last run, and does not start its
    schedules. `data` has the paths of the files in the folder that the sinks of the pipeline load, as the
    sinks name them. The field is set if some of the pipeline's jobs are left out.
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
        """The line numbers of the fields of the pipeline, or None if the pipeline was not read from a
        file."""
        return None if self.written is None else FieldLines(file=self.written.file, at=self.written.lines)

    @property
    def path(self) -> Path | None:
        """The path of the file that declares the pipeline, on the machine `host`, or None if the pipeline
        was not read from a file."""
        if self.written is None or not self.folder:
            return None
        return Path(self.folder) / Path(self.written.file).name

    def job(self, name: str) -> Job:
        """Return the job of the pipeline that has this name. Raises KeyError."""
        return next(job for job in self.jobs if job.name == name)

    @property
    def file(self) -> str:
        """The name of the pipeline file in its folder; empty if the pipeline was not read from a file."""
        return PurePath(self.written.file).name if self.written is not None else ""

    @property
    def loads(self) -> tuple[str, ...]:
        """The paths and patterns of the files that the sinks of the pipeline load, as declared."""
        if self.data is not None:
            return self.data
        paths = (path for job in self.jobs if job.sink is not None for path in job.sink.source.project_paths)
        return tuple(dict.fromkeys(paths))

    @property
    def schedules(self) -> Mapping[str, ScheduleSpec]:
        """The schedule of the pipeline, under the name of the pipeline, and the schedules of its jobs, each
        under the name `PIPELINE/JOB`."""
        jobs = {f"{self.name}/{job.name}": job.schedule for job in self.jobs}
        return {name: spec for name, spec in {self.name: self.schedule, **jobs}.items() if spec is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The folder and the machine from which the pipeline `name` is submitted. The folder is `folder` on the
    machine `host` (empty: unknown).

    Gridmill finds the tables and versions of a pipeline only by its name, so a pipeline of the same name
    from another folder would write into them.
    """

    name: str
    folder: str
    host: str = ""
