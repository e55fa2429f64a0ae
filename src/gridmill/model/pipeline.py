"""A pipeline: jobs and what each needs."""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path, PurePath

from gridmill.model.job import Job
from gridmill.model.lines import Lines
from gridmill.model.noun import dataclass
from gridmill.model.project import DEFAULT
from gridmill.model.resource import Resource
from gridmill.model.retention import Retention
from gridmill.model.schedule import ScheduleSpec
from gridmill.model.statement import Given


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
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
    written: Written | None = None
    awaits: tuple[str, ...] = ()
    applied: bool = True
    data: tuple[str, ...] | None = None

    @property
    def lines(self) -> Lines | None:
        """Where its fields are written; None where it was not read from a file."""
        return None if self.written is None else Lines(file=self.written.file, at=self.written.lines)

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
        found = (path for job in self.jobs if job.sink is not None for path in job.sink.source.project_paths)
        return tuple(dict.fromkeys(found))

    @property
    def schedules(self) -> Mapping[str, ScheduleSpec]:
        """Its schedule under its name, and those of its jobs under `PIPELINE/JOB`."""
        jobs = {f"{self.name}/{job.name}": job.schedule for job in self.jobs}
        return {name: spec for name, spec in {self.name: self.schedule, **jobs}.items() if spec is not None}
