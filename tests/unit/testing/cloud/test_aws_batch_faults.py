"""The simulated AWS Batch: lost requests, refusals, lists, queues that do not move, and the bill."""

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ConnectionClosedError
from tests.kit.aws_batch import IMAGES, client, define, detail, needs, refused, submit

from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.aws_batch.placement import usable_mib
from gridmill.testing.cloud.aws_batch.records import Kind, Status
from gridmill.testing.cloud.aws_batch.simulation import AwsBatchSimulation, simulated_aws_batch
from gridmill.testing.cloud.cloud_faults import UNAVAILABLE, Outcome, PlannedFault
from gridmill.testing.cloud.ec2.catalogue import INSTANCE_TYPES

HOLD = "exec sleep 1000"
JOB = {"jobName": "one", "jobQueue": "queue", "jobDefinition": "shell"}


@pytest.fixture
def cloud() -> Iterator[AwsBatchSimulation]:
    with simulated_aws_batch(images=IMAGES, clock=FakeClock()) as made:
        made.add_environment("machines", instance_types=("m5.large",))
        made.add_queue("queue", "machines")
        yield made


@pytest.fixture
def batch(cloud: AwsBatchSimulation) -> Any:
    made = client(cloud)
    define(made, HOLD)
    return made


def test_a_job_exists_though_the_answer_to_its_request_is_lost(batch, cloud):
    cloud.faults.lose_answers("SubmitJob")
    with pytest.raises(ConnectionClosedError):
        submit(batch, jobName="lost-1")
    filters = [{"name": "JOB_NAME", "values": ["LOST-*"]}]
    [found] = batch.list_jobs(jobQueue="queue", filters=filters)["jobSummaryList"]
    assert found["jobName"] == "lost-1"
    submit(batch, jobName="lost-1")
    assert len(cloud.jobs()) == 2  # the service does not know that it is the same request


def test_errors_of_the_service(batch, cloud):
    cloud.faults.plan(UNAVAILABLE, PlannedFault(action="SubmitJob", outcome=Outcome.ERROR_AFTER))
    assert refused(batch.submit_job, **JOB) == ("ServiceUnavailable", 503)
    assert cloud.jobs() == []
    assert refused(batch.submit_job, **JOB) == ("ServerException", 500)
    assert len(cloud.jobs()) == 1


def test_too_many_requests_are_refused(batch, cloud):
    cloud.faults.throttling = True
    codes = [refused_or_ok(batch) for _ in range(22)]
    assert codes == ["ok"] * 20 + ["TooManyRequestsException"] * 2
    cloud.advance(1)
    assert refused_or_ok(batch) == "ok"


def refused_or_ok(batch: Any) -> str:
    try:
        return refused(batch.describe_job_queues)[0]
    except AssertionError:
        return "ok"


def test_credentials_are_checked(batch, cloud):
    cloud.deny("batch:Submit*")
    assert refused(batch.submit_job, **JOB) == ("AccessDeniedException", 403)
    cloud.deny()
    cloud.revoke()
    assert refused(batch.submit_job, **JOB) == ("UnrecognizedClientException", 403)
    cloud.restore()
    submit(batch)
    cloud.faults.clock_ahead_seconds = 3600.0
    assert refused(batch.submit_job, **JOB) == ("InvalidSignatureException", 403)


@pytest.mark.parametrize(
    "changes",
    [
        {"jobName": "a name"},
        {"jobQueue": "other"},
        {"jobDefinition": "other"},
        {"arrayProperties": {"size": 1}},
        {"arrayProperties": {"size": 10_001}},
        {"timeout": {"attemptDurationSeconds": 59}},
        {"retryStrategy": {"attempts": 11}},
        {"retryStrategy": {"evaluateOnExit": [{"onReason": "*", "action": "EXIT"}]}},
        {"retryStrategy": {"attempts": 2, "evaluateOnExit": [{"onReason": "a*b", "action": "EXIT"}]}},
        {"containerOverrides": {"environment": [{"name": "AWS_BATCH_X", "value": ""}]}},
        {"containerOverrides": {"environment": [{"name": "X", "value": "x" * 31_000}]}},
        {"nodeOverrides": {"numNodes": 2}},
        {"tags": {"aws:mine": "x"}},
    ],
    ids=str,
)
def test_requests_that_are_not_valid(batch, cloud, changes):
    assert refused(batch.submit_job, **JOB | changes) == ("ClientException", 400)
    assert cloud.jobs() == []


def test_what_is_not_simulated_is_refused(batch):
    wanted = JOB | {"dependsOn": [{"jobId": "x"}]}
    assert refused(batch.submit_job, **wanted) == ("Simulation.NotImplemented", 501)


