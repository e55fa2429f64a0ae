"""This module has the records of the preflight, which checks a pipeline against its data before it runs: the
request and the result."""

from collections.abc import Collection, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any

from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.graph import order
from gridmill.domain.job import Job, JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.views import PlannedJob
from gridmill.errors import InputError, explained


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightRequest:
    """A request to check the jobs of a pipeline against their data. `jobs` are jobs of one pipeline; each
    job follows the jobs that it needs. Relative source paths begin at the folder `folder`.

    `versions` are tables and models that the run will not change, by the names that the jobs use for them.
    `earlier` are the present versions of the sinks and datasets that will run again. The files of all these
    versions are below the storage root `root`. Jobs in `unchanged` do not run and are not checked. `late`
    are sinks whose files may be written by a command before the sinks load them, each with the name of this
    command.
    """

    folder: str
    jobs: tuple[Job, ...]
    root: str = ""
    versions: Mapping[str, Artifact] = field(default_factory=dict)
    earlier: Mapping[str, Artifact] = field(default_factory=dict)
    unchanged: tuple[str, ...] = ()
    late: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightFinding:
    """A problem of a job, found at the field with the path `path` (`dataset.sql`). `certain` is true if a
    run would certainly fail because of the problem. If `certain` is false, a run may succeed or fail,
    because the check read only a part of the data."""

    job: str
    path: str
    message: str
    hint: str = ""
    certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UncheckedJob:
    """A job that was not checked against its data, with the reason."""

    job: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightResult:
    """The result of the checks of a pipeline. `error` has the same form as the result of `errors.to_body`.
    `inferred` has sentences, by job, about facts that are not declared and that the job derives from its
    data."""

    findings: tuple[PreflightFinding, ...] = ()
    unchecked: tuple[UncheckedJob, ...] = ()
    inferred: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None


_NONE: Mapping[str, Artifact] = MappingProxyType({})


def preflight_question(
    pipeline: Pipeline,
    *,
    root: str = "",
    versions: Mapping[str, Artifact] = _NONE,
    earlier: Mapping[str, Artifact] = _NONE,
    unchanged: Collection[str] = (),
) -> PreflightRequest | None:
    """Return the request with which the jobs of a pipeline are checked before their run. The result is None
    if there is no job to check. Raises PipelineError if the jobs form a cycle."""
    jobs = tuple(pipeline.job(name) for name in order(pipeline))
    if all(job.kind == JobKind.COMMAND or job.name in unchanged for job in jobs):
        return None
    return PreflightRequest(
        folder=pipeline.folder,
        jobs=jobs,
        root=root,
        versions=dict(versions),
        earlier=dict(earlier),
        unchanged=tuple(sorted(unchanged)),
        late=written_late(pipeline, unchanged),
    )


def written_late(pipeline: Pipeline, unchanged: Collection[str] = ()) -> Mapping[str, str]:
    """Return the sinks whose files a command of the run may write before the sinks load them, each with the
    name of such a command."""
    late: dict[str, str] = {}
    for name in order(pipeline):
        job = pipeline.job(name)
        if job.command is not None and name not in unchanged:
            late[name] = name
        elif before := [late[need] for need in job.all_needs if need in late]:
            late[name] = before[0]
    return {name: command for name, command in late.items() if pipeline.job(name).sink is not None}


def with_findings(planned: PlannedJob, pipeline: Pipeline, checked: PreflightResult) -> PlannedJob:
    """Return the planned job with the findings of the preflight."""
    findings = [one for one in checked.findings if one.job == planned.job]
    certain = [show_finding(pipeline, one) for one in findings if one.certain]
    doubts = [show_finding(pipeline, one) for one in findings if not one.certain]
    return replace(
        planned,
        inferred=checked.inferred.get(planned.job, ()),
        problem="; ".join(certain) or planned.problem,
        doubt="; ".join(doubts) or ("" if certain else planned.doubt),
    )


def show_finding(pipeline: Pipeline, finding: PreflightFinding) -> str:
    """Return the text of the finding, with its place in the file and its hint."""
    path = f"jobs.{finding.job}.{finding.path}"
    place = pipeline.lines.place(path) if pipeline.lines is not None else path
    return explained(InputError(finding.message, hint=finding.hint, place=place))
