"""Probes: a job by itself, with so many workers on a part of its data, to learn how its time goes."""

from dataclasses import replace

from gridmill.model.dataset import DatasetSpec
from gridmill.model.job import Job
from gridmill.model.prediction import PredictionSpec


def has_workers(job: Job) -> bool:
    """Whether a job's work is done by workers of its own, of which there may be any number."""
    return job.prediction is not None


def may_be_cut(job: Job) -> bool:
    """Whether a job without workers of its own may be done in parts, on several machines at once."""
    if job.dataset is not None:
        return bool(entity_of(job.dataset))
    return job.sink is not None and job.sink.source.splits


def leaves_workers_open(job: Job) -> bool:
    """Whether Gridmill is to choose how many."""
    return job.prediction is not None and job.prediction.workers is None


def entity_of(spec: DatasetSpec) -> tuple[str, ...]:
    """The columns by which its rows are cut; none: it is done in one."""
    return spec.basis.entity if spec.basis else spec.entity if spec.time else ()


def probe_job(job: Job, pipeline: str, workers: int) -> Job:
    """The job with so many workers, needing nothing in its run: it reads the newest versions there are."""
    spec = job.prediction
    assert spec is not None
    return replace(job, needs=(), retries=0, prediction=_outside(replace(spec, workers=workers), pipeline))


def _outside(spec: PredictionSpec, pipeline: str) -> PredictionSpec:
    def named(reference: str) -> str:
        return reference if "/" in reference else f"{pipeline}/{reference}"

    return replace(spec, dataset=named(spec.dataset), models=tuple(map(named, spec.models)))
