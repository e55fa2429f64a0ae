"""Records of the preflight, which checks a pipeline against its data before it runs: question and answer."""

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
    """The question of a preflight. `jobs` are jobs of one pipeline, each after the jobs that it needs.
    Relative source paths start at `folder`.

    `versions` are tables and models that the run will not change, by the names that jobs give them. `earlier`
    are the versions of sinks and datasets that will run again. Both are below the storage root `root`.
    `unchanged` jobs do not run and are not checked. `late` are sinks whose files a command may write before
    they are loaded, each with this command.
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
    """A problem of a job, at its field `path` (`dataset.sql`). `certain` means that a run would fail because
    of it. Otherwise a run may fail, because the check read only a part of the data."""

    job: str
    path: str
    message: str
    hint: str = ""
    certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UncheckedJob:
    """A job that was not checked against data, and the reason."""

    job: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightResult:
    """The result of the checks. `error` has the form of `errors.to_body`. `inferred` are sentences, by job,
    on facts that nobody declared and that the job derives from its data."""

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
    """The question of the preflight; None if there is no job to check. Raises PipelineError for a cycle."""
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
    """The sinks whose files a command of the run may write before they are loaded, each with such a
    command."""
    late: dict[str, str] = {}
    for name in order(pipeline):
        job = pipeline.job(name)
        if job.command is not None and name not in unchanged:
            late[name] = name
        elif before := [late[need] for need in job.all_needs if need in late]:
            late[name] = before[0]
    return {name: command for name, command in late.items() if pipeline.job(name).sink is not None}


def with_findings(planned: PlannedJob, pipeline: Pipeline, checked: PreflightResult) -> PlannedJob:
    """The planned job with the findings of the preflight check."""
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
    """The finding with its place in the file and its hint."""
    path = f"jobs.{finding.job}.{finding.path}"
    place = pipeline.lines.place(path) if pipeline.lines is not None else path
    return explained(InputError(finding.message, hint=finding.hint, place=place))
