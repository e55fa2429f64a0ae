"""The simulated AWS Batch: jobs, their attempts, and how they end."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kit.aws_batch import IMAGES, client, define, detail, needs, refused, submit

from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.aws_batch.records import Kind, Status
from gridmill.testing.cloud.aws_batch.simulation import AwsBatchSimulation, simulated_aws_batch

HOLD = "echo started; exec sleep 1000"
DEAF = "trap '' TERM; echo started; while :; do read line < /dev/null; sleep 0.01; done"


@pytest.fixture
def cloud() -> Iterator[AwsBatchSimulation]:
    with simulated_aws_batch(images=IMAGES, clock=FakeClock()) as made:
        made.add_environment("machines")
        made.add_environment("spot", kind=Kind.SPOT)
        made.add_queue("queue", "machines")
        made.add_queue("spot-queue", "spot")
        yield made


@pytest.fixture
def batch(cloud: AwsBatchSimulation) -> Any:
    made = client(cloud)
    define(made, "exit 0")
    return made


def test_a_job_runs_and_succeeds(batch, cloud):
    job_id = submit(batch, "echo hello")
    cloud.wait(job_id)
    found = detail(batch, job_id)
    assert (found["status"], found["container"]["exitCode"]) == ("SUCCEEDED", 0)
    assert found["statusReason"] == "Essential container in task exited"
    assert [line.text for line in cloud.output(job_id)] == ["hello"]
    assert cloud.leftovers() == []


def test_a_job_has_only_the_environment_of_its_image_and_of_its_own(batch, cloud):
    os.environ["SECRET_OF_THE_TEST"] = "1"
    try:
        environment = {"environment": [{"name": "MINE", "value": "a b"}]}
        job_id = submit(batch, "env; pwd; ls", containerOverrides=environment)
    finally:
        del os.environ["SECRET_OF_THE_TEST"]
    job = cloud.wait(job_id)
    lines = [line.text for line in cloud.output(job_id)]
    variables = dict(line.split("=", 1) for line in lines if "=" in line)
    assert variables.keys() - {"PWD", "SHLVL", "_", "OLDPWD"} == {
        "PATH", "HOSTNAME", "HOME", "TMPDIR", "MINE",
        "AWS_BATCH_CE_NAME", "AWS_BATCH_JOB_ATTEMPT", "AWS_BATCH_JOB_ID", "AWS_BATCH_JQ_NAME",
    }  # fmt: skip
    assert variables["MINE"] == "a b"
    assert (variables["AWS_BATCH_JOB_ID"], variables["AWS_BATCH_JOB_ATTEMPT"]) == (job_id, "1")
    assert variables["HOSTNAME"] == job.task
    assert not os.path.exists(variables["HOME"])


def test_placeholders_of_a_command_are_replaced(batch, cloud):
    define(batch, "Ref::script", "with-parameters", parameters={"script": "echo default"})
    wanted = {"jobDefinition": "with-parameters"}
    default, own = submit(batch, **wanted), submit(batch, **wanted, parameters={"script": "echo own"})
    for job_id, text in ((default, "default"), (own, "own")):
        cloud.wait(job_id)
        assert [line.text for line in cloud.output(job_id)] == [text]


def test_a_failed_job_is_retried_as_often_as_its_strategy_says(batch, cloud):
    job_id = submit(batch, "echo $AWS_BATCH_JOB_ATTEMPT; exit 4", retryStrategy={"attempts": 3})
    cloud.wait(job_id)
    found = detail(batch, job_id)
    assert found["status"] == "FAILED"
    assert [one["container"]["exitCode"] for one in found["attempts"]] == [4, 4, 4]
    assert len({one["container"]["logStreamName"] for one in found["attempts"]}) == 3
    assert [line.text for line in cloud.output(job_id)] == ["3"]


def test_rules_decide_which_failures_are_retried(batch, cloud):
    rules = [{"onExitCode": "7*", "action": "RETRY"}, {"onReason": "*", "action": "EXIT"}]
    for code, count in ((75, 4), (1, 1)):
        job_id = submit(batch, f"exit {code}", retryStrategy={"attempts": 4, "evaluateOnExit": rules})
        cloud.wait(job_id)
        assert len(detail(batch, job_id)["attempts"]) == count


def test_a_failure_that_no_rule_matches_is_retried(batch, cloud):
    rules = [{"onExitCode": "2", "action": "EXIT"}]
    job_id = submit(batch, "exit 3", retryStrategy={"attempts": 2, "evaluateOnExit": rules})
    cloud.wait(job_id)
    assert len(detail(batch, job_id)["attempts"]) == 2


def test_a_spot_instance_that_is_reclaimed_ends_the_attempt(batch, cloud):
    rules = [{"onStatusReason": "Host EC2*", "action": "RETRY"}, {"onReason": "*", "action": "EXIT"}]
    strategy = {"attempts": 2, "evaluateOnExit": rules}
    job_id = submit(batch, HOLD, queue="spot-queue", retryStrategy=strategy)
    first = cloud.wait(job_id, Status.RUNNING)
    cloud.reclaim(job_id)
    cloud.advance(119)
    assert cloud.job(job_id).task == first.task
    cloud.advance(2)
    again = cloud.wait(job_id, Status.RUNNING)
    assert again.instance_id != first.instance_id
    [attempt] = detail(batch, job_id)["attempts"]
    assert attempt["statusReason"] == f"Host EC2 (instance {first.instance_id}) terminated."
    assert "exitCode" not in attempt["container"]


def test_a_machine_that_dies_is_seen_some_time_later(batch, cloud):
    cloud.faults.lost_after_seconds = 60.0
    job_id = submit(batch, HOLD)
    cloud.wait(job_id, Status.RUNNING)
    cloud.break_host(job_id)
    cloud.advance(59)
    assert detail(batch, job_id)["status"] == "RUNNING"
    cloud.advance(2)
    assert detail(batch, job_id)["statusReason"].startswith("Host EC2 (instance i-")
    assert cloud.leftovers() == []


def test_a_job_that_waits_is_cancelled(batch, cloud):
    cloud.faults.capacity = {"*": 0}
    job_id = submit(batch, "exit 0")
    batch.cancel_job(jobId=job_id, reason="not needed")
    found = detail(batch, job_id)
    assert (found["status"], found["statusReason"]) == ("FAILED", "not needed")
    assert (found["isCancelled"], found["isTerminated"], found["attempts"]) == (True, False, [])


def test_cancel_has_no_effect_on_a_job_that_runs(batch, cloud):
    job_id = submit(batch, HOLD)
    cloud.wait(job_id, Status.RUNNING)
    batch.cancel_job(jobId=job_id, reason="not needed")
    assert detail(batch, job_id)["status"] == "RUNNING"


def test_terminate_ends_a_job_without_a_retry(batch, cloud):
    job_id = submit(batch, HOLD, retryStrategy={"attempts": 5})
    cloud.wait(job_id, Status.RUNNING)
    batch.terminate_job(jobId=job_id, reason="stop")
    cloud.wait(job_id)
    found = detail(batch, job_id)
    assert (found["status"], found["statusReason"], found["isTerminated"]) == ("FAILED", "stop", True)
    assert found["container"]["exitCode"] == 143
    batch.terminate_job(jobId=job_id, reason="again")
    assert detail(batch, job_id)["statusReason"] == "stop"


def test_a_job_that_ignores_sigterm_is_killed_30_seconds_later(batch, cloud):
    job_id = submit(batch, DEAF)
    cloud.wait(job_id, Status.RUNNING)
    while not cloud.output(job_id):
        cloud.settle()
    batch.terminate_job(jobId=job_id, reason="stop")
    cloud.advance(29)
    assert detail(batch, job_id)["status"] == "RUNNING"
    cloud.advance(2)
    assert cloud.wait(job_id).exit_code == 137


def test_a_timeout_ends_an_attempt_without_a_retry(batch, cloud):
    job_id = submit(batch, HOLD, timeout={"attemptDurationSeconds": 60}, retryStrategy={"attempts": 5})
    cloud.wait(job_id, Status.RUNNING)
    cloud.advance(59)
    assert detail(batch, job_id)["status"] == "RUNNING"
    cloud.advance(2)
    cloud.wait(job_id)
    found = detail(batch, job_id)
    assert found["statusReason"] == "Job attempt duration exceeded timeout"
    assert len(found["attempts"]) == 1


def test_an_image_that_does_not_exist_fails_the_job(batch, cloud):
    container = {"image": "missing:1", "resourceRequirements": needs()}
    batch.register_job_definition(
        jobDefinitionName="missing", type="container", containerProperties=container
    )
    job_id = submit(batch, jobDefinition="missing")
    found = detail(batch, job_id)
    assert found["statusReason"] == "Task failed to start"
    assert found["attempts"][0]["container"]["reason"].startswith("CannotPullContainerError")


def is_gone(pid: int) -> bool:
    """Returns whether a process has ended. A zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True


