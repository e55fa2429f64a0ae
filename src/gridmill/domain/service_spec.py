"""This module declares the jobs of services: the job of a pipeline that starts or updates a service, and the
long-lived attempt in which the replicas of a service run."""

from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import LAST_PORT, check_name
from gridmill.domain.service_settings import NO_SETTINGS, WRITTEN, ServiceSettings, check_settings
from gridmill.errors import InputError

DRAIN_SECONDS = 10.0
"""The time that the replicas of a stopped service have to answer their running requests."""
STOP_SECONDS = DRAIN_SECONDS + 5.0
"""The time between SIGTERM and SIGKILL for the attempt of a service. It includes the end of the processes
after the last answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """The declaration of a job of a service.

    A job of a pipeline has a `model`: a training of the pipeline, or a version of another pipeline. When a
    run reaches the job, the service `name` (default: the name of the job) is started with this version, or is
    updated to it. The job ends when the service answers with this version. `count` is the number of replicas,
    or a range (`1..8`); empty if the number follows from `rate` (requests per second) or is not changed.
    `port` is the port of the service (0: a free port, which stays the same). Settings that are None keep
    their value.

    The run of a service has a job without `model`, which runs the replicas of the service `name`. `replicas`
    is the number of replicas for which the attempt gets memory and CPUs. With `has_view`, a process keeps a
    view of contextual features. If the service has a canary, each replica is assumed to need `canary_bytes`
    more; `shadow_bytes` is the memory of the process of its shadow. On a GPU that services share, the attempt
    gets `gpus` shares (None: the GPUs of the resource). The record of the service has everything that an
    update can change. With `routes`, the job runs the router of a service whose replicas run at another site.
    `node` is the only node on which the job runs, because another node has another pod of the service; empty
    if the job may run on each node.

    If `calibrates` is set, the next attempt measures a replica of this version of a model on a machine of the
    type `machine`. If `name` is empty, the job then ends. Otherwise it is the job of this service on a rented
    machine, and its next attempt runs the replicas.
    """

    name: str = ""
    model: str = ""
    count: str = ""
    rate: float = 0.0
    port: int = 0
    settings: ServiceSettings = NO_SETTINGS
    replicas: int = 1
    routes: bool = False
    has_view: bool = False
    canary_bytes: int = 0
    shadow_bytes: int = 0
    gpus: int | None = None
    node: str = ""
    calibrates: str = ""
    machine: str = ""

    @property
    def is_declared(self) -> bool:
        """Whether a pipeline declares this job. Such a job has no attempt: the control node starts or updates
        the service."""
        return bool(self.model)

    @property
    def measures_first(self) -> bool:
        """Whether this is the job of a service that measures its version before it runs the replicas."""
        return bool(self.calibrates and self.name)

    def references(self) -> tuple[str, ...]:
        """The names of other results that the job reads: the model of a declared job. Other jobs read none,
        because the record of the service names the version that it serves."""
        return (self.model,) if self.model else ()

    def check(self) -> None:
        """Raise InputError, with the field as in a pipeline file, for a declaration without a model, and for
        a number or a setting that a service cannot have."""
        if not self.model:
            raise InputError(
                "no model is named",
                hint="Name a training of the pipeline, or a version such as `weather/lstm@champion`.",
                place="service.model",
            )
        if self.name:
            _check_service_name(self.name)
        read_replicas(self.count, place="service.replicas")
        if self.rate < 0:
            raise InputError(f"rate is {self.rate:g}; it must be at least 0", place="service.rate")
        if not 0 <= self.port <= LAST_PORT:
            raise InputError(f"port is {self.port}; it must be from 0 to {LAST_PORT}", place="service.port")
        _check_settings(self.settings)


def _check_service_name(name: str) -> None:
    try:
        check_name("service", name)
    except InputError as error:
        raise InputError(error.message, hint=error.hint, place="service.name") from error


def _check_settings(settings: ServiceSettings) -> None:
    try:
        check_settings(settings)
    except InputError as error:
        first, dot, rest = error.place.partition(".")
        place = f"service.{WRITTEN.get(first, first)}{dot}{rest}"
        raise InputError(error.message, hint=error.hint, place=place) from error


def read_replicas(text: str, place: str = "--replicas") -> tuple[int, int | None]:
    """Parse `4` or `1..8` as the largest and the smallest number of replicas. The smallest number is None
    without a range, and the largest number is 0 for an empty text. Raises InputError."""
    least, dots, most = text.partition("..") if ".." in text else ("", "", text or "0")
    if not most.isdecimal() or (dots and not least.isdecimal()) or (text and int(most) < 1):
        raise InputError(
            f"{text!r} is not a number of replicas",
            hint="Write a number, or a range such as 1..8, or 0..8 to have none without requests.",
            place=place,
        )
    return int(most), int(least) if dots else None
