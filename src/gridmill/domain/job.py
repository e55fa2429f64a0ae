"""This module defines a job: one declared piece of work of exactly one kind.

This module also defines when a job runs, depending on how the jobs that it needs have ended, and which kinds
of versions a job can read from another pipeline.
"""

from collections.abc import Collection, Mapping
from dataclasses import field
from enum import StrEnum
from operator import attrgetter
from typing import TypeAlias

from gridmill.domain.amounts import check_memory
from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.command import CommandSpec, Each
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.frozen import dataclass
from gridmill.domain.gang import count_workers
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.retention import Retention
from gridmill.domain.schedule import ScheduleSpec
from gridmill.domain.secret import names_in
from gridmill.domain.service_spec import ServiceSpec
from gridmill.domain.sink import SinkSpec
from gridmill.domain.sql_statement import Given
from gridmill.domain.training import CHECKPOINTED, ModelKind, TrainingSpec
from gridmill.errors import InputError


class When(StrEnum):
    """The condition under which a job runs, given how the jobs that it needs have ended. `success` means
    that all jobs that the job needs have succeeded. `failure` means that all jobs that the job needs,
    directly or indirectly, have ended, and that at least one of them has failed. `always` means that all
    jobs that the job needs have ended, whether they have succeeded or failed."""

    SUCCESS = "success"
    FAILURE = "failure"
    ALWAYS = "always"


REMARKS = {
    When.SUCCESS: "",
    When.FAILURE: "runs only after a failure",
    When.ALWAYS: "runs after success or failure",
}
"""For each value of the field `when`, the remark that a plan shows for a job with this value."""


class JobKind(StrEnum):
    """The kind of a job, which is also the type of the resource that runs the job."""

    SINK = "sink"
    DATASET = "dataset"
    TRAINING = "training"
    PREDICTION = "prediction"
    SERVICE = "service"
    COMMAND = "command"


DECLARED_KINDS = tuple(JobKind)
"""The kinds of jobs that a pipeline declares."""
_WITHOUT_EFFECT_ON_SERVICES = (
    *("retries", "retain", "cache", "resumable", "rows", "memory_bytes", "cpus", "disk_bytes", "disk_files"),
    *("deadline_seconds", "budget_micros", "resources"),
)
"""The fields that a declared service job cannot have, because it has no attempt of its own."""

_SPECS = attrgetter(*map(str, JobKind))
_KIND_OF: dict[tuple[bool, ...], JobKind] = {tuple(one is kind for one in JobKind): kind for kind in JobKind}
"""The kind of a job follows from the field that the job sets: exactly one of `sink`, `dataset`, `training`,
`prediction`, `service` and `command`."""
_PLACE_OF = {kind: place for place, kind in enumerate(JobKind)}


