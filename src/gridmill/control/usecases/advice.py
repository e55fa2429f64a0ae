"""This module has the use cases of advice: the known measurements of a job's workers, and runs that measure
more."""

from gridmill.control.ledger import Ledger
from gridmill.control.steps.run_lifecycle import begin_run, resources_for
from gridmill.control.usecases.base import UseCases
from gridmill.domain.advice import Advice
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.resource import Resource
from gridmill.domain.run import JobRun, Run
from gridmill.domain.views import RunView
from gridmill.errors import ConflictError, InputError, NotFoundError
from gridmill.ports.store import key_of
from gridmill.scheduler.advice import AdviceInput, advise, most_of
from gridmill.scheduler.bottleneck import has_workers, may_be_cut, probe_job
from gridmill.scheduler.sizing import subject_of
from gridmill.scheduler.splitting import pods_of

LATEST_RUNS = 10
"""The number of the newest runs of its pipeline that are searched for a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobDeclaration:
    """A job as it last ran, or as it is stored. `pipeline` has the folder, code and parameters with which
    the job ran."""

    job: Job
    pipeline: Pipeline
    resource: str = ""


def advice_on(ledger: Ledger, job: Job, pipeline: str, went: str = "") -> Advice | None:
    """Return the advice from the measured workers of a job's attempts. The result is None if no attempt has
    measured its workers. `went` is the name of the resource that the job used last, if the job may use
    several resources."""
    resources = resources_for(job, pipeline, ledger.snapshot.resources)
    resource = next((one for one in resources if one.name == went), resources[0])
    return advice_with(ledger, job, pipeline, resource)


def advice_with(ledger: Ledger, job: Job, pipeline: str, resource: Resource) -> Advice | None:
    """Return the advice for a resource that may not be known yet."""
    snapshot = ledger.snapshot
    name = f"{pipeline}/{job.name}"
    measured = snapshot.history.of_workers(name, subject_of(job, pipeline))
    most = most_of(resource, snapshot.largest(resource.site))
    site = snapshot.sites.get(resource.site)
    pods = 1 if site is None else max(1, pods_of(resource, site))
    return advise(AdviceInput(name=name, job=job, measured=measured, most=most, pods=pods))


class AdviceUseCases(UseCases):
    """The use cases of advice on the workers of jobs. The attribute `run` comes from another class of use
    cases, with which the service combines this class."""

    def advise(self, name: str) -> Advice:
        """Recommend a number of workers for `pipeline/job`."""
        declared = self._job(name)
        with self._node.lock:
            result = advice_on(self._ledger, declared.job, declared.pipeline.name, declared.resource)
        if result is None:
            raise _not_measured(name, declared.job)
        return result

    def advice_on_run(self, view: RunView) -> tuple[Advice, ...]:
        """Return the advice on the jobs of a run whose workers were measured."""
        known = (line.job for line in view.jobs)
        jobs = [one for one in known if has_workers(one.job) or may_be_cut(one.job)]
        with self._node.lock:
            advice = [advice_on(self._ledger, one.job, view.run.pipeline, one.resource) for one in jobs]
        return tuple(one for one in advice if one is not None)

    def start_probe(self, name: str, *, workers: int, share: float) -> str:
        """Start a run that probes one job. The method returns the id of this run."""
        if workers < 1:
            raise InputError(f"workers is {workers}; it must be at least 1", place="workers")
        if not 0 < share <= 1:
            raise InputError(f"share is {share}; it must be above 0 and at most 1", place="share")
        declared = self._job(name)
        if not has_workers(declared.job):
            raise InputError(
                f"{name} cannot be probed, because it runs in parts, each on a separate machine",
                hint="Run the job with another number of parts instead. Each run adds a measurement.",
            )
        job = probe_job(declared.job, declared.pipeline.name, workers)
        with self._node.changing() as transaction:
            run = begin_run(
                self._control.run_creation, transaction, replace(declared.pipeline, jobs=(job,)), force=True
            )
            transaction.put(replace(run, probe=job.name))
            job_run = transaction.get(JobRun, f"{run.id}/{job.name}")
            if job_run is not None:
                transaction.put(replace(job_run, probe=share))
        return run.id

    def _job(self, name: str) -> _JobDeclaration:
        pipeline, slash, job = name.partition("/")
        if not slash:
            raise InputError(
                f"{name!r} is not the name of a job",
                hint="Name the job as PIPELINE/JOB, for example weather/predict.",
            )
        result = self._as_it_ran(pipeline, job) or self._as_kept(pipeline, job)
        if result is None:
            raise NotFoundError(
                f"there is no job {name!r}",
                hint="Name the job as PIPELINE/JOB. Run or apply its pipeline first.",
            )
        if not (has_workers(result.job) or may_be_cut(result.job)):
            raise InputError(
                f"{name} has no workers: it runs as one process",
                hint="Advice exists for predictions, and for sinks and datasets that run in parts. "
                f"`gridmill show job {pipeline}/{job}` shows the resources that it used.",
            )
        return result

    def _as_kept(self, pipeline: str, job: str) -> _JobDeclaration | None:
        record = self._ledger.store.get(Pipeline, pipeline)
        if record is None or not isinstance(record.noun, Pipeline):
            return None
        kept = record.noun
        return next((_JobDeclaration(job=one, pipeline=kept) for one in kept.jobs if one.name == job), None)

    def _as_it_ran(self, pipeline: str, job: str) -> _JobDeclaration | None:
        for run in self._list(Run, parent=pipeline, newest_first=True, limit=LATEST_RUNS):
            if run.probe:
                continue
            for job_run in self._list(JobRun, parent=key_of(run)):
                if job_run.job.name == job:
                    return _JobDeclaration(job=job_run.job, pipeline=_as_run(run), resource=job_run.resource)
        return None


def _not_measured(name: str, job: Job) -> ConflictError:
    hint = f"Run the job once, or run it on a part of its data: `gridmill advise {name} --probe`."
    if may_be_cut(job):
        hint = "Run the job once in parts, on several machines."
    return ConflictError(f"no attempt of {name} has measured its workers yet", hint=hint)


def _as_run(run: Run) -> Pipeline:
    return Pipeline(
        name=run.pipeline, jobs=(), parameters=run.parameters, folder=run.folder, bundle=run.bundle
    )
