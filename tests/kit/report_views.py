"""Runs as reports show them, made without running anything: with hostile names, with failures, and with
hundreds of jobs."""

from collections.abc import Iterable

from gridmill.domain.amounts import MIB, Amounts
from gridmill.domain.artifact import Artifact, ArtifactKind, Column, Output
from gridmill.domain.graph import critical_path
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.job_log import LogLine
from gridmill.domain.pod_protocol import Event, EventType
from gridmill.domain.resource import MeasuredUse, Sizing
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.states import AttemptState, Cause, JobState, RunState
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.domain.views import JobView, RunView

HOSTILE = "<script>alert('x')</script>\"&'><img src=x onerror=alert(1)>"
BEGAN = 1_700_000_000.0


def a_job(
    name: str,
    *,
    needs: Iterable[str] = (),
    state: JobState = JobState.SUCCEEDED,
    begins: float = 0.0,
    takes: float = 1.0,
    message: str = "",
    hint: str = "",
    artifacts: tuple[Artifact, ...] = (),
    training: TrainingSpec | None = None,
) -> JobView:
    """A command (or a training) with one attempt, if it ran."""
    ran = state in (JobState.SUCCEEDED, JobState.FAILED, JobState.RUNNING)
    ended = None if state == JobState.RUNNING else BEGAN + begins + takes
    command = None if training else CommandSpec(run=f"echo {name}", env={"TOKEN": "secret-value"})
    given = Amounts(cpus=2.0, memory_bytes=512 * MIB)
    job_run = JobRun(
        id=f"p-2/{name}",
        run_id="p-2",
        pipeline="p",
        job=Job(name=name, needs=tuple(needs), command=command, training=training, timeout_seconds=300.0),
        order=1,
        state=state,
        resource="r",
        needs=tuple(f"p-2/{need}" for need in needs),
        sizing=Sizing(amounts=given, why=(f"the default size of {name}",)),
        ready=BEGAN + begins,
        started=BEGAN + begins if ran else None,
        ended=ended if ran else None,
        message=message if not ran else "",
    )
    states = {JobState.SUCCEEDED: AttemptState.SUCCEEDED, JobState.FAILED: AttemptState.FAILED}
    attempt = Attempt(
        id=f"p-2.{name}.1",
        run_id="p-2",
        job_run_id=job_run.id,
        token="",
        deployment_id="r-1",
        pod_id="r-1.0",
        state=states.get(state, AttemptState.RUNNING),
        given=given,
        placed=BEGAN + begins,
        started=BEGAN + begins,
        ended=ended,
        cause=Cause.EXIT if state == JobState.FAILED else None,
        exit_code=1 if state == JobState.FAILED else 0,
        message=message,
        hint=hint,
        use=MeasuredUse(wall_seconds=takes * 0.7, cpu_seconds=takes / 2, peak_memory_bytes=60 * MIB),
    )
    return JobView(job=job_run, attempts=(attempt,) if ran else (), artifacts=artifacts)


def a_run(*jobs: JobView, state: RunState = RunState.SUCCEEDED, number: int = 2, **fields: object) -> RunView:
    """A run of these jobs."""
    ends = [job.job.ended for job in jobs if job.job.ended is not None]
    made = Run(
        id=f"p-{number}",
        pipeline="p",
        order=number,
        state=state,
        created=BEGAN,
        started=BEGAN,
        ended=max(ends, default=BEGAN) if state != RunState.ACTIVE else None,
        folder="/home/me/p",
        bundle="0123456789abcdef",
        commit="c0ffee" * 7,
        **fields,  # type: ignore[arg-type]
    )
    return RunView(run=made, jobs=jobs, critical=critical_path([job.job for job in jobs], BEGAN))


def logs(job: str, *lines: str) -> dict[str, list[LogLine]]:
    """The log of the attempt of a job."""
    return {f"p-2.{job}.1": [LogLine(job=job, text=line, stream="out") for line in lines]}


