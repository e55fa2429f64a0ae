"""Google Cloud Batch: one job with one task for each request, without retries by the service.

Sources: the REST reference of Batch (projects.locations.jobs: create, get, cancel;
projects.locations.jobs.taskGroups.tasks: list) and its pages "Troubleshooting" (reserved exit codes, quota)
and "Quotas and limits".
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Any

from gridmill.clouds.gcp.requests import GcpRequests
from gridmill.clouds.gcp.settings import GcpSettings
from gridmill.clouds.gcp.settings import read_settings as read_account
from gridmill.domain.amounts import MIB, parse_bytes
from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import suggestion
from gridmill.domain.states import Cause
from gridmill.errors import (
    ConflictError,
    CredentialsError,
    GridmillError,
    InputError,
    NotFoundError,
    RefusedError,
)
from gridmill.ports.batch import BatchJob, BatchPhase, BatchRequest, OpenJob, QueueProblem

KNOWN: Mapping[str, str] = {
    "region": "the region of the jobs, such as europe-west4",
    "image": "the container image with Gridmill",
    "project": "the id of the project (default: the project of the credentials)",
    "service_account": "the email of the service account of the containers, which may use the bucket",
    "machine_type": "the type of the machines (default: the smallest that fits each job)",
    "accelerator": "the type of the GPUs of jobs with GPUs, such as nvidia-l4",
    "network": "the network of the machines (default: global/networks/default)",
    "subnetwork": "the subnetwork of the machines, such as regions/europe-west4/subnetworks/NAME",
    "nfs": "an NFS file system, such as Filestore, that the containers mount: SERVER:/PATH",
    "nfs_mount": "the path in the containers at which `nfs` is mounted (default: /mnt/disks/share)",
    "disk": "the disk space for each job besides the disk of the image, such as 100GiB (default: none)",
    "service_account_key": "the JSON key of the service account of the home, as {secret: NAME} (default: the "
    "application default credentials)",
    "endpoint_url": "the URL of a server that has the API of Batch, for tests",
}
"""The settings of the service, with their descriptions."""
_AWS_KEYS = frozenset({"access_key_id", "secret_access_key", "session_token"})
"""The settings of a bucket, which the service ignores."""
_REGION = re.compile(r"[a-z]+(-[a-z]+)+\d+")
_NFS = re.compile(r"(?P<server>[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):(?P<path>/\S*)")
_NOT_IN_LABEL = re.compile(r"[^a-z0-9_-]+")
_GROUP = "group0"
_OWNER = "gridmill-owner"
"""The label with the home and the site of a job."""
_FEW = 4
"""Up to this many jobs are requested one by one. For more jobs, the open jobs of their owner are listed."""
_SHARED_MEMORY = "--shm-size=64g"
"""Docker gives 64 MiB, which is too small for the workers of a DataLoader."""
_PAGE, _MOST_PAGES = 500, 20
_AT_ONCE = 8
_PHASES: Mapping[str, BatchPhase] = {
    "QUEUED": BatchPhase.QUEUED,
    "SCHEDULED": BatchPhase.QUEUED,  # its machines are requested, and may lack quota or capacity
    "RUNNING": BatchPhase.RUNNING,
    "SUCCEEDED": BatchPhase.ENDED,
    "FAILED": BatchPhase.ENDED,
    "CANCELLED": BatchPhase.ENDED,
}
"""The phases of the states of jobs. In all other states, the containers may still run."""
_EXIT_CODES: Mapping[int, str] = {
    50001: "the Spot machine was preempted",
    50002: "the machine did not report for a long time",
    50003: "the machine was rebooted while the task ran",
    50004: "the task did not respond",
    50005: "the task reached its time limit",
    50006: "the machine was recreated while the task ran",
}
"""The reserved exit codes, with which Batch reports why a task ended."""
_CAUSES: Mapping[int | None, Cause] = {50001: Cause.TAKEN, 50005: Cause.TIMEOUT}
_MOVE = re.compile(r"(?:to|->) (?P<state>[A-Z]+)")
_TROUBLE = re.compile(r"quota|exhausted|stockout|capacity|denied|not found|invalid|error", re.IGNORECASE)
_HOPELESS = re.compile(r"machine.?type.*not found|permission.*denied|invalid", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpBatchSettings:
    """The parsed settings, see `KNOWN`."""

    region: str
    image: str
    service_account: str
    machine_type: str
    accelerator: str
    network: str
    subnetwork: str
    nfs_server: str
    nfs_path: str
    nfs_mount: str
    disk_bytes: int
    account: GcpSettings


def read_settings(settings: Mapping[str, str], place: str) -> GcpBatchSettings:
    """Parse the settings. Raises InputError, with `place` as the place of the settings."""
    for name in settings:
        if name not in KNOWN and name not in _AWS_KEYS:
            raise InputError(
                f"there is no setting {name!r} of Google Cloud Batch",
                hint=f"{suggestion(name, KNOWN)} Settings are {', '.join(sorted(KNOWN))}.".lstrip(),
                place=f"{place}: settings.{name}",
            )
    if not _REGION.fullmatch(settings.get("region", "")):
        raise InputError(
            f"{settings.get('region', '')!r} is not a region",
            hint="Set for example region=europe-west4.",
            place=f"{place}: settings.region",
        )
    if not settings.get("image"):
        raise InputError("the image is missing", hint="Set image=IMAGE.", place=f"{place}: settings.image")
    server, path = _nfs(settings, place)
    names = ("project", "service_account_key", "endpoint_url")
    account = {name: settings[name] for name in names if name in settings}
    return GcpBatchSettings(
        region=settings["region"],
        image=settings["image"],
        service_account=settings.get("service_account", ""),
        machine_type=settings.get("machine_type", ""),
        accelerator=settings.get("accelerator", ""),
        network=settings.get("network", ""),
        subnetwork=settings.get("subnetwork", ""),
        nfs_server=server,
        nfs_path=path,
        nfs_mount=_nfs_mount(settings, place),
        disk_bytes=_disk_bytes(settings, place),
        account=read_account(account, lambda value: value),
    )


def _nfs(settings: Mapping[str, str], place: str) -> tuple[str, str]:
    """Return the server and the path of the NFS file system. Both are empty if the containers mount none."""
    text = settings.get("nfs", "")
    match = _NFS.fullmatch(text)
    if text and match is None:
        raise InputError(
            f"{text!r} is not an NFS file system",
            hint="Write SERVER:/PATH, such as 10.0.0.2:/vol1.",
            place=f"{place}: settings.nfs",
        )
    return (match["server"], match["path"]) if match is not None else ("", "")


def _nfs_mount(settings: Mapping[str, str], place: str) -> str:
    path = settings.get("nfs_mount", "/mnt/disks/share")
    if not path.startswith("/") or not path.isprintable() or ".." in path.split("/"):
        raise InputError(
            f"{path!r} is not an absolute path",
            hint="Write for example /mnt/disks/share.",
            place=f"{place}: settings.nfs_mount",
        )
    return path.rstrip("/")


def _disk_bytes(settings: Mapping[str, str], place: str) -> int:
    try:
        return parse_bytes(settings.get("disk", "0"))
    except InputError as error:
        raise InputError(error.message, hint=error.hint, place=f"{place}: settings.disk") from error


def make(settings: Mapping[str, str], place: str) -> "GcpBatch":
    """Open the service. Raises InputError."""
    parsed = read_settings(settings, place)
    return GcpBatch(parsed, GcpRequests(parsed.account))


class GcpBatch:
    """Google Cloud Batch in one region. Several threads may use the object at the same time. It implements
    BatchPort. The id of a job is its resource name."""

    def __init__(self, settings: GcpBatchSettings, requests: GcpRequests) -> None:
        self._settings, self._requests = settings, requests
        self._owner = ""
        """The label of the owner of the jobs, which is read from the first job."""

    def _location(self) -> str:
        return f"projects/{self._requests.project()}/locations/{self._settings.region}"

    def _call(self, action: str, name: str, **more: Any) -> Mapping[str, Any]:  # noqa: ANN401
        return self._requests.call("batch", action, f"/v1/{name}", **more)

    def check(self) -> str:
        """See BatchPort."""
        location = self._location()
        self._call("jobs.list", f"{location}/jobs", query={"pageSize": 1})
        return f"Google Cloud Batch, {location}"

    def account(self) -> str:
        """See BatchPort. It is the project."""
        return self._requests.project()

    def submit(self, request: BatchRequest) -> str:
        """See BatchPort. The name of the request is the id of the job, so that it exists only once."""
        location = self._location()
        if request.nodes > 1:
            raise InputError("Gridmill runs no jobs with several ranks at Google Cloud Batch")
        body = job_body(request, self._settings)
        # a job with this name is the one of an earlier request, also if it cannot be read yet
        with suppress(ConflictError):
            self._call("jobs.create", f"{location}/jobs", query={"jobId": request.name}, body=body)
        return f"{location}/jobs/{request.name}"

    def find(self, name: str) -> str | None:
        """See BatchPort."""
        id = f"{self._location()}/jobs/{name}"
        return id if self._get(id) is not None else None

    def _get(self, id: str) -> Mapping[str, Any] | None:
        try:
            return self._call("jobs.get", id)
        except NotFoundError:
            return None

    def describe(self, ids: Sequence[str]) -> Mapping[str, BatchJob]:
        """See BatchPort. The states of open jobs come from a list. The events of the task of a failed job
        give the reason."""
        listed = self._open_jobs() if len(ids) > _FEW and self._owner else {}
        others = [id for id in ids if id not in listed]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="gcp-batch") as pool:
            found = dict(zip(others, pool.map(self._described, others), strict=True))
        found |= {id: listed[id] for id in ids if id in listed}
        return {id: job for id, job in found.items() if job is not None}

    def _open_jobs(self) -> Mapping[str, BatchJob]:
        """Return the states of all jobs of the owner that have not ended, by their ids. The result is
        incomplete if the service refuses the list."""
        jobs: dict[str, BatchJob] = {}
        with suppress(CredentialsError, RefusedError, InputError):
            for one in self._listed(self._owner):
                jobs |= {one.id: one}
        return jobs

    def _listed(self, owner: str) -> Iterator[BatchJob]:
        """Yield all jobs of the owner that have not ended. Jobs that ended are left out, because the service
        keeps them for months."""
        over = (state for state, phase in _PHASES.items() if phase is BatchPhase.ENDED)
        terms = (f'labels.{_OWNER}="{owner}"', *(f'status.state!="{state}"' for state in over))
        query: dict[str, Any] = {"filter": " AND ".join(terms), "pageSize": _PAGE}
        for _ in range(_MOST_PAGES):
            answer = self._call("jobs.list", f"{self._location()}/jobs", query=query)
            for one in answer.get("jobs") or ():
                name = str(one.get("name", "")).rpartition("/")[2]
                seen = job_of(f"{self._location()}/jobs/{name}", one, ())
                if seen.phase is not BatchPhase.ENDED:
                    yield seen
            if not answer.get("nextPageToken"):
                break
            query = {**query, "pageToken": answer["nextPageToken"]}

    def open_jobs(self, mark: str) -> Sequence[OpenJob]:
        """See BatchPort."""
        return tuple(
            OpenJob(
                id=one.id,
                name=one.id.rpartition("/")[2],
                status=one.status,
                end_command=f"gcloud batch jobs delete {one.id}",
            )
            for one in self._listed(mark)
        )

    def _described(self, id: str) -> BatchJob | None:
        job = self._get(id)
        if job is None:
            return None
        self._owner = self._owner or str((job.get("labels") or {}).get(_OWNER, ""))
        tasks: Iterable[Mapping[str, Any]] = ()
        if (job.get("status") or {}).get("state") == "FAILED":
            # without the right to read tasks, only the reason is missing; an error would hide all other jobs
            with suppress(CredentialsError, RefusedError, NotFoundError):
                tasks = self._call("tasks.list", f"{id}/taskGroups/{_GROUP}/tasks").get("tasks") or ()
        return job_of(id, job, tasks)

    def cancel(self, id: str, reason: str) -> None:
        """See BatchPort. The service has no place for the reason."""
        try:
            self._call("jobs.cancel", f"{id}:cancel", body={})
        except (NotFoundError, RefusedError, ConflictError, InputError) as error:
            job = self._described(id)
            if job is not None and job.phase is not BatchPhase.ENDED:
                raise _explained(error, id) from error

    def diagnose(self, job: BatchJob, request: BatchRequest) -> QueueProblem | None:
        """See BatchPort."""
        found = self._get(job.id) or {}
        return queue_problem((found.get("status") or {}).get("statusEvents") or ())

    def bucket_credentials(self, bucket: str) -> Callable[[], Mapping[str, Any]] | None:
        """See BatchPort. The credentials of the home are also used for the bucket. google-auth renews their
        access tokens."""
        return self._requests.bucket_credentials if bucket.startswith("gs://") else None

    def close(self) -> None:
        """See BatchPort."""
        self._requests.close()


def _explained(error: GridmillError, id: str) -> GridmillError:
    return type(error)(f"job {id} cannot be cancelled: {error.message}", hint=error.hint)


def job_body(request: BatchRequest, settings: GcpBatchSettings) -> Mapping[str, Any]:
    """Return the job, as `jobs.create` needs it. Raises InputError for GPUs without a type."""
    if request.gpus and not settings.accelerator:
        raise InputError(
            "the job needs GPUs, and the site has no setting `accelerator`",
            hint="Set for example accelerator=nvidia-l4.",
        )
    task: dict[str, Any] = {
        "runnables": [
            {
                "container": {
                    "imageUri": settings.image,
                    "commands": list(request.command),
                    "options": _SHARED_MEMORY,
                },
                "environment": {"variables": dict(request.variables)},
            }
        ],
        "computeResource": {
            "cpuMilli": str(1000 * request.cpus),
            "memoryMib": str(-(-request.memory_bytes // MIB)),
        },
        "maxRetryCount": 0,
        "maxRunDuration": f"{max(60, int(request.limit_seconds))}s",
    }
    if settings.disk_bytes:
        task["computeResource"]["bootDiskMib"] = str(-(-settings.disk_bytes // MIB))
    if settings.nfs_server:
        # Batch mounts the volumes of the task in its containers too, at the same path
        nfs = {"server": settings.nfs_server, "remotePath": settings.nfs_path}
        task["volumes"] = [{"nfs": nfs, "mountPath": settings.nfs_mount}]
    policy: dict[str, Any] = {"provisioningModel": "SPOT" if request.spot else "STANDARD"}
    if settings.machine_type:
        policy["machineType"] = settings.machine_type
    if request.gpus:
        policy["accelerators"] = [{"type": settings.accelerator, "count": str(request.gpus)}]
    instances: dict[str, Any] = {"policy": policy}
    if request.gpus:
        instances["installGpuDrivers"] = True
    allocation: dict[str, Any] = {
        "instances": [instances],
        "location": {"allowedLocations": [f"regions/{settings.region}"]},
    }
    if settings.service_account:
        allocation["serviceAccount"] = {"email": settings.service_account}
    if settings.network or settings.subnetwork:
        names = {"network": settings.network, "subnetwork": settings.subnetwork}
        interface = {name: value for name, value in names.items() if value}
        allocation["network"] = {"networkInterfaces": [interface]}
    return {
        "taskGroups": [{"taskCount": "1", "taskSpec": task}],
        "allocationPolicy": allocation,
        "labels": {name: _label(value) for name, value in request.labels.items()},
        "logsPolicy": {"destination": "CLOUD_LOGGING"},
    }


def _label(value: str) -> str:
    """Return the text as the value of a label: at most 63 lower-case letters, digits, `-` and `_`."""
    return _NOT_IN_LABEL.sub("-", value.lower())[:63]


def job_of(id: str, job: Mapping[str, Any], tasks: Iterable[Mapping[str, Any]]) -> BatchJob:
    """Return the state of a job. `tasks` are the tasks of a failed job."""
    status = job.get("status") or {}
    state = str(status.get("state", ""))
    events = status.get("statusEvents") or ()
    task_events = [one for task in tasks for one in (task.get("status") or {}).get("statusEvents") or ()]
    code = _exit_code((*events, *task_events))
    words = _EXIT_CODES.get(code or 0, "")
    said = str(events[-1].get("description", "")) if events else ""
    number = f"exit code {code}: {words}" if words else ""
    return BatchJob(
        id=id,
        phase=_PHASES.get(state, BatchPhase.RUNNING),
        status=state,
        created=_time(job.get("createTime")),
        started=_moved(events, ("RUNNING",)),
        ended=_moved(events, ("SUCCEEDED", "FAILED", "CANCELLED")),
        exit_code=code,
        reason="; ".join(filter(None, (number, said))),
        cause=_CAUSES.get(code, Cause.LOST) if state == "FAILED" else Cause.LOST,
    )


def _exit_code(events: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the exit code of the last execution. A job without retries has one execution."""
    codes = [(one.get("taskExecution") or {}).get("exitCode") for one in events]
    known = [int(one) for one in codes if one is not None]
    return known[-1] if known else None


def _moved(events: Iterable[Mapping[str, Any]], states: Sequence[str]) -> float | None:
    """Return the time of the event with which the job came into one of these states."""
    for event in events:
        match = _MOVE.search(str(event.get("description", "")))
        if match is not None and match["state"] in states:
            return _time(event.get("eventTime"))
    return None


def _time(text: object) -> float | None:
    if not isinstance(text, str) or not text:
        return None
    seconds, _, rest = text.removesuffix("Z").partition(".")
    try:
        whole = datetime.fromisoformat(f"{seconds}+00:00").timestamp()
    except ValueError:
        return None
    return whole + (float(f"0.{rest}") if rest.isdigit() else 0.0)


def queue_problem(events: Sequence[Mapping[str, Any]]) -> QueueProblem | None:
    """Return the reason why a job is queued, from the events of its status."""
    for event in reversed(events):
        text = str(event.get("description", ""))
        if _TROUBLE.search(text):
            return QueueProblem(message=text, hopeless=bool(_HOPELESS.search(text)))
    return QueueProblem(
        message="Batch gives no reason; the project may lack quota for the machines in this region, the "
        "region may have no capacity, or the service account of the machines may lack the role "
        "roles/batch.agentReporter"
    )