Spec: TypeAlias = SinkSpec | DatasetSpec | TrainingSpec | PredictionSpec | ServiceSpec | CommandSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSize:
    """The amount of data that a job processes. If a value of the size is None, the value is unknown, and
    Gridmill reads it from the data if possible."""

    rows: int | None = None
    columns: int | None = None
    input_bytes: int | None = None

    def or_else(self, other: "JobSize") -> "JobSize":
        """Return the values of this size, in which unknown values are replaced by the values of `other`."""
        return JobSize(
            rows=other.rows if self.rows is None else self.rows,
            columns=other.columns if self.columns is None else self.columns,
            input_bytes=other.input_bytes if self.input_bytes is None else self.input_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The declaration of a job of a pipeline. Exactly one of `sink`, `dataset`, `training`, `prediction`,
    `service`, `command` is set. A `service` with a `model` starts or updates a service. (A `service` without
    a `model` is the job in which the replicas of a service run; pipeline files do not contain such jobs.)

    `needs` names the jobs that must end before this job starts. A command can also name a result of another
    pipeline in its `needs`, such as `other/job`, `other/job@3` or `other/job@prod`. The command reads the
    version that the name of the result meant when the run began. With `when`, a command can run after its
    needed jobs have ended, even if one of these jobs has failed. With `when: failure`, the command runs if
    one of the needed jobs has failed, to report the failure. With `when: always`, the command runs in every
    case, to clean up. If needed jobs have failed, the variable `GRIDMILL_FAILED` has their names, separated
    by spaces. If a needed job has failed, the run fails, whatever the command with `when` does.

    `retries` is the number of further attempts after a failure of the job itself. Attempts that were lost
    because their pod ended or the machine ran out of memory are not included in `retries`. If the size of a
    job is an estimate, its attempts with more memory are not included in `retries` either. `timeout_seconds`
    limits the time of one attempt. When the timeout is over, the attempt gets SIGTERM, and SIGKILL after
    `GRIDMILL_GRACE` (5 s). `at` names the site on which the job runs; if the job names a `resource`, the
    resource determines the site. If the job names several `resources`, it runs on the resource on which it is
    expected to end first, including the transfer of its data. `at` restricts several `resources` to the
    resources of one site.

    `memory_bytes` and `cpus` replace the estimate for one attempt. `disk_bytes` and `disk_files` limit the
    size and the number of the attempt's files on the disk while it runs; an attempt above its limit is ended.

    `deadline_seconds` is the time from the moment when the job is ready until its result must be at home. If
    the job can use several resources, it gets the cheapest resource that is expected to meet the deadline.
    `budget_micros` is the highest cost of the job on rented machines in one run, in micro-units of the
    currency of the provider's prices. The job is refused, or not tried again, if the cost of its earlier
    attempts plus the expected cost of the next attempt exceeds the budget.

    If an earlier version was made from the same declaration, inputs and code, the job is restored from that
    version and is not executed. `cache` changes whether the job is restored: with `false`, the job is
    executed in every run, and with `true`, it can be restored in every run. If `cache` is not set, runs that
    a schedule starts execute commands and restore all other jobs, and runs that a person starts restore all
    jobs. `--force` executes every job, even if it could be restored. `retain` selects which versions of the
    job are kept (default: all). `schedule` is the schedule by which this job runs by itself, with the jobs
    that it needs and without the jobs that need it. The schedule is active for an applied pipeline while
    `gridmill up` runs.

    `resumable` means that an attempt continues from the checkpoints of the previous attempt, so the job may
    be interrupted for much shorter jobs. Trainings of `lstm` and `mlp` are resumable unless `resumable` is
    false. A resumable command receives the variable `GRIDMILL_CHECKPOINTS`.

    With a `matrix`, the declaration becomes one job for each combination of the values (at most 256). For
    example, `matrix: {region: [eu, us]}` on `train` makes `train-eu` and `train-us`, in which `${region}` is
    the value. A job that needs `train` then needs all jobs that the matrix of `train` makes.
    """

    name: str
    needs: tuple[str, ...] = ()
    when: When = When.SUCCESS
    resource: str | None = None
    resources: tuple[str, ...] = ()
    at: str | None = None
    retries: int = 0
    timeout_seconds: float | None = None
    retain: Retention | None = None
    schedule: ScheduleSpec | None = None
    priority: int = 0
    cache: bool | None = None
    resumable: bool | None = None
    rows: int | None = None
    memory_bytes: int | None = None
    cpus: float | None = None
    disk_bytes: int | None = None
    disk_files: int | None = None
    deadline_seconds: float | None = None
    budget_micros: int | None = None
    sink: SinkSpec | None = None
    dataset: DatasetSpec | None = None
    training: TrainingSpec | None = None
    prediction: PredictionSpec | None = None
    service: ServiceSpec | None = None
    command: CommandSpec | None = None
    matrix: Mapping[str, Given] = field(default_factory=dict)
    parameters: Mapping[str, Given] = field(default_factory=dict)
    """The parameters of the pipeline that the declaration of the job refers to, with their values in this
    run."""

    def check(self) -> None:
        """Raise InputError for an implausible memory size, and for fields that have no effect."""
        check_memory(self.memory_bytes, "job.memory")
        if self.when != When.SUCCESS and (self.command is None or not self.needs):
            raise InputError(
                f"`when: {self.when}` needs `needs`, because it depends on how those jobs end",
                hint="Name the jobs in `needs`, or leave out `when`.",
                place="job.when",
            )
        self._check_fields_of_service()
        if self.container is not None and self.memory_bytes is None:
            raise InputError(
                "a job in a container needs `memory`, because Gridmill does not measure its memory",
                hint="Write for example `memory: 4GiB`.",
                place="job.memory",
            )

    def _check_fields_of_service(self) -> None:
        if not self.starts_service:
            return
        for name in _WITHOUT_EFFECT_ON_SERVICES:
            if getattr(self, name) not in (None, 0, ()):
                written = name.removesuffix("_bytes").removesuffix("_seconds").removesuffix("_micros")
                raise InputError(
                    f"`{written}` has no effect on a service",
                    hint="The size of a service follows from `replicas` or `rate` in `service`, and from the "
                    "`resource` of the job.",
                    place=f"job.{written}",
                )

    @property
    def starts_service(self) -> bool:
        """Whether the job starts or updates a service. Such a job has no attempt."""
        return self.service is not None and self.service.is_declared

    @property
    def kind(self) -> JobKind:
        """The kind of the job, which is the one kind whose spec is set. Raises InputError if the spec of no
        kind or of several kinds is set."""
        sink, dataset, training, prediction, service, command = _SPECS(self)
        # compared first, because most jobs are commands
        if command is not None and sink is dataset is training is prediction is service is None:
            return JobKind.COMMAND
        are_set = (
            sink is not None,
            dataset is not None,
            training is not None,
            prediction is not None,
            service is not None,
            command is not None,
        )
        kind = _KIND_OF.get(are_set)
        if kind is None:
            names = [str(one) for one, is_set in zip(JobKind, are_set, strict=True) if is_set]
            raise InputError(
                f"job {self.name!r} declares {len(names)} kinds ({', '.join(names) or 'none'})",
                hint=f"Declare exactly one of {', '.join(DECLARED_KINDS)}.",
            )
        return kind

    @property
    def spec(self) -> Spec:
        """The declaration of the one kind of job that is set."""
        sink, dataset, training, prediction, service, command = specs = _SPECS(self)
        # compared first, because most jobs are commands
        if command is not None and sink is dataset is training is prediction is service is None:
            one: Spec = command
        else:
            one = specs[_PLACE_OF[self.kind]]
        return one

    @property
    def has_terms(self) -> bool:
        """Whether the job has a deadline or a budget."""
        return self.deadline_seconds is not None or self.budget_micros is not None

    @property
    def named_resources(self) -> tuple[str, ...]:
        """The resource that the job names, or the resources that it may use; empty if it uses the default
        resource of its kind."""
        return self.resources if self.resource is None else (self.resource,)

    @property
    def each(self) -> Each | None:
        """A selection of nodes: the command of the job runs once on each of these nodes. The value is None
        if the command runs only once in total."""
        return self.command.each if self.command is not None else None

    def why_executed(self, *, scheduled: bool = False) -> str:
        """Return the reason why a run never restores an earlier version of the job, whatever its inputs are;
        empty if a run may restore an earlier version. `scheduled` is true for a run that a schedule
        starts."""
        if self.starts_service:
            return "a run compares the service with its declaration"
        if self.service is not None:
            return "a service runs until it is stopped"
        if self.each is not None:
            return "a command with `each` executes in every run"
        if self.when != When.SUCCESS:
            return f"a command with `when: {self.when}` executes whenever its condition is met"
        if self.cache is False:
            return "`cache: false`"
        if scheduled and self.cache is None and self.command is not None:
            return "scheduled run: commands execute unless `cache: true`"
        return ""

    @property
    def reads_files(self) -> tuple[str, ...]:
        """The files or patterns of the project that the code of the job reads, as declared; empty if the
        code reads its whole folder."""
        spec = self.command or self.training
        return () if spec is None else spec.inputs

    @property
    def environment(self) -> str | None:
        """The requirements file of the code of the job."""
        spec = self.command or self.training
        return None if spec is None else spec.environment

    @property
    def can_resume(self) -> bool:
        """Whether an attempt of the job resumes from the checkpoint of the previous attempt."""
        if self.resumable is not None or self.training is None:
            return bool(self.resumable)
        return self.training.model in CHECKPOINTED

    @property
    def runs_code(self) -> bool:
        """Whether the job runs code of the project, because it is a command or a custom training."""
        return self.command is not None or (
            self.training is not None and self.training.model == ModelKind.CUSTOM
        )

    @property
    def secret_fields(self) -> Mapping[str, str]:
        """The texts of the declaration that may refer to secrets, by the path of their field in the job."""
        if self.command is not None:
            login = self.command.registry_login
            env = {f"command.env.{name}": text for name, text in self.command.env.items()}
            return {**env, **({"command.registry_login": login} if login else {})}
        if self.sink is not None:
            fields = self.sink.source.secret_fields
            return {f"sink.source.{path}": text for path, text in fields.items()}
        if self.training is None:
            return {}
        login = self.training.registry_login
        return {
            "training.track": self.training.track or "",
            **({"training.registry_login": login} if login else {}),
        }

    @property
    def container(self) -> str | None:
        """The image of the container in which the code of the job runs."""
        spec = self.command or self.training
        return None if spec is None else spec.container

    @property
    def secrets(self) -> tuple[str, ...]:
        """The names of the secrets whose values the job needs, each once, in order."""
        return names_in(self.secret_fields.values())

    @property
    def gang(self) -> int:
        """The number of ranks of the job; 0 if the job is not a gang."""
        spec = self.command or self.training
        return 0 if spec is None else count_workers(spec.workers, spec.roles)

    @property
    def all_needs(self) -> tuple[str, ...]:
        """The jobs that this job needs: the jobs in `needs`, and the jobs that other fields of the
        declaration name. Each job is listed once, in order.

        A name with a slash (`pipeline/job`) is a result of another pipeline: see `external_names`.
        """
        return tuple([name for name in named if "/" not in name]) if (named := self._names_read()) else ()

    @property
    def external_names(self) -> tuple[str, ...]:
        """The results of other pipelines that the job reads, each once, in order. A result is named by
        `pipeline/job` for the latest version, `pipeline/job@3`, or `pipeline/job@prod`."""
        return tuple([name for name in named if "/" in name]) if (named := self._names_read()) else ()

    @property
    def optional_names(self) -> tuple[str, ...]:
        """The results of other pipelines that the job reads only if they have a version."""
        return self.prediction.optional_references if self.prediction is not None else ()

    def _names_read(self) -> Collection[str]:
        references = (*self.needs, *self.spec.references())
        return dict.fromkeys(references) if references else ()

    @property
    def misplaced_need(self) -> str:
        """Return the first result of another pipeline in the field `needs` of a job that is not a command.
        Only commands may name such a result there, so the correct result is an empty text."""
        return "" if self.command is not None else next((name for name in self.needs if "/" in name), "")


_TABLES = (ArtifactKind.SINK, ArtifactKind.DATASET, ArtifactKind.PREDICTION)


def check_kind(job: Job, reference: str, artifact: Artifact) -> None:
    """Raise InputError if the artifact has the wrong kind: for example, it is a model instead of a table, or
    a sink instead of a model."""
    wanted = _wanted(job, reference)
    if wanted and artifact.kind not in wanted:
        raise InputError(
            f"job {job.name!r} reads {reference!r} as a {wanted[0]}, but it is a {artifact.kind}",
            hint=f"`gridmill list {wanted[0]}` lists those that exist.",
        )


def _wanted(job: Job, reference: str) -> tuple[ArtifactKind, ...]:
    """Return the kinds of artifacts that the job can read under this name. If the result is empty, the job
    can read artifacts of any kind."""
    if job.service is not None:
        return (ArtifactKind.MODEL,)
    learned = job.training or job.prediction
    if learned is not None:
        models = (*learned.models, *job.optional_names)
        return (ArtifactKind.MODEL,) if reference in models else (ArtifactKind.DATASET,)
    if job.sink is not None:
        return (ArtifactKind.SINK,)
    return _TABLES if job.dataset is not None else ()