def test_a_new_job_is_not_found_for_some_time_and_lists_lag(batch, cloud):
    cloud.faults.invisible_seconds = 10.0
    job_id = submit(batch)
    assert batch.describe_jobs(jobs=[job_id])["jobs"] == []
    assert batch.list_jobs(jobQueue="queue")["jobSummaryList"] == []
    cloud.advance(10)
    assert detail(batch, job_id)["status"] == "RUNNING"
    cloud.advance(100)
    cloud.faults.list_lag_seconds = 100.0
    batch.terminate_job(jobId=job_id, reason="stop")
    cloud.wait(job_id)
    seen = {detail(batch, job_id)["status"] for _ in range(20)}
    assert "RUNNING" in seen


def test_lists_have_pages_and_statuses(batch, cloud):
    cloud.change_environment("machines", max_vcpus=2)
    for index in range(5):
        submit(batch, jobName=f"job-{index}")
    assert len(batch.list_jobs(jobQueue="queue")["jobSummaryList"]) == 2
    pages = batch.get_paginator("list_jobs").paginate(
        jobQueue="queue", jobStatus="RUNNABLE", PaginationConfig={"PageSize": 2}
    )
    names = [[one["jobName"] for one in page["jobSummaryList"]] for page in pages]
    assert names == [["job-2", "job-3"], ["job-4"]]
    assert refused(batch.list_jobs) == ("ClientException", 400)
    assert refused(batch.describe_jobs, jobs=["x"] * 101) == ("ClientException", 400)


def test_a_finished_job_is_known_for_7_days(batch, cloud):
    job_id = submit(batch, "exit 0")
    cloud.wait(job_id)
    cloud.advance(7 * 24 * 3600 - 1)
    assert detail(batch, job_id)["status"] == "SUCCEEDED"
    cloud.advance(2)
    assert batch.describe_jobs(jobs=[job_id])["jobs"] == []


def reason(batch: Any, job_id: str) -> str:
    found = detail(batch, job_id)
    assert found["status"] == "RUNNABLE"
    return str(found.get("statusReason", ""))


def test_a_job_waits_while_its_compute_environment_is_invalid(batch, cloud):
    cloud.change_environment("machines", is_valid=False, status_reason="CLIENT_ERROR - Not authorized")
    [shown] = batch.describe_compute_environments()["computeEnvironments"]
    assert (shown["status"], shown["statusReason"]) == ("INVALID", "CLIENT_ERROR - Not authorized")
    job_id = submit(batch)
    assert reason(batch, job_id).startswith("ACTION_REQUIRED")
    cloud.change_environment("machines", is_valid=True)
    cloud.wait(job_id, Status.RUNNING)


def test_a_job_with_all_the_memory_of_an_instance_waits_for_ever(batch, cloud):
    kind = INSTANCE_TYPES["m5.large"]
    assert usable_mib(kind) < kind.memory_mib
    for memory, status in ((kind.memory_mib, "RUNNABLE"), (usable_mib(kind), "RUNNING")):
        overrides = {"resourceRequirements": needs(memory=memory)}
        job_id = submit(batch, containerOverrides=overrides)
        assert detail(batch, job_id)["status"] == status
        if status == "RUNNABLE":
            assert reason(batch, job_id).startswith("MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT")
            batch.cancel_job(jobId=job_id, reason="too large")


def test_a_job_with_more_processors_than_the_environment_waits_for_ever(batch, cloud):
    cloud.add_environment("small", max_vcpus=4, instance_types=("c5",))
    cloud.add_queue("small-queue", "small")
    overrides = {"resourceRequirements": needs(vcpus="8")}
    job_id = submit(batch, queue="small-queue", containerOverrides=overrides)
    assert reason(batch, job_id).startswith("MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE")


def test_quota_and_capacity(batch, cloud):
    cloud.faults.quotas = {"L-1216C47A": 0}
    without_quota = submit(batch)
    assert reason(batch, without_quota) == ""
    cloud.faults.quotas, cloud.faults.capacity = {}, {"m5.large@us-east-1*": 0}
    cloud.advance(1)
    assert reason(batch, without_quota).startswith("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY")
    cloud.faults.shows_reasons = False
    cloud.advance(1)
    assert reason(batch, without_quota) == ""
    cloud.faults.capacity = {}
    cloud.advance(1)
    cloud.wait(without_quota, Status.RUNNING)