def curve(job: str, **series: list[float]) -> list[Event]:
    """Metrics by step, from 1."""
    return [
        Event(
            time=BEGAN,
            type=EventType.METRIC,
            run_id="p-2",
            job=job,
            attempt_id=f"p-2.{job}.1",
            body={"name": name, "value": value, "step": float(step)},
        )
        for name, values in series.items()
        for step, value in enumerate(values, 1)
    ]


def a_model(name: str, number: int = 1, rows: str = "same", **fields: object) -> Artifact:
    """A version of a model with a metric, importance and residuals."""
    metrics = fields.pop("metrics", {"validation_rmse": 2.0, "test_rmse": 2.5, "test_skill": 0.25})
    details = {
        "model": "gbdt",
        "predicts": f"label: {name} (regression)",
        "dataset": "p/features@1",
        "measured_on": {"validation": rows, "test": rows},
        "rows": {"train": 800, "validation": 100, "test": 100},
        "unlabelled": {"train": 7},
        "options": {"epochs": 5, "best_epoch": 4, "learning_rate": 0.12345678901234567},
        "permutation": {
            "metric": "log_loss",
            "split": "validation",
            "rows": 100,
            "seed": 0,
            "limit_seconds": 1.0,
            "not_measured": 2,
            "features": {f"{name}_feature_{n}": 0.5 - n / 40 for n in range(30)},
        },
        "residuals": {
            "split": "test",
            "labels": [
                {
                    "label": name,
                    "rows": 100,
                    "mean": 0.1,
                    "quantiles": [-1.0, 0.0, 1.0],
                    "edges": [n / 10 for n in range(-15, 16)],
                    "counts": [abs(15 - abs(n)) for n in range(-15, 15)],
                    "sample": [[n / 7, n / 7 + 0.5] for n in range(200)],
                }
            ],
        },
        **fields,
    }
    output = Output(kind=ArtifactKind.MODEL, uri="m", metrics=metrics, details=details)  # type: ignore[arg-type]
    return Artifact(id=f"p/{name}@{number}", name=f"p/{name}", number=number, output=output, fingerprint="f")


def a_dataset(name: str, columns: int = 10) -> Artifact:
    """A version of a dataset of which rows were dropped."""
    output = Output(
        kind=ArtifactKind.DATASET,
        uri="d",
        rows=1000,
        columns=tuple(Column(name=f"{name}_{n}", type="double") for n in range(columns)),
        details={"dropped": {"no label": 300, f"because {name}": 10}},
    )
    return Artifact(id=f"p/{name}@1", name=f"p/{name}", number=1, output=output, fingerprint="f")


def a_training(name: str, model: Artifact, **fields: object) -> JobView:
    """A training that made the model."""
    spec = TrainingSpec(dataset="features", model=ModelKind.GBDT, trees=77)
    return a_job(name, training=spec, artifacts=(model,), **fields)  # type: ignore[arg-type]


def large_run(count: int = 500) -> tuple[RunView, list[Event], dict[str, list[LogLine]]]:
    """Hundreds of jobs of which every 50th failed, with long logs, and models and datasets with many
    columns."""
    jobs = [a_job("start")]
    events: list[Event] = []
    ends: dict[str, list[LogLine]] = {}
    for number in range(count - 41):
        name, failed = f"work-{number}", number % 50 == 49
        state = JobState.FAILED if failed else JobState.SUCCEEDED
        message = "x" * 5000 if failed else ""
        jobs.append(a_job(name, needs=("start",), state=state, begins=1.0 + number, message=message))
        ends |= logs(name, *(f"{HOSTILE} {'y' * 3000} {line}" for line in range(50))) if failed else {}
    for number in range(20):
        name = f"learn-{number}"
        jobs.append(
            a_training(name, a_model(name, features=[f"f{n}" for n in range(2000)]), needs=("start",))
        )
        events += curve(name, train_loss=[1.0 / (n + 1) for n in range(2000)])
        table = a_dataset(f"table-{number}", columns=3000)
        jobs.append(a_job(f"data-{number}", needs=("start",), artifacts=(table,)))
    return a_run(*jobs, state=RunState.FAILED), events, ends
