"""Requests to AWS Batch as values, and what its answers mean."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gridmill.clouds.aws.batch import (
    AwsBatch,
    definition_of,
    job_of,
    node_state,
    queue_problem,
    read_settings,
    submission,
)
from gridmill.domain.amounts import GIB
from gridmill.domain.states import Cause
from gridmill.errors import InputError
from gridmill.ports.batch import BatchJob, BatchPhase, BatchRequest

SETTINGS = {"region": "eu-central-1", "queue": "q", "image": "gridmill:1"}
REQUEST = BatchRequest(
    name="gm-1",
    command=("python3", "-m", "x"),
    variables={"A": "b"},
    cpus=2,
    memory_bytes=GIB + 1,
    gpus=1,
    limit_seconds=3600.0,
    labels={"gridmill-owner": "m"},
)
WAITS = BatchJob(id="1", phase=BatchPhase.QUEUED, status="RUNNABLE")
QUEUE = {"state": "ENABLED", "status": "VALID"}
ENVIRONMENT = {
    "computeEnvironmentName": "c",
    "state": "ENABLED",
    "status": "VALID",
    "computeResources": {"type": "EC2", "maxvCpus": 16, "instanceTypes": ["g5.xlarge"]},
}


def test_a_submission_sets_the_size_and_a_single_try() -> None:
    sent = submission(REQUEST, read_settings(SETTINGS, "site s"), "d")
    assert sent["retryStrategy"] == {"attempts": 1}
    assert sent["timeout"] == {"attemptDurationSeconds": 3600}
    overrides = sent["containerOverrides"]
    assert overrides["command"] == ["python3", "-m", "x"]
    assert overrides["resourceRequirements"] == [
        {"type": "VCPU", "value": "2"},
        {"type": "MEMORY", "value": "1025"},
        {"type": "GPU", "value": "1"},
    ]


def test_a_job_with_nodes_overrides_all_nodes_of_a_definition_of_its_own() -> None:
    settings = read_settings(SETTINGS, "site s")
    sent = submission(replace(REQUEST, nodes=3), settings, "d")["nodeOverrides"]
    assert sent["numNodes"] == 3
    [group] = sent["nodePropertyOverrides"]
    assert group["targetNodes"] == "0:"
    assert group["containerOverrides"] == submission(REQUEST, settings, "d")["containerOverrides"]
    made = definition_of(settings, has_nodes=True)
    assert made["type"] == "multinode"
    [nodes] = made["nodeProperties"]["nodeRangeProperties"]
    assert nodes["container"] == definition_of(settings)["containerProperties"]
    assert made["jobDefinitionName"] != definition_of(settings)["jobDefinitionName"]


def test_a_node_has_the_state_of_its_job_until_it_exists() -> None:
    waiting = BatchJob(id="1", phase=BatchPhase.QUEUED, status="RUNNABLE")
    running = replace(waiting, phase=BatchPhase.RUNNING, status="RUNNING")
    over = replace(waiting, phase=BatchPhase.ENDED, status="FAILED")
    node = replace(running, id="1#1")
    assert node_state("1", running, running) == running
    assert node_state("1#1", None, waiting) == replace(waiting, id="1#1")
    assert node_state("1#1", node, running) == node
    assert node_state("1#1", replace(waiting, id="1#1"), over) == replace(over, id="1#1")
    assert node_state("1#1", None, None) is None


def test_a_definition_has_the_same_name_for_the_same_image_only() -> None:
    one = definition_of(read_settings(SETTINGS, "site s"))
    same = definition_of(read_settings({**SETTINGS, "queue": "other"}, "site s"))
    other = definition_of(read_settings({**SETTINGS, "job_role": "arn:r"}, "site s"))
    assert one == same
    assert one["jobDefinitionName"] != other["jobDefinitionName"]
    assert one["retryStrategy"] == {"attempts": 1}


@pytest.mark.parametrize(
    ("reason", "container", "cause"),
    [
        ("Host EC2 (instance i-0ab) terminated.", "", Cause.TAKEN),
        ("Job attempt duration exceeded timeout", "", Cause.TIMEOUT),
        (
            "Essential container in task exited",
            "OutOfMemoryError: Container killed due to memory usage",
            Cause.MEMORY,
        ),
        ("Essential container in task exited", "", Cause.LOST),
        ("Your Spot Task was interrupted.", "", Cause.TAKEN),
        (
            "Canceled by JobStateTimeLimit action due to reason: CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY",
            "",
            Cause.TIMEOUT,
        ),
    ],
)
def test_the_reason_of_a_failed_job_gives_the_cause(reason: str, container: str, cause: Cause) -> None:
    job = job_of(
        {
            "jobId": "1",
            "status": "FAILED",
            "statusReason": reason,
            "createdAt": 1000,
            "stoppedAt": 5000,
            "container": {"exitCode": 137, "reason": container},
        }
    )
    assert (job.phase, job.cause, job.exit_code) == (BatchPhase.ENDED, cause, 137)
    assert (job.created, job.started, job.ended) == (1.0, None, 5.0)
    assert reason in job.reason


@pytest.mark.parametrize(
    ("queue", "environments", "memory", "words", "hopeless"),
    [
        ({**QUEUE, "state": "DISABLED"}, [ENVIRONMENT], {}, "the job queue is DISABLED", True),
        (QUEUE, [], {}, "no compute environment", True),
        (
            QUEUE,
            [{**ENVIRONMENT, "status": "INVALID", "statusReason": "CLIENT_ERROR - no role"}],
            {},
            "compute environment c is ENABLED, INVALID: CLIENT_ERROR - no role",
            True,
        ),
        (QUEUE, [{**ENVIRONMENT, "state": "DISABLED"}, ENVIRONMENT], {}, "c is DISABLED", False),
        (QUEUE, [{**ENVIRONMENT, "computeResources": {"maxvCpus": 1}}], {}, "at most 1 vCPUs", True),
        (QUEUE, [ENVIRONMENT], {"g5.xlarge": GIB}, "the largest, g5.xlarge, has at most 992 MiB", True),
        (QUEUE, [ENVIRONMENT], {"g5.xlarge": 16 * GIB}, "quota of vCPUs", False),
        (QUEUE, [{**ENVIRONMENT, "computeResources": {"type": "FARGATE"}}], {}, "has no GPUs", True),
        (
            QUEUE,
            [{**ENVIRONMENT, "computeResources": {"type": "EC2", "instanceTypes": ["optimal"]}}],
            {},
            "the instance types optimal, which have no GPUs",
            True,
        ),
    ],
)
def test_a_job_that_stays_runnable_is_diagnosed(
    queue: dict[str, str],
    environments: list[dict[str, object]],
    memory: dict[str, int],
    words: str,
    hopeless: bool,
) -> None:
    problem = queue_problem(WAITS, REQUEST, queue, environments, memory)
    assert problem is not None
    assert words in problem.message
    assert problem.hopeless is hopeless


@pytest.mark.parametrize(
    ("reason", "hopeless"),
    [
        ("MISCONFIGURATION:EC2_INSTANCE_CONFIGURATION_UNSUPPORTED - no", True),
        ("ACTION_REQUIRED - no", False),
        ("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - no", False),
    ],
)
def test_the_reason_of_aws_for_a_blocked_queue_is_used(reason: str, hopeless: bool) -> None:
    problem = queue_problem(replace(WAITS, reason=reason), REQUEST, QUEUE, [ENVIRONMENT], {})
    assert problem is not None
    assert reason in problem.message
    assert problem.hopeless is hopeless


def test_an_undetermined_reason_of_aws_is_no_diagnosis() -> None:
    reason = "UNDETERMINED - Batch job is blocked, root cause is undetermined."
    problem = queue_problem(replace(WAITS, reason=reason), REQUEST, QUEUE, [ENVIRONMENT], {})
    assert problem is not None
    assert "quota of vCPUs" in problem.message


def test_the_state_of_the_environments_is_more_exact_than_a_required_action() -> None:
    reason = "ACTION_REQUIRED - CE(s) associated with the job queue are invalid."
    broken = {**ENVIRONMENT, "status": "INVALID", "statusReason": "CLIENT_ERROR - no role"}
    problem = queue_problem(replace(WAITS, reason=reason), REQUEST, QUEUE, [broken], {})
    assert problem is not None
    assert "CLIENT_ERROR - no role" in problem.message
    assert problem.hopeless


@pytest.mark.parametrize(
    ("cpus", "gib", "size"),
    [
        (1, 1.0, (1, 2048)),
        (1, 8.25, (2, 9216)),
        (3, 2.0, (4, 8192)),
        (5, 17.0, (8, 20480)),
        (16, 120.0, (16, 122880)),
    ],
)
def test_a_job_on_fargate_gets_the_smallest_possible_size(
    cpus: int, gib: float, size: tuple[int, int]
) -> None:
    settings = read_settings({**SETTINGS, "platform": "FARGATE", "execution_role": "arn:e"}, "site s")
    wanted = replace(REQUEST, cpus=cpus, memory_bytes=int(gib * GIB), gpus=0)
    needs = submission(wanted, settings, "d")["containerOverrides"]["resourceRequirements"]
    assert tuple(int(one["value"]) for one in needs) == size
    assert "linuxParameters" not in definition_of(settings)["containerProperties"]


def test_a_job_that_is_too_large_for_fargate_is_refused() -> None:
    settings = read_settings({**SETTINGS, "platform": "FARGATE"}, "site s")
    for changes in ({"cpus": 17}, {"memory_bytes": 121 * GIB}):
        with pytest.raises(InputError, match="Fargate has no size"):
            submission(replace(REQUEST, **changes), settings, "d")


class Environments:
    """A queue with one compute environment."""

    def __init__(self, **environment: object) -> None:
        self.environment = {"computeEnvironmentName": "c", **environment}
        self.actions: list[str] = []

    def call(self, service: str, region: str, action: str, **arguments: object) -> Mapping[str, object]:
        self.actions.append(action)
        order = [{"order": 1, "computeEnvironment": "c"}]
        return {
            "DescribeJobQueues": {"jobQueues": [{**QUEUE, "computeEnvironmentOrder": order}]},
            "DescribeComputeEnvironments": {"computeEnvironments": [self.environment]},
        }[action]


@pytest.mark.parametrize(
    ("environment", "kind"),
    [({"type": "UNMANAGED"}, "UNMANAGED"), ({"computeResources": {"type": "SPOT"}}, "SPOT")],
)
def test_a_gang_is_refused_before_its_submission(environment: dict[str, object], kind: str) -> None:
    requests = Environments(**environment)
    service = AwsBatch(read_settings(SETTINGS, "site s"), requests)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"only on on-demand machines of EC2; .* has the type {kind}"):
        service.submit(replace(REQUEST, nodes=2))
    assert requests.actions == ["DescribeJobQueues", "DescribeComputeEnvironments"]


class Pages:
    """The answers to ListJobs, whose first page is empty."""

    def call(self, service: str, region: str, action: str, **arguments: object) -> Mapping[str, object]:
        if "nextToken" not in arguments:
            return {"jobSummaryList": [], "nextToken": "2"}
        return {"jobSummaryList": [{"jobName": "gm-1", "jobId": "j", "createdAt": 1}]}


def test_a_job_on_a_later_page_is_found() -> None:
    service = AwsBatch(read_settings(SETTINGS, "site s"), Pages())  # type: ignore[arg-type]
    assert service.find("gm-1") == "j"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"region": "nowhere"}, "is not a region"),
        ({"queue": ""}, "queue is missing"),
        ({"job_definition": "d"}, "either `image` or `job_definition`"),
        ({"platform": "EKS"}, "neither EC2 nor FARGATE"),
        ({"regoin": "x"}, "no setting 'regoin'"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_settings({**SETTINGS, **changes}, "site s")
