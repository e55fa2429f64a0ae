"""Probes: a job by itself, with so many workers on a part of its data, to learn how its time goes."""

from dataclasses import replace

from gridmill.model.job import Job
from gridmill.model.prediction import PredictionSpec
from gridmill.model.resource import Measurement
from gridmill.planning.history import History
from gridmill.planning.sizing import subject_of

_PROBE = "probe"


def has_workers(job: Job) -> bool:
    """Whether a job's work is done by workers of its own, of which there may be any number."""
    return job.prediction is not None


def probe_subject(job: Job, pipeline: str) -> str:
    """What measurements of a job's probes are filed under: sizes and forecasts do not learn from them."""
    return f"{subject_of(job, pipeline)}/{_PROBE}"


def measurements_of(job: Job, pipeline: str, history: History) -> tuple[Measurement, ...]:
    """Of the job's attempts and probes that succeeded, oldest first."""
    name = f"{pipeline}/{job.name}"
    found = [
        *history.of_job(name, subject_of(job, pipeline)),
        *history.of_job(name, probe_subject(job, pipeline)),
    ]
    return tuple(sorted((one for one in found if not one.memory_killed), key=lambda one: one.ended))


def probe_job(job: Job, pipeline: str, workers: int) -> Job:
    """The job with so many workers, needing nothing in its run: it reads the newest versions there are."""
    spec = job.prediction
    assert spec is not None
    return replace(job, needs=(), retries=0, prediction=_outside(replace(spec, workers=workers), pipeline))


def _outside(spec: PredictionSpec, pipeline: str) -> PredictionSpec:
    def named(reference: str) -> str:
        return reference if "/" in reference else f"{pipeline}/{reference}"

    return replace(spec, dataset=named(spec.dataset), models=tuple(map(named, spec.models)))