def test_a_job_can_be_stuck_without_a_reason(batch, cloud):
    cloud.faults.stuck_next = 1
    stuck, other = submit(batch), submit(batch)
    cloud.wait(other, Status.RUNNING)
    cloud.advance(14 * 24 * 3600)
    assert reason(batch, stuck) == ""
    batch.terminate_job(jobId=stuck, reason="stuck")
    assert detail(batch, stuck)["status"] == "FAILED"


def test_states_take_time(batch, cloud):
    cloud.faults.change(queued_seconds=2.0, boot_seconds=90.0, starting_seconds=20.0)
    job_id = submit(batch)
    seen = []
    for seconds in (0, 2, 90, 20):
        cloud.advance(seconds)
        seen.append(detail(batch, job_id)["status"])
    assert seen == ["SUBMITTED", "RUNNABLE", "STARTING", "RUNNING"]


def test_an_instance_that_dies_while_it_boots_is_replaced(batch, cloud):
    cloud.faults.boot_seconds = 90.0
    job_id = submit(batch)
    first = cloud.job(job_id).instance_id
    cloud.break_host(job_id)
    assert cloud.job(job_id).instance_id not in ("", first)
    cloud.advance(90)
    assert cloud.wait(job_id, Status.RUNNING).attempts == ()


def test_the_bill_has_each_instance_by_the_second(batch, cloud):
    cloud.faults.idle_seconds = 40.0
    job_id = submit(batch)
    cloud.wait(job_id, Status.RUNNING)
    cloud.advance(100)
    batch.terminate_job(jobId=job_id, reason="stop")
    cloud.wait(job_id)
    assert [one.is_running for one in cloud.bill().items] == [True]
    cloud.advance(1000)
    [item] = cloud.bill().items
    assert (item.seconds, item.amount_micros) == (140, round(140 * 96_000 / 3600))
    assert cloud.leftovers() == []


def test_fargate_has_no_instances_and_is_charged_by_its_size(batch, cloud):
    cloud.add_environment("fargate", kind=Kind.FARGATE)
    cloud.add_queue("fargate-queue", "fargate")
    container = {
        "image": "shell:1",
        "command": [HOLD],
        "resourceRequirements": needs(vcpus="0.5", memory=1024),
        "executionRoleArn": "arn:aws:iam::123456789012:role/run",
    }
    batch.register_job_definition(
        jobDefinitionName="small",
        type="container",
        platformCapabilities=["FARGATE"],
        containerProperties=container,
    )
    assert refused(batch.submit_job, **JOB | {"jobDefinition": "small"}) == ("ClientException", 400)
    job_id = submit(batch, queue="fargate-queue", jobDefinition="small")
    cloud.wait(job_id, Status.RUNNING)
    assert cloud.instances() == []
    cloud.advance(3600)
    assert cloud.bill().total_micros == round(0.5 * 40_480 + 4_445)


def test_the_output_of_a_job_is_in_its_log_stream(batch, cloud):
    logs = client(cloud, "logs")
    job_id = submit(batch, "for i in 1 2 3 4 5; do echo line $i; done; printf unfinished >&2")
    cloud.wait(job_id)
    stream = {
        "logGroupName": "/aws/batch/job",
        "logStreamName": detail(batch, job_id)["container"]["logStreamName"],
    }
    assert stream["logStreamName"].startswith("shell/default/")
    tail = logs.get_log_events(**stream, limit=2)
    assert [one["message"] for one in tail["events"]] == ["line 5", "unfinished"]
    page = logs.get_log_events(**stream, limit=4, startFromHead=True)
    rest = logs.get_log_events(**stream, nextToken=page["nextForwardToken"])
    assert [one["message"] for one in page["events"] + rest["events"]][4:] == ["line 5", "unfinished"]
    last = logs.get_log_events(**stream, nextToken=rest["nextForwardToken"])
    assert (last["events"], last["nextForwardToken"]) == ([], rest["nextForwardToken"])
    missing = stream | {"logStreamName": "shell/default/0"}
    assert refused(logs.get_log_events, **missing)[0] == "ResourceNotFoundException"


def test_definitions_have_revisions(batch):
    first = batch.describe_job_definitions(jobDefinitionName="shell")["jobDefinitions"]
    assert [(one["revision"], one["status"]) for one in first] == [(1, "ACTIVE")]
    second = define(batch, "exit 1")
    assert second.endswith("job-definition/shell:2")
    batch.deregister_job_definition(jobDefinition=second)
    active = batch.describe_job_definitions(jobDefinitionName="shell", status="ACTIVE")["jobDefinitions"]
    assert [one["revision"] for one in active] == [1]
    assert refused(batch.submit_job, **JOB | {"jobDefinition": "shell:2"}) == ("ClientException", 400)
