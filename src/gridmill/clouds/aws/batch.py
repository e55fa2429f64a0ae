"""AWS Batch: one job of a queue for each request, without retries by the service.

Sources: the API reference of AWS Batch (SubmitJob, ListJobs, DescribeJobs, TerminateJob,
DescribeJobQueues, DescribeComputeEnvironments, RegisterJobDefinition) and the pages "Job states", "Jobs stuck
in RUNNABLE" and "Automated job retries" of its user guide.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gridmill.clouds.aws.fargate import fargate_size
from gridmill.clouds.aws.requests import AwsRequests
from gridmill.clouds.aws.settings import AwsSettings
from gridmill.clouds.aws.settings import read_settings as read_account
from gridmill.domain.amounts import MIB, show_bytes
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.naming import suggestion
from gridmill.domain.states import Cause
from gridmill.errors import InputError, NotFoundError, RefusedError
from gridmill.ports.batch import BatchJob, BatchPhase, BatchRequest, OpenJob, QueueProblem, whole_id

KNOWN: Mapping[str, str] = {
    "region": "the region, such as eu-central-1",
    "queue": "the name or the ARN of the job queue",
    "image": "the container image with Gridmill, for which Gridmill registers a job definition",
    "job_definition": "a job definition to use instead of `image`",
    "job_role": "the ARN of the role of the container, which may read and write the bucket (with `image`)",
    "execution_role": "the ARN of the role that pulls the image (with `image`; Fargate needs it)",
    "platform": "EC2 or FARGATE (default: EC2)",
    "profile": "a profile of ~/.aws with the credentials",
    "access_key_id": "the id of an access key (default: the profile, or the environment variables of AWS)",
    "secret_access_key": "the access key, as {secret: NAME}",
    "session_token": "the session token of temporary credentials, as {secret: NAME}",
    "instance_role": "true: use the role of the EC2 machine on which the control node runs",
    "endpoint_url": "the URL of a server that has the API of AWS Batch, for tests",
}
"""The settings of the service, with their descriptions."""
_ACCOUNT = ("profile", "access_key_id", "secret_access_key", "session_token", "instance_role", "endpoint_url")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d+")
_ASKED = 100
_PHASES: Mapping[str, BatchPhase] = {
    "SUBMITTED": BatchPhase.QUEUED,
    "PENDING": BatchPhase.QUEUED,
    "RUNNABLE": BatchPhase.QUEUED,
    "STARTING": BatchPhase.STARTING,
    "RUNNING": BatchPhase.RUNNING,
    "SUCCEEDED": BatchPhase.ENDED,
    "FAILED": BatchPhase.ENDED,
}
_TAKEN = re.compile(
    r"Host EC2 \(instance .*\) terminated|Spot (interruption|capacity|Task was interrupted)",
    re.IGNORECASE,
)
"""The pattern of the reason of a job whose machine was ended, for example a Spot machine (user guide:
Automated job retries) or a task of Fargate Spot (developer guide of Amazon ECS: Fargate capacity
providers)."""
_QUEUE_LIMIT = re.compile(r"JobStateTimeLimit action", re.IGNORECASE)
"""The reason of a job that its queue has canceled by a rule of `jobStateTimeLimitActions` (user guide: Jobs
stuck in a RUNNABLE status)."""
_MEMORY = re.compile(r"OutOfMemory", re.IGNORECASE)
_TIMED_OUT = re.compile(r"duration exceeded timeout", re.IGNORECASE)
"""The reason of a job that reached its timeout (user guide: Job timeouts)."""
_BLOCKED: Mapping[str, str] = {
    "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE": "the job needs more vCPUs than the compute "
    "environment may have",
    "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT": "no instance type of the compute environments is large "
    "enough for the job",
    "MISCONFIGURATION:SERVICE_ROLE_PERMISSIONS": "the service role of the compute environment lacks a right",
    "MISCONFIGURATION:EC2_INSTANCE_CONFIGURATION_UNSUPPORTED": "EC2 does not support the configuration of "
    "the instances of the compute environment",
    "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY": "AWS has no capacity for the instance types now",
}
"""The reasons that AWS Batch states if the first job of a queue blocks the queue, with their meanings."""
_WITHOUT_GPUS = frozenset({"optimal", "default_x86_64", "default_arm64"})
"""The groups of instance types that have no machines with GPUs (API reference: ComputeResource)."""
_SHARED_MEMORY_MIB = 65_536
_OVERHEAD_BYTES = 32 * MIB
"""AWS Batch reserves at least this much memory of an instance for the ECS agent."""
_FAMILIES = re.compile(r"[a-z]+[0-9]+[a-z-]*\.(?P<size>[a-z0-9-]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsBatchSettings:
    """The parsed settings, see `KNOWN`."""

    region: str
    queue: str
    image: str
    job_definition: str
    job_role: str
    execution_role: str
    platform: str
    account: AwsSettings


def read_settings(settings: Mapping[str, str], place: str) -> AwsBatchSettings:
    """Parse the settings. Raises InputError, with `place` as the place of the settings."""
    for name in settings:
        if name not in KNOWN and name != "service_account_key":
            raise InputError(
                f"there is no setting {name!r} of AWS Batch",
                hint=f"{suggestion(name, KNOWN)} Settings are {', '.join(sorted(KNOWN))}.".lstrip(),
                place=f"{place}: settings.{name}",
            )
    _check(settings, place)
    account = {name: settings[name] for name in _ACCOUNT if name in settings}
    return AwsBatchSettings(
        region=settings["region"],
        queue=settings["queue"],
        image=settings.get("image", ""),
        job_definition=settings.get("job_definition", ""),
        job_role=settings.get("job_role", ""),
        execution_role=settings.get("execution_role", ""),
        platform=settings.get("platform", "EC2"),
        account=read_account(account, lambda value: value),
    )


def _check(settings: Mapping[str, str], place: str) -> None:
    if not _REGION.fullmatch(settings.get("region", "")):
        raise InputError(
            f"{settings.get('region', '')!r} is not a region",
            hint="Set for example region=eu-central-1.",
            place=f"{place}: settings.region",
        )
    if not settings.get("queue"):
        raise InputError("the job queue is missing", hint="Set queue=NAME.", place=f"{place}: settings.queue")
    if bool(settings.get("image")) == bool(settings.get("job_definition")):
        raise InputError(
            "set either `image` or `job_definition`",
            hint="With `image`, Gridmill registers a job definition.",
            place=f"{place}: settings.image",
        )
    if settings.get("platform", "EC2") not in ("EC2", "FARGATE"):
        raise InputError(
            f"{settings['platform']!r} is neither EC2 nor FARGATE", place=f"{place}: settings.platform"
        )


def make(settings: Mapping[str, str], place: str) -> "AwsBatch":
    """Open the service. Raises InputError."""
    parsed = read_settings(settings, place)
    return AwsBatch(parsed, AwsRequests(parsed.account))


class AwsBatch:
    """A job queue of AWS Batch. Several threads may use the object at the same time. It implements
    BatchPort."""

    def __init__(self, settings: AwsBatchSettings, requests: AwsRequests) -> None:
        self._settings, self._requests = settings, requests
        self._definitions: dict[bool, str] = {}

    def _call(self, action: str, **arguments: object) -> Mapping[str, Any]:
        return self._requests.call("batch", self._settings.region, action, **arguments)

    def check(self) -> str:
        """See BatchPort. Raises InputError if the queue does not exist or accepts no jobs."""
        queue = self._queue()
        if queue.get("state") != "ENABLED" or queue.get("status") != "VALID":
            raise InputError(
                f"the job queue {self._settings.queue} accepts no jobs: it is {_state(queue)}",
                hint=f"aws batch update-job-queue --job-queue {self._settings.queue} --state ENABLED",
            )
        self._job_definition()
        return f"AWS Batch, region {self._settings.region}, queue {self._settings.queue}"

    def account(self) -> str:
        """See BatchPort. The ARN of the queue contains the number of the account."""
        parts = str(self._queue().get("jobQueueArn", "")).split(":")
        return parts[4] if len(parts) > 4 else ""

    def _queue(self) -> Mapping[str, Any]:
        found = self._call("DescribeJobQueues", jobQueues=[self._settings.queue]).get("jobQueues") or ()
        if not found:
            raise InputError(
                f"region {self._settings.region} has no job queue {self._settings.queue!r}",
                hint="`aws batch describe-job-queues` lists the queues.",
            )
        queue: Mapping[str, Any] = found[0]
        return queue

    # --- job definitions

    def _job_definition(self, *, has_nodes: bool = False) -> str:
        """Return the job definition for the image, or for several nodes with this image. It is registered if
        it does not exist. Its name contains a hash of its content, so that the same definition is used
        again."""
        if self._settings.job_definition:
            return self._settings.job_definition
        if has_nodes not in self._definitions:
            wanted = definition_of(self._settings, has_nodes=has_nodes)
            name = str(wanted["jobDefinitionName"])
            answer = self._call("DescribeJobDefinitions", jobDefinitionName=name, status="ACTIVE")
            if not answer.get("jobDefinitions"):
                self._call("RegisterJobDefinition", **wanted)
            self._definitions[has_nodes] = name
        return self._definitions[has_nodes]

    # --- jobs

    def submit(self, request: BatchRequest) -> str:
        """See BatchPort. The service tries the job once, because Gridmill retries attempts itself."""
        has_nodes = request.nodes > 1
        if has_nodes:
            self._check_nodes()
        arguments = submission(request, self._settings, self._job_definition(has_nodes=has_nodes))
        return str(self._call("SubmitJob", **arguments)["jobId"])

    def _check_nodes(self) -> None:
        """Raise InputError if the settings or the queue permit no job with several nodes. AWS Batch runs such
        jobs only on EC2 and not on Spot machines (user guide: Multi-node parallel jobs)."""
        place = f"queue {self._settings.queue}"
        if self._settings.job_definition or self._settings.platform != "EC2":
            raise InputError(
                "jobs with several ranks need the setting `image` and the platform EC2", place=place
            )
        for one in self._environments(self._queue()):
            kind = str((one.get("computeResources") or {}).get("type", "EC2"))
            kind = "UNMANAGED" if one.get("type") == "UNMANAGED" else kind
            if kind != "EC2":
                raise InputError(
                    f"AWS Batch runs jobs with several ranks only on on-demand machines of EC2; compute "
                    f"environment {one.get('computeEnvironmentName', '')} has the type {kind}",
                    hint="Use a queue whose compute environments have the type EC2.",
                    place=place,
                )

    def _environments(self, queue: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        names = [
            one["computeEnvironment"]
            for one in sorted(queue.get("computeEnvironmentOrder") or (), key=lambda one: one["order"])
        ]
        answer = self._call("DescribeComputeEnvironments", computeEnvironments=names) if names else {}
        found: Sequence[Mapping[str, Any]] = answer.get("computeEnvironments") or ()
        return found

    def find(self, name: str) -> str | None:
        """See BatchPort. A list with a filter by name contains jobs of all states."""
        filters = [{"name": "JOB_NAME", "values": [name]}]
        found: list[Mapping[str, Any]] = []
        more: dict[str, object] = {}
        while True:  # a page may be empty although another page follows
            answer = self._call("ListJobs", jobQueue=self._settings.queue, filters=filters, **more)
            found += [one for one in answer.get("jobSummaryList") or () if one.get("jobName") == name]
            if not answer.get("nextToken"):
                break
            more = {"nextToken": answer["nextToken"]}
        # the oldest, because a repeated submission does nothing in its container
        oldest = min(found, key=lambda one: one.get("createdAt") or 0, default=None)
        return str(oldest["jobId"]) if oldest is not None else None

    def describe(self, ids: Sequence[str]) -> Mapping[str, BatchJob]:
        """See BatchPort."""
        wanted = list(dict.fromkeys([*map(whole_id, ids), *ids]))
        jobs: dict[str, BatchJob] = {}
        for start in range(0, len(wanted), _ASKED):
            answer = self._call("DescribeJobs", jobs=wanted[start : start + _ASKED])
            jobs |= {str(one["jobId"]): job_of(one) for one in answer.get("jobs") or ()}
        states = ((id, node_state(id, jobs.get(id), jobs.get(whole_id(id)))) for id in ids)
        return {id: state for id, state in states if state is not None}

    def open_jobs(self, mark: str) -> Sequence[OpenJob]:
        """See BatchPort. The jobs are listed by state, because a list by name also has the jobs that ended
        in the last seven days."""
        found: dict[str, OpenJob] = {}
        for status in (one for one, phase in _PHASES.items() if phase is not BatchPhase.ENDED):
            more: dict[str, object] = {}
            while True:
                answer = self._call("ListJobs", jobQueue=self._settings.queue, jobStatus=status, **more)
                for one in answer.get("jobSummaryList") or ():
                    if str(one.get("jobName", "")).startswith(f"gm-{mark}-"):
                        found[str(one["jobId"])] = self._open_job(one, status)
                if not answer.get("nextToken"):
                    break
                more = {"nextToken": answer["nextToken"]}
        return tuple(found.values())

    def _open_job(self, listed: Mapping[str, Any], status: str) -> OpenJob:
        id, region = str(listed["jobId"]), self._settings.region
        command = f"aws batch terminate-job --region {region} --job-id {id} --reason unknown"
        return OpenJob(id=id, name=str(listed["jobName"]), status=status, end_command=command)

    def cancel(self, id: str, reason: str) -> None:
        """See BatchPort. TerminateJob also cancels a job that has not started."""
        try:
            self._call("TerminateJob", jobId=whole_id(id), reason=reason or "cancelled")
        except (NotFoundError, RefusedError) as error:
            if self.describe([id]).get(id) is not None:
                raise error

    def diagnose(self, job: BatchJob, request: BatchRequest) -> QueueProblem | None:
        """See BatchPort."""
        queue = self._queue()
        environments = self._environments(queue)
        memory = self._memory_of_types(environments)
        return queue_problem(job, request, queue, environments, memory)

    def _memory_of_types(self, environments: Iterable[Mapping[str, Any]]) -> Mapping[str, int]:
        """Return the memory in bytes of the instance types that the environments name exactly. The result is
        empty if the credentials do not permit the request to EC2."""
        types = sorted(
            {
                name
                for one in environments
                for name in (one.get("computeResources") or {}).get("instanceTypes") or ()
                if _FAMILIES.fullmatch(name)
            }
        )
        if not types or self._settings.account.endpoint_url:
            return {}
        try:
            answer = self._requests.call(
                "ec2", self._settings.region, "DescribeInstanceTypes", InstanceTypes=types[:_ASKED]
            )
        except (RefusedError, InputError, NotFoundError):
            return {}
        return {
            str(one["InstanceType"]): int(one["MemoryInfo"]["SizeInMiB"]) * MIB
            for one in answer.get("InstanceTypes") or ()
        }

    def bucket_credentials(self, bucket: str) -> Callable[[], Mapping[str, Any]] | None:
        """See BatchPort. The credentials of a profile are also used for the bucket."""
        is_own = bucket.startswith("s3://") and self._settings.account.profile
        return self._requests.credentials if is_own else None

    def close(self) -> None:
        """See BatchPort."""
        self._requests.close()


def node_state(id: str, node: BatchJob | None, whole: BatchJob | None) -> BatchJob | None:
    """Return the state of a node. Before the nodes exist, it is the state of the job, which waits in the
    queue. If AWS ended the main node, the reason is the one of the job."""
    if whole is None or whole.id == id:
        return node
    if node is None or whole.phase is BatchPhase.QUEUED:
        return replace(whole, id=id)
    if node.phase in (BatchPhase.QUEUED, BatchPhase.STARTING) and whole.phase is BatchPhase.ENDED:
        return replace(whole, id=id)
    return node


def definition_of(settings: AwsBatchSettings, *, has_nodes: bool = False) -> Mapping[str, Any]:
    """Return the job definition for the image: RegisterJobDefinition as a value. With `has_nodes`, all nodes
    of a job have this image, and each job sets the number of its nodes."""
    container: dict[str, Any] = {
        "image": settings.image,
        "command": ["true"],
        "resourceRequirements": [
            {"type": "VCPU", "value": "1"},
            {"type": "MEMORY", "value": "2048"},
        ],
    }
    if settings.job_role:
        container["jobRoleArn"] = settings.job_role
    if settings.execution_role:
        container["executionRoleArn"] = settings.execution_role
    if settings.platform == "FARGATE":
        container["networkConfiguration"] = {"assignPublicIp": "ENABLED"}
    else:
        # Docker gives 64 MiB, which is too small for the workers of a DataLoader. The memory of the
        # container limits its shared memory too.
        container["linuxParameters"] = {"sharedMemorySize": _SHARED_MEMORY_MIB}
    nodes = {
        "numNodes": 2,
        "mainNode": 0,
        "nodeRangeProperties": [{"targetNodes": "0:", "container": container}],
    }
    body: dict[str, Any] = {
        **(
            {"type": "multinode", "nodeProperties": nodes}
            if has_nodes
            else {"type": "container", "containerProperties": container}
        ),
        "platformCapabilities": [settings.platform],
        "retryStrategy": {"attempts": 1},
        "tags": {"gridmill": "true"},
    }
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:12]
    return {"jobDefinitionName": f"gridmill-{digest}", **body}


def submission(request: BatchRequest, settings: AwsBatchSettings, definition: str) -> Mapping[str, Any]:
    """Return the arguments of SubmitJob. Raises InputError if Fargate has no size for the job."""
    cpus, memory_mib = request.cpus, -(-request.memory_bytes // MIB)
    if settings.platform == "FARGATE":
        cpus, memory_mib = fargate_size(cpus, memory_mib)
    requirements = [
        {"type": "VCPU", "value": str(cpus)},
        {"type": "MEMORY", "value": str(memory_mib)},
    ]
    if request.gpus:
        requirements.append({"type": "GPU", "value": str(request.gpus)})
    container = {
        "command": list(request.command),
        "environment": [{"name": name, "value": value} for name, value in request.variables.items()],
        "resourceRequirements": requirements,
    }
    every_node = [{"targetNodes": "0:", "containerOverrides": container}]
    return {
        "jobName": request.name,
        "jobQueue": settings.queue,
        "jobDefinition": definition,
        **(
            {"nodeOverrides": {"numNodes": request.nodes, "nodePropertyOverrides": every_node}}
            if request.nodes > 1
            else {"containerOverrides": container}
        ),
        "retryStrategy": {"attempts": 1},
        "timeout": {"attemptDurationSeconds": max(60, int(request.limit_seconds))},
        "tags": {name: value[:256] for name, value in request.labels.items()},
    }


def job_of(described: Mapping[str, Any]) -> BatchJob:
    """Return the state of a job from an item of DescribeJobs."""
    status = str(described.get("status", ""))
    container = described.get("container") or {}
    reasons = [str(one) for one in (described.get("statusReason"), container.get("reason")) if one]
    reason = ": ".join(dict.fromkeys(reasons))
    return BatchJob(
        id=str(described["jobId"]),
        phase=_PHASES.get(status, BatchPhase.QUEUED),
        status=status,
        created=_time(described.get("createdAt")),
        started=_time(described.get("startedAt")),
        ended=_time(described.get("stoppedAt")),
        exit_code=container.get("exitCode"),
        reason=reason,
        cause=_cause(reason) if status == "FAILED" else Cause.LOST,
    )


def _cause(reason: str) -> Cause:
    if _TAKEN.search(reason):
        return Cause.TAKEN
    if _TIMED_OUT.search(reason) or _QUEUE_LIMIT.search(reason):
        return Cause.TIMEOUT
    return Cause.MEMORY if _MEMORY.search(reason) else Cause.LOST


def _time(milliseconds: object) -> float | None:
    return float(milliseconds) / 1000 if isinstance(milliseconds, int | float) and milliseconds else None


def queue_problem(
    job: BatchJob,
    request: BatchRequest,
    queue: Mapping[str, Any],
    environments: Sequence[Mapping[str, Any]],
    memory_of_types: Mapping[str, int],
) -> QueueProblem | None:
    """Return the reason why a job stays RUNNABLE. `queue` and `environments` are items of DescribeJobQueues
    and DescribeComputeEnvironments. A problem that concerns only some of the environments of the queue is
    not hopeless."""
    if queue.get("state") != "ENABLED" or queue.get("status") != "VALID":
        return QueueProblem(message=f"the job queue is {_state(queue)}", hopeless=True)
    for code, words in _BLOCKED.items():
        if code in job.reason:
            hopeless = code.startswith("MISCONFIGURATION")
            return QueueProblem(message=f"{words} ({job.reason})", hopeless=hopeless)
    problems = [_environment_problem(one, request, memory_of_types) for one in environments]
    if not problems:
        return QueueProblem(message="the job queue has no compute environment", hopeless=True)
    found = [problem for problem in problems if problem]
    if found:
        return QueueProblem(message="; ".join(found), hopeless=len(found) == len(problems))
    if job.reason and not job.reason.startswith("UNDETERMINED"):
        return QueueProblem(message=job.reason)
    return QueueProblem(message=_CHECKLIST)


_CHECKLIST = (
    "the queue and its compute environments are valid; instances may lack an address or a route to ECS, "
    "the instance role may lack rights, the account's quota of vCPUs may be used up, or other jobs use "
    "the machines"
)


def _environment_problem(
    environment: Mapping[str, Any], request: BatchRequest, memory_of_types: Mapping[str, int]
) -> str:
    name = environment.get("computeEnvironmentName", "")
    if environment.get("state") != "ENABLED" or environment.get("status") != "VALID":
        return f"compute environment {name} is {_state(environment)}"
    resources = environment.get("computeResources") or {}
    most = resources.get("maxvCpus")
    needed = request.cpus * request.nodes
    if most is not None and int(most) < needed:
        return f"compute environment {name} has at most {most} vCPUs, and the job needs {needed}"
    types = [str(one) for one in resources.get("instanceTypes") or ()]
    if types and all(one in memory_of_types for one in types):
        largest = max(types, key=memory_of_types.__getitem__)
        usable = memory_of_types[largest] - _OVERHEAD_BYTES
        if usable < request.memory_bytes:
            return (
                f"compute environment {name} has no instance type with enough memory: the largest, "
                f"{largest}, has at most {show_bytes(usable)} for jobs, and the job needs "
                f"{show_bytes(request.memory_bytes)}"
            )
    if request.gpus and str(resources.get("type", "")).startswith("FARGATE"):
        return f"compute environment {name} is Fargate, which has no GPUs"
    if request.gpus and types and set(types) <= _WITHOUT_GPUS:
        return f"compute environment {name} has the instance types {', '.join(types)}, which have no GPUs"
    return ""


def _state(described: Mapping[str, Any]) -> str:
    reason = str(described.get("statusReason") or "")
    state, status = described.get("state", "unknown"), described.get("status", "unknown")
    return f"{state}, {status}" + (f": {reason}" if reason else "")
