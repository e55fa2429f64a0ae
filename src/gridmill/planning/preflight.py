"""What a preflight is asked of a pipeline, and what its answer means for each job. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from gridmill.errors import InputError, explained
from gridmill.model.artifact import Artifact
from gridmill.model.job import JobKind
from gridmill.model.pipeline import Pipeline
from gridmill.model.preflight import Checked, Finding, Question
from gridmill.model.view import PlannedJob
from gridmill.planning.graph import order

_NONE: Mapping[str, Artifact] = MappingProxyType({})


def preflight_question(
    pipeline: Pipeline,
    *,
    root: str = "",
    versions: Mapping[str, Artifact] = _NONE,
    earlier: Mapping[str, Artifact] = _NONE,
    unchanged: Collection[str] = (),
) -> Question | None:
    """The question; None where there is no job to check. Raises PipelineError for a cycle."""
    jobs = tuple(pipeline.job(name) for name in order(pipeline))
    if all(job.kind == JobKind.COMMAND or job.name in unchanged for job in jobs):
        return None
    return Question(
        folder=pipeline.folder,
        jobs=jobs,
        root=root,
        versions=dict(versions),
        earlier=dict(earlier),
        unchanged=tuple(sorted(unchanged)),
        late=written_late(pipeline, unchanged),
    )


def written_late(pipeline: Pipeline, unchanged: Collection[str] = ()) -> Mapping[str, str]:
    """The sinks whose files a command may write before they are loaded, each with such a command."""
    late: dict[str, str] = {}
    for name in order(pipeline):
        job = pipeline.job(name)
        if job.command is not None and name not in unchanged:
            late[name] = name
        elif before := [late[need] for need in job.all_needs if need in late]:
            late[name] = before[0]
    return {name: command for name, command in late.items() if pipeline.job(name).sink is not None}


def with_findings(planned: PlannedJob, pipeline: Pipeline, checked: Checked) -> PlannedJob:
    """The job of a plan with what the preflight found."""
    found = [one for one in checked.findings if one.job == planned.job]
    certain = [show_finding(pipeline, one) for one in found if one.certain]
    doubts = [show_finding(pipeline, one) for one in found if not one.certain]
    return replace(
        planned,
        inferred=checked.inferred.get(planned.job, ()),
        problem="; ".join(certain) or planned.problem,
        doubt="; ".join(doubts) or ("" if certain else planned.doubt),
    )


def show_finding(pipeline: Pipeline, finding: Finding) -> str:
    """The finding with its place in the file, and what to do."""
    path = f"jobs.{finding.job}.{finding.path}"
    place = pipeline.lines.place(path) if pipeline.lines is not None else path
    return explained(InputError(finding.message, hint=finding.hint, place=place))
