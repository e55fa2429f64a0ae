"""A job: one declared piece of work of exactly one kind.

It also defines when a job runs, given how the jobs that it needs have ended, and which kind of version a job
reads under the name of another pipeline's result.
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
from gridmill.domain.sink import SinkSpec
from gridmill.domain.sql_statement import Given
from gridmill.domain.training import CHECKPOINTED, ModelKind, TrainingSpec
from gridmill.errors import InputError


class When(StrEnum):
    """`success`: once all that it needs has succeeded. `failure`: once all that it needs, and all before
    that, has ended, if one of these jobs has failed. `always`: once all of these have ended, however."""

    SUCCESS = "success"
    FAILURE = "failure"
    ALWAYS = "always"


REMARKS = {
    When.SUCCESS: "",
    When.FAILURE: "runs only after a failure",
    When.ALWAYS: "runs after success or failure",
}
"""The remark on such a job in a plan."""


class JobKind(StrEnum):
    """What a job does; also the type of the resource that serves it."""

    SINK = "sink"
    DATASET = "dataset"
    TRAINING = "training"
    PREDICTION = "prediction"
    COMMAND = "command"


_SPECS = attrgetter(*map(str, JobKind))
_KIND_OF: dict[tuple[bool, ...], JobKind] = {tuple(one is kind for one in JobKind): kind for kind in JobKind}
"""The kind of a job by which of its specs are set: just one."""
_PLACE_OF = {kind: place for place, kind in enumerate(JobKind)}


Spec: TypeAlias = SinkSpec | DatasetSpec | TrainingSpec | PredictionSpec | CommandSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSize:
    """How much a job has to handle; None is unknown and is read from the data when it can be."""

    rows: int | None = None
    columns: int | None = None
    input_bytes: int | None = None

    def or_else(self, other: "JobSize") -> "JobSize":
        """The known values, completed by those that only `other` has."""
        return JobSize(
            rows=other.rows if self.rows is None else self.rows,
            columns=other.columns if self.columns is None else self.columns,
            input_bytes=other.input_bytes if self.input_bytes is None else self.input_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Exactly one of `sink`, `dataset`, `training`, `prediction`, `command` is set.

    `needs` are jobs that must be done before. A command can also name a result of another pipeline in it:
    `other/job`, `other/job@3`, `other/job@prod`; it is read as it was when the run began.
    `when` lets a command run once its needs have ended although one failed: `failure` if one has failed, to
    report it, `always` however they ended, to clean up. `GRIDMILL_FAILED` then names the failed jobs, with
    spaces between them. The run fails all the same.
    `retries` counts further attempts after a failure of the job itself; attempts lost with their pod or for
    want of the machine's memory, and the larger ones of a job whose size is an estimate, come on top.
    `timeout_seconds` bounds one attempt. At its end it gets SIGTERM, and SIGKILL after `GRIDMILL_GRACE`
    (5 s). `at` names the site it is run at; a `resource` says it already. Of several `resources` it goes to
    the one where it is expected to be done first, its data carried there and back; `at` leaves those of one
    site.
    `memory_bytes` and `cpus` override the estimate for one attempt. `disk_bytes` and `disk_files` limit what
    its files use on the disk while it runs, and how many there are; an attempt above its limit is ended. A
    job is restored from an earlier version that was made from the same (declaration, inputs, code), and not
    executed. `cache` decides otherwise:
    `false` executes it in every run; `true` restores it in every run. Without `cache`, runs that a schedule
    starts execute commands and restore the other jobs; runs that a person starts restore all. `--force`
    executes every job. `retain` says which of
    its versions are kept (default: all). `schedule` says when this job runs by itself, with what it needs and
    without what comes after it, in a kept pipeline under `gridmill up`. `resumable`: an attempt goes on from
    what the one before it left in its checkpoints, so it may be interrupted for jobs that are much shorter;
    trainings of `lstm` and `mlp` are, unless it is false. A command finds `GRIDMILL_CHECKPOINTS` then.
    With a `matrix` it stands for one job per combination of the values (at most 256): `matrix: {region: [eu,
    us]}` on `train` makes `train-eu` and `train-us`, in which `${region}` is the value. Jobs that need
    `train` need both.
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
    sink: SinkSpec | None = None
    dataset: DatasetSpec | None = None
    training: TrainingSpec | None = None
    prediction: PredictionSpec | None = None
    command: CommandSpec | None = None
    matrix: Mapping[str, Given] = field(default_factory=dict)
    parameters: Mapping[str, Given] = field(default_factory=dict)
    """The parameters of the pipeline that its declaration refers to, with their values in this run."""

    def check(self) -> None:
        """Raise InputError for memory that was meant otherwise, and for a `when` that has no meaning."""
        check_memory(self.memory_bytes, "job.memory")
        if self.when != When.SUCCESS and (self.command is None or not self.needs):
            raise InputError(
                f"`when: {self.when}` needs `needs`: it is a condition on how those jobs end",
                hint="Name the jobs in `needs`, or leave out `when`.",
                place="job.when",
            )

    @property
    def kind(self) -> JobKind:
        """The one kind that is set. Raises InputError for none or several."""
        sink, dataset, training, prediction, command = _SPECS(self)
        if command is not None and sink is dataset is training is prediction is None:  # by far the most
            return JobKind.COMMAND
        are_set = (
            sink is not None,
            dataset is not None,
            training is not None,
            prediction is not None,
            command is not None,
        )
        kind = _KIND_OF.get(are_set)
        if kind is None:
            names = [str(one) for one, is_set in zip(JobKind, are_set, strict=True) if is_set]
            raise InputError(
                f"job {self.name!r} declares {len(names)} kinds ({', '.join(names) or 'none'})",
                hint=f"Declare exactly one of {', '.join(JobKind)}.",
            )
        return kind

    @property
    def spec(self) -> Spec:
        """The declaration of the one kind that is set."""
        sink, dataset, training, prediction, command = specs = _SPECS(self)
        if command is not None and sink is dataset is training is prediction is None:  # by far the most
            one: Spec = command
        else:
            one = specs[_PLACE_OF[self.kind]]
        return one

    @property
    def named_resources(self) -> tuple[str, ...]:
        """The resource that the job names, or the ones it may use; empty if it uses the default of
        its kind."""
        return self.resources if self.resource is None else (self.resource,)

    @property
    def each(self) -> Each | None:
        """The nodes that its command runs on, once on each of them; None: it runs once."""
        return self.command.each if self.command is not None else None

    def why_executed(self, *, scheduled: bool = False) -> str:
        """Why no earlier version is restored in a run (`scheduled`: one that a schedule starts), whatever the
        job is made from; empty where one may be."""
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
        """The files or patterns of the project that its code reads, as declared; empty: all of its folder."""
        spec = self.command or self.training
        return () if spec is None else spec.inputs

    @property
    def environment(self) -> str | None:
        """The requirements file of its code."""
        spec = self.command or self.training
        return None if spec is None else spec.environment

    @property
    def can_resume(self) -> bool:
        """Whether an attempt resumes from the checkpoint of the one before it."""
        if self.resumable is not None or self.training is None:
            return bool(self.resumable)
        return self.training.model in CHECKPOINTED

    @property
    def runs_code(self) -> bool:
        """Whether it runs code of the project: a command, or a custom training."""
        return self.command is not None or (
            self.training is not None and self.training.model == ModelKind.CUSTOM
        )

    @property
    def gang(self) -> int:
        """How many ranks it runs as; 0 where it is no gang."""
        spec = self.command or self.training
        return 0 if spec is None else count_workers(spec.workers, spec.roles)

    @property
    def all_needs(self) -> tuple[str, ...]:
        """Declared needs and those that follow from the names the spec refers to, each once, in order.

        A name with a slash (`pipeline/job`) is that of another pipeline's result: see `external_names`.
        """
        return tuple([name for name in named if "/" not in name]) if (named := self._names_read()) else ()

    @property
    def external_names(self) -> tuple[str, ...]:
        """Results of other pipelines that it reads, each once, in order: `pipeline/job` for its latest
        version, `pipeline/job@3`, `pipeline/job@prod`."""
        return tuple([name for name in named if "/" in name]) if (named := self._names_read()) else ()

    def _names_read(self) -> Collection[str]:
        references = (*self.needs, *self.spec.references())
        return dict.fromkeys(references) if references else ()

    @property
    def misplaced_need(self) -> str:
        """A result of another pipeline in the `needs` of a job that cannot read it; empty if there is
        none."""
        return "" if self.command is not None else next((name for name in self.needs if "/" in name), "")


_TABLES = (ArtifactKind.SINK, ArtifactKind.DATASET, ArtifactKind.PREDICTION)


def check_kind(job: Job, reference: str, artifact: Artifact) -> None:
    """Raise InputError for a model where a table is read, a sink where a model is asked for, and the like."""
    wanted = _wanted(job, reference)
    if wanted and artifact.kind not in wanted:
        raise InputError(
            f"job {job.name!r} reads {reference!r} as a {wanted[0]}, but it is a {artifact.kind}",
            hint=f"`gridmill list {wanted[0]}` lists those that exist.",
        )


def _wanted(job: Job, reference: str) -> tuple[ArtifactKind, ...]:
    """Empty: any kind will do."""
    learned = job.training or job.prediction
    if learned is not None:
        return (ArtifactKind.MODEL,) if reference in learned.models else (ArtifactKind.DATASET,)
    if job.sink is not None:
        return (ArtifactKind.SINK,)
    return _TABLES if job.dataset is not None else ()