def test_nothing_is_left_of_a_job_whose_first_process_ends(batch, cloud):
    job_id = submit(batch, "setsid sleep 1000 & setsid sleep 1001 > /dev/null & echo $!; exit 0")
    cloud.wait(job_id)
    [line] = cloud.output(job_id)
    assert is_gone(int(line.text))


def test_children_of_an_array_job_have_indexes(batch, cloud):
    job_id = submit(batch, "echo $AWS_BATCH_JOB_ARRAY_INDEX", arrayProperties={"size": 3})
    cloud.wait(job_id)
    found = detail(batch, job_id)
    assert found["status"] == "SUCCEEDED"
    assert found["arrayProperties"]["statusSummary"]["SUCCEEDED"] == 3
    for index in range(3):
        assert [line.text for line in cloud.output(f"{job_id}:{index}")] == [str(index)]
        assert detail(batch, f"{job_id}:{index}")["arrayProperties"] == {"index": index}


def test_an_array_job_fails_when_all_children_are_over_and_one_has_failed(batch, cloud):
    script = "if [ $AWS_BATCH_JOB_ARRAY_INDEX = 1 ]; then exit 9; else exec sleep 1000; fi"
    job_id = submit(batch, script, arrayProperties={"size": 2})
    cloud.wait(f"{job_id}:1")
    cloud.wait(f"{job_id}:0", Status.RUNNING)
    assert detail(batch, job_id)["status"] == "PENDING"
    batch.terminate_job(jobId=f"{job_id}:0", reason="stop")
    cloud.wait(job_id)
    assert detail(batch, job_id)["status"] == "FAILED"


