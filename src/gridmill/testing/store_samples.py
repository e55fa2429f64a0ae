"""Sample records of every class and sample events for tests of record stores. Tests vary the arguments of
these functions."""

from typing import Any

from gridmill.domain.amounts import Amounts
from gridmill.domain.artifact import Alias, Artifact, ArtifactKind, Latest, Output
from gridmill.domain.backfill import Backfill, Chunk
from gridmill.domain.command import CommandSpec
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.job import Job, JobKind, JobSize
from gridmill.domain.lease import LaunchTry, Lease, LeaseState, LeaseUse, RentalTerms, TryState
from gridmill.domain.pipeline import Origin, Pipeline
from gridmill.domain.pod_protocol import Event
from gridmill.domain.project import Project
from gridmill.domain.provenance import CodeList, Provenance
from gridmill.domain.resource import MeasuredUse, Measurement, Resource, Sizing
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.schedule import Schedule, ScheduleSpec
from gridmill.domain.secret import Secret
from gridmill.domain.service import Service
from gridmill.domain.service_size import Calibration, LoadPoint
from gridmill.domain.serving import ReplicaReport, ReplicaState, ServiceReport, ServiceState
from gridmill.domain.sink_overrides import Alterations, AlterVerb, SinkChange, SinkPart
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.domain.sql_statement import Given
from gridmill.domain.states import AttemptState, DeploymentState, JobState, PodState, RunState
from gridmill.ports.store import Noun


def a_site(name: str = "local") -> Site:
    """Returns a site with one node."""
    node = Node(name="n1", capacity=Amounts(cpus=8, memory_bytes=2**35))
    return Site(name=name, kind=SiteKind.LOCAL, nodes=(node,), settings={"zone": "ä–漢"})


def a_resource(name: str = "trainers", **fields: Any) -> Resource:  # noqa: ANN401
    """A resource."""
    return Resource(name=name, type=JobKind.TRAINING, size=JobSize(rows=10**12), **fields)


def a_project(name: str = "vision", **fields: Any) -> Project:  # noqa: ANN401
    """Returns a project with a quota."""
    return Project(name=name, share=2.0, gpus=4, used_seconds=1e6 + 0.5, used_at=1e9 + 0.125, **fields)


def a_secret(name: str = "db-password") -> Secret:
    """Returns a secret whose sealed value is no real value."""
    return Secret(name=name, version=3, sealed="c2VhbGVk", key_id="0f" * 8, created=1e9, changed=1e9 + 0.125)


def a_service(name: str = "rain") -> Service:
    """Returns a service with a report of one replica."""
    replica = ReplicaReport(number=0, state=ReplicaState.READY, generation=2, pid=7, ready_at=1e9 + 0.125)
    report = ServiceReport(
        name=name,
        state=ServiceState.READY,
        generation=2,
        seen_generation=2,
        address="http://127.0.0.1:40001",
        host="127.0.0.1",
        port=40001,
        pid=6,
        started_at=1e9,
        written_at=1e9 + 0.5,
        replicas=(replica,),
    )
    return Service(
        name=name,
        model="weather/lstm@champion",
        version="weather/lstm@2",
        follows="weather/lstm@champion",
        previous="weather/lstm@1",
        generation=2,
        port=40001,
        report=report,
        reported_by="service-rain-1.serve.1",
    )


def a_calibration(version: str = "weather/lstm@2") -> Calibration:
    """Returns a calibration with two points."""
    points = tuple(
        LoadPoint(
            connections=connections,
            rate_per_second=900.0 * connections**0.5,
            mean_seconds=0.001 * connections**0.5,
            p99_seconds=0.002 * connections**0.5,
            cpu_seconds=0.0009,
            batch_rows=float(connections),
            batch_seconds=0.0002,
        )
        for connections in (1, 4)
    )
    return Calibration(
        version=version, machine="CPU, 4 CPUs", points=points, replica_bytes=120 * 2**20, created=1e9
    )


