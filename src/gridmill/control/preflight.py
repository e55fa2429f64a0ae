"""A plan held against data: the versions that its jobs read are looked up, and what is wrong is noted."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from gridmill.control.references import find_version
from gridmill.control.state import Control
from gridmill.errors import NotFoundError
from gridmill.model.artifact import Artifact
from gridmill.model.pipeline import Pipeline
from gridmill.model.preflight import Question
from gridmill.model.view import DryRun
from gridmill.planning.preflight import preflight_question, with_findings


def with_preflight(
    control: Control, pipeline: Pipeline, made: DryRun, lock: AbstractContextManager[object]
) -> DryRun:
    """The plan with what the check of its jobs found. The data is looked at without the lock."""
    with lock:
        question = _question(control, pipeline, made)
    if question is None:
        return made
    checked = control.storage.preflight(question)
    return replace(
        made,
        jobs=tuple(with_findings(job, pipeline, checked) for job in made.jobs),
        unchecked=tuple(f"{one.job}: {one.why}" for one in checked.unchecked),
    )


def _question(control: Control, pipeline: Pipeline, made: DryRun) -> Question | None:
    unchanged = {job.job for job in made.jobs if job.unchanged}
    external = {name for job in pipeline.jobs for name in job.external_names}
    standing = {name: f"{pipeline.name}/{name}" for name in unchanged} | {name: name for name in external}
    again = {job.name for job in pipeline.jobs if job.sink is not None or job.dataset is not None} - unchanged
    return preflight_question(
        pipeline,
        root=control.storage.location,
        versions=_versions(control, standing),
        earlier=_versions(control, {name: f"{pipeline.name}/{name}" for name in again}),
        unchanged=unchanged,
    )


def _versions(control: Control, references: Mapping[str, str]) -> dict[str, Artifact]:
    found: dict[str, Artifact] = {}
    for name, reference in references.items():
        try:
            version = find_version(control, reference)
        except NotFoundError:
            continue
        if not version.removed:
            found[name] = version
    return found