def test_terminating_an_array_job_ends_all_children(batch, cloud):
    cloud.change_environment("machines", max_vcpus=2)
    job_id = submit(batch, HOLD, arrayProperties={"size": 4})
    cloud.wait(f"{job_id}:1", Status.RUNNING)
    assert detail(batch, f"{job_id}:2")["status"] == "RUNNABLE"
    batch.terminate_job(jobId=job_id, reason="stop")
    assert cloud.wait(job_id).status_reason == "stop"
    assert {one.status for one in cloud.jobs()} == {Status.FAILED}
    assert cloud.leftovers() == []


def nodes(script: str, count: int) -> dict[str, Any]:
    container = {"image": "shell:1", "command": [script], "resourceRequirements": needs()}
    ranges = [{"targetNodes": f"0:{count - 1}", "container": container}]
    return {"numNodes": count, "mainNode": 0, "nodeRangeProperties": ranges}


def test_the_main_node_decides_how_a_multi_node_job_ends(batch, cloud):
    script = "env | grep NODE; [ $AWS_BATCH_JOB_NODE_INDEX = 0 ] && read line < go; exec sleep 1000"
    batch.register_job_definition(jobDefinitionName="gang", type="multinode", nodeProperties=nodes(script, 3))
    job_id = submit(batch, jobDefinition="gang")
    for index in range(3):
        cloud.wait(f"{job_id}#{index}", Status.RUNNING)
    assert len({one.instance_id for one in cloud.jobs() if one.is_node}) == 3
    listed = batch.list_jobs(multiNodeJobId=job_id)["jobSummaryList"]
    assert [one["nodeProperties"]["isMainNode"] for one in listed] == [True, False, False]
    batch.terminate_job(jobId=job_id, reason="stop")
    assert cloud.wait(job_id).status_reason == "stop"
    assert cloud.leftovers() == []


def test_the_loss_of_another_node_does_not_end_a_multi_node_job(batch, cloud):
    batch.register_job_definition(jobDefinitionName="gang", type="multinode", nodeProperties=nodes(HOLD, 2))
    job_id = submit(batch, jobDefinition="gang")
    cloud.wait(f"{job_id}#1", Status.RUNNING)
    cloud.break_host(f"{job_id}#1")
    assert detail(batch, f"{job_id}#1")["status"] == "FAILED"
    assert detail(batch, job_id)["status"] == "RUNNING"
    cloud.break_host(f"{job_id}#0")
    assert detail(batch, job_id)["status"] == "FAILED"
    assert cloud.leftovers() == []


def test_multi_node_jobs_are_refused_on_spot_and_fargate(batch, cloud):
    cloud.add_environment("fargate", kind=Kind.FARGATE)
    cloud.add_queue("fargate-queue", "fargate")
    batch.register_job_definition(jobDefinitionName="gang", type="multinode", nodeProperties=nodes(HOLD, 2))
    for queue in ("spot-queue", "fargate-queue"):
        arguments = {"jobName": "one", "jobQueue": queue, "jobDefinition": "gang"}
        assert refused(batch.submit_job, **arguments) == ("ClientException", 400)