def a_job(name: str = "work") -> Job:
    """A command."""
    return Job(name=name, command=CommandSpec(run=("echo", "'\"\\;--"), env={"A": "1"}), retries=2)


def a_run(number: int = 1, *, pipeline: str = "weather", state: RunState = RunState.ACTIVE) -> Run:
    """Returns a run whose field `order` is its number."""
    parameters: dict[str, Given] = {"text": "x", "count": 3, "share": 0.5, "flag": True}
    return Run(
        id=f"{pipeline}-{number}",
        pipeline=pipeline,
        order=number,
        state=state,
        created=1e9 + 0.125,
        parameters=parameters,
    )


def a_job_run(run_id: str = "weather-1", name: str = "work", *, state: JobState = JobState.WAITING) -> JobRun:
    """Returns a job of a run."""
    return JobRun(
        id=f"{run_id}/{name}",
        run_id=run_id,
        pipeline=run_id.rpartition("-")[0],
        job=a_job(name),
        order=1,
        state=state,
        resource="trainers",
        needs=("a", "b"),
        sizing=Sizing(amounts=Amounts(cpus=0.5, memory_bytes=2**40), why=("because", "of…")),
    )


def an_attempt(
    number: int = 1, *, run_id: str = "weather-1", state: AttemptState = AttemptState.RUNNING
) -> Attempt:
    """Returns an attempt of the job `work`."""
    return Attempt(
        id=f"{run_id}.work.{number}",
        run_id=run_id,
        job_run_id=f"{run_id}/work",
        token=f"t{number}",
        deployment_id="trainers-1",
        pod_id="trainers-1.0",
        state=state,
        given=Amounts(cpus=1),
        placed=5.5,
        use=MeasuredUse(wall_seconds=0.1, peak_memory_bytes=2**50),
        metrics={"rmse": -1.5e-9},
    )


def a_deployment(number: int = 1, *, state: DeploymentState = DeploymentState.UP) -> Deployment:
    """Returns a deployment of the resource `trainers` with one pod."""
    pod = Pod(id=f"trainers-{number}.0", node="n1", capacity=Amounts(cpus=2), state=PodState.UP)
    return Deployment(
        id=f"trainers-{number}",
        resource="trainers",
        type=JobKind.TRAINING,
        site="local",
        state=state,
        sizing=Sizing(amounts=Amounts()),
        pods=(pod,),
        keep_seconds=300.0,
        created=7.0,
    )


def a_lease(number: int = 1, *, state: LeaseState = LeaseState.READY) -> Lease:
    """Returns a lease at the site `aws` with one try."""
    launch_try = LaunchTry(
        number=1,
        token=f"grid-lease-{number}-1",
        region="us-east-1",
        zone="us-east-1a",
        instance_type="g5.xlarge",
        price_micros=1_006_000,
        state=TryState.CONFIRMED,
        machine_id=f"i-{number}",
        at=1e9 + 0.125,
        confirmed=1e9 + 2.5,
    )
    return Lease(
        id=f"lease-{number}",
        provider="aws",
        owner="grid",
        resource="trainers",
        deployment_id="trainers-1",
        pod_id="trainers-1.0",
        state=state,
        terms=RentalTerms(instance_type="g5.xlarge", max_cost_micros=10**13),
        needs_gpus=1,
        tries=(launch_try,),
        uses=(LeaseUse(month="2026-11", project="default", run_id="weather-1", job="work", seconds=0.1),),
    )


def an_artifact(number: int = 1, name: str = "weather/model") -> Artifact:
    """A version of `name`."""
    output = Output(
        kind=ArtifactKind.MODEL, uri="models/x", rows=0, details={"curve": [1, 0.5, None, {"a": []}]}
    )
    return Artifact(id=f"{name}@{number}", name=name, number=number, output=output, fingerprint="f" * 64)


def an_alias(number: int = 1, name: str = "weather/model") -> Alias:
    """`prod` of `name`."""
    return Alias(id=f"{name}@prod", name=name, alias="prod", number=number, changed=3.5)


def a_code_list(created: float = 1.0) -> CodeList:
    """Returns a list of code files that jobs read."""
    return CodeList(hash="c" * 64, files={"train.py": "0" * 16}, created=created)


def a_provenance(name: str = "weather/model", created: float = 1.0) -> Provenance:
    """Returns the inputs of a version of `name`."""
    return Provenance(
        name=name,
        fingerprint="f" * 64,
        format=1,
        declared={"training.trees": "300"},
        parameters={"trees": 300, "steps": (1, 2)},
        inputs={"features": "weather/features@1"},
        code="c" * 64,
        artifact=f"{name}@1",
        created=created,
    )


def a_latest(number: int = 1, name: str = "weather/model") -> Latest:
    """Returns the record of the latest version of `name`."""
    return Latest(name=name, artifact=f"{name}@{number}", run=f"weather-{number}", order=number)


def an_origin(number: int = 1, name: str = "weather") -> Origin:
    """The folder of `name`."""
    return Origin(name=name, folder=f"/projects/{number}", host="laptop")


def some_alterations(name: str = "weather/hourly") -> Alterations:
    """Returns an alteration of `name` that removes a constraint."""
    change = SinkChange(verb=AlterVerb.REMOVE, part=SinkPart.CONSTRAINT, key="temp: missing")
    return Alterations(name=name, changes=(change,), changed=3.5)


def a_measurement(number: int = 1) -> Measurement:
    """A measurement of `training/lstm`."""
    return Measurement(
        attempt_id=f"weather-1.work.{number}",
        subject="training/lstm",
        job="weather/work",
        size=JobSize(rows=1),
        given=Amounts(),
        use=MeasuredUse(cpu_seconds=1.5),
        ended=9.0,
    )


def a_schedule(name: str = "weather") -> Schedule:
    """Returns a schedule that has started a run."""
    spec = ScheduleSpec(cron="0 6 * * *", zone="Europe/Amsterdam")
    return Schedule(name=name, spec=spec, since=1e9, done=1e9 + 0.5, runs=2, last_run=f"{name}-2")


def a_backfill(name: str = "weather") -> Backfill:
    """Returns a backfill of half a year, in chunks of one week."""
    return Backfill(name=name, begins="2013-01-01", ends="2013-07-01", every_seconds=604_800.0, parallel=2)


def a_chunk(name: str = "weather") -> Chunk:
    """Returns the first week of the backfill, which has not started."""
    pipeline = Pipeline(name=name, jobs=(a_job(),), parameters={"from": "2013-01-01", "to": "2013-01-08"})
    return Chunk(pipeline=pipeline, begins="2013-01-01", ends="2013-01-08")


def one_of_each() -> tuple[Noun, ...]:
    """Returns one record of every class."""
    pipeline = Pipeline(name="weather", jobs=(a_job(),), resources=(a_resource(),))
    return (
        a_site(),
        a_resource(),
        pipeline,
        a_schedule(),
        a_backfill(),
        a_chunk(),
        a_run(),
        a_job_run(),
        an_attempt(),
        a_deployment(),
        an_artifact(),
        an_alias(),
        some_alterations(),
        a_latest(),
        a_provenance(),
        a_code_list(),
        an_origin(),
        a_project(),
        a_measurement(),
        a_secret(),
        a_service(),
        a_calibration(),
        a_lease(),
    )


def an_event(number: int = 0, *, run_id: str = "weather-1", job: str = "work", text: str = "x\n") -> Event:
    """Returns a log line from the pod `trainers-1.0`. If `number` is 0, the function returns an event of the
    control node."""
    return Event(
        time=1e9 + 0.25,
        type="log" if number else "state",
        run_id=run_id,
        job=job,
        attempt_id=f"{run_id}.{job}.1" if number else "",
        pod_id="trainers-1.0" if number else "",
        number=number,
        body={"stream": "out", "text": text, "nested": {"list": [1, None, True, 0.5]}},
    )
