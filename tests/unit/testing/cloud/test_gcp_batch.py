"""The simulated Google Cloud Batch: jobs, tasks, retries, faults and the bill."""

import uuid
from collections.abc import Iterator

import httpx
import pytest
from tests.kit.gcp_batch import IMAGES, SCOPE, assertion, client, create, get, job, refused, token_answer

from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.cloud_faults import UNAVAILABLE, Outcome, PlannedFault
from gridmill.testing.cloud.gcp_batch.records import JobState, TaskState
from gridmill.testing.cloud.gcp_batch.simulation import GcpBatchSimulation, simulated_gcp_batch

HOLD = "echo started; exec sleep 1000"
DEAF = "trap '' TERM; echo started; while :; do read line < /dev/null; sleep 0.01; done"
ON_PREEMPTION = {
    "maxRetryCount": 2,
    "lifecyclePolicies": [{"action": "RETRY_TASK", "actionCondition": {"exitCodes": [50001]}}],
}
DAY_SECONDS = 24 * 3600


@pytest.fixture
def cloud() -> Iterator[GcpBatchSimulation]:
    with simulated_gcp_batch(images=IMAGES, clock=FakeClock()) as made:
        yield made


@pytest.fixture
def batch(cloud: GcpBatchSimulation) -> Iterator[httpx.Client]:
    with client(cloud) as made:
        yield made


def task(batch: httpx.Client, name: str, index: int = 0) -> dict:
    return get(batch, f"{name}/taskGroups/group0/tasks/{index}")["status"]


def exit_codes(status: dict) -> list[int]:
    return [one["taskExecution"]["exitCode"] for one in status["statusEvents"] if "taskExecution" in one]


# jobs and tasks


def test_a_job_succeeds_when_all_tasks_have_succeeded(batch, cloud):
    name = create(batch, job("echo $BATCH_TASK_INDEX of $BATCH_TASK_COUNT", count=3), jobId="first")
    assert name.endswith("/jobs/first")
    cloud.wait(name)
    status = get(batch, name)["status"]
    assert (status["state"], status["taskGroups"]["group0"]["counts"]) == ("SUCCEEDED", {"SUCCEEDED": "3"})
    assert [[line.text for line in cloud.output(name, index)] for index in range(3)] == [
        [f"{index} of 3"] for index in range(3)
    ]
    assert cloud.leftovers() == []


def test_variables_of_a_runnable_replace_those_of_the_task(batch, cloud):
    body = job("echo $ONE $TWO $SECRET_OF_THE_TEST.", task={"environment": {"variables": {"ONE": "1"}}})
    runnables = body["taskGroups"][0]["taskSpec"]["runnables"]
    runnables[0]["environment"] = {"variables": {"TWO": "2"}}
    runnables.append({"script": {"text": "echo script $ONE"}})
    name = create(batch, body)
    cloud.wait(name)
    assert [line.text for line in cloud.output(name)] == ["script 1"]


def test_a_failed_task_is_not_retried_by_default(batch, cloud):
    name = create(batch, job("exit 3"))
    cloud.wait(name)
    found = get(batch, name)["status"]
    assert (found["state"], exit_codes(task(batch, name))) == ("FAILED", [3])
    assert "task with index 0 failed" in found["statusEvents"][-1]["description"]


def test_a_task_is_retried_as_often_as_the_job_says(batch, cloud):
    name = create(batch, job("echo $BATCH_TASK_RETRY_ATTEMPT; exit 3", task={"maxRetryCount": 2}))
    cloud.wait(name)
    assert exit_codes(task(batch, name)) == [3, 3, 3]
    assert [line.text for line in cloud.output(name)] == ["2"]


@pytest.mark.parametrize(
    ("action", "code", "tries"),
    [("RETRY_TASK", 5, 3), ("RETRY_TASK", 6, 1), ("FAIL_TASK", 5, 1), ("FAIL_TASK", 6, 3)],
)
def test_policies_decide_which_exit_codes_are_retried(batch, cloud, action, code, tries):
    policies = [{"action": action, "actionCondition": {"exitCodes": [5]}}]
    name = create(batch, job(f"exit {code}", task={"maxRetryCount": 2, "lifecyclePolicies": policies}))
    cloud.wait(name)
    assert len(exit_codes(task(batch, name))) == tries


def test_a_preempted_task_is_retried_if_the_job_names_it_and_keeps_its_event(batch, cloud):
    script = "if [ $BATCH_TASK_RETRY_ATTEMPT = 0 ]; then exec sleep 1000; fi"
    name = create(batch, job(script, spot=True, task=ON_PREEMPTION))
    first = cloud.wait_for_task(name, 0, TaskState.RUNNING).vm_id
    cloud.preempt(name)
    cloud.advance(29)
    assert task(batch, name)["state"] == "RUNNING"
    cloud.advance(2)
    cloud.wait(name)
    found = task(batch, name)
    assert (found["state"], exit_codes(found)) == ("SUCCEEDED", [50001])
    assert "due to Spot VM preemption with exit code 50001" in str(found["statusEvents"])
    assert cloud.task(name).vm_id != first


def test_a_preempted_task_fails_if_the_job_has_no_retries(batch, cloud):
    name = create(batch, job(HOLD, spot=True))
    cloud.wait_for_task(name, 0, TaskState.RUNNING)
    cloud.preempt(name)
    cloud.advance(31)
    assert cloud.wait(name).state == JobState.FAILED
    assert exit_codes(task(batch, name)) == [50001]


def test_a_machine_that_dies_is_seen_some_time_later(batch, cloud):
    cloud.faults.lost_after_seconds = 60.0
    name = create(batch, job(HOLD))
    cloud.wait_for_task(name, 0, TaskState.RUNNING)
    cloud.break_machine(name)
    cloud.advance(59)
    assert task(batch, name)["state"] == "RUNNING"
    cloud.advance(2)
    assert exit_codes(task(batch, name)) == [50002]
    assert cloud.leftovers() == []


def test_a_task_that_runs_too_long_fails_with_a_reserved_exit_code(batch, cloud):
    name = create(batch, job(HOLD, task={"maxRunDuration": "90s"}))
    cloud.wait_for_task(name, 0, TaskState.RUNNING)
    cloud.advance(89)
    assert task(batch, name)["state"] == "RUNNING"
    cloud.advance(2)
    cloud.wait(name)
    assert exit_codes(task(batch, name)) == [50005]


def test_no_more_tasks_run_at_once_than_the_job_allows(batch, cloud):
    body = job(HOLD, count=3)
    body["taskGroups"][0]["parallelism"] = "2"
    name = create(batch, body)
    cloud.wait_for_task(name, 1, TaskState.RUNNING)
    assert task(batch, name, 2)["state"] == "PENDING"
    listed = batch.get(
        f"/jobs/{name.rpartition('/')[2]}/taskGroups/group0/tasks", params={"filter": "State=RUNNING"}
    )
    assert len(listed.json()["tasks"]) == 2
    assert len(cloud.machines()) == 2


# the end of a job


def test_a_job_that_waits_for_2_days_fails(batch, cloud):
    cloud.faults.stuck_next = 1
    name = create(batch, job(HOLD))
    cloud.advance(2 * DAY_SECONDS - 1)
    assert get(batch, name)["status"]["state"] == "QUEUED"
    cloud.advance(2)
    assert get(batch, name)["status"]["state"] == "FAILED"
    cloud.advance(60 * DAY_SECONDS)
    assert get(batch, name)["error"]["status"] == "NOT_FOUND"


def test_a_job_that_runs_for_14_days_fails(batch, cloud):
    name = create(batch, job(HOLD))
    cloud.wait_for_task(name, 0, TaskState.RUNNING)
    cloud.advance(14 * DAY_SECONDS + 1)
    assert cloud.wait(name).state == JobState.FAILED


def test_a_job_is_deleted_when_its_tasks_have_ended(batch, cloud):
    name = create(batch, job(DEAF))
    cloud.wait_for_task(name, 0, TaskState.RUNNING)
    while not cloud.output(name):
        cloud.settle()
    request = {"requestId": str(uuid.uuid4())}
    operation = batch.delete("/jobs/" + name.rpartition("/")[2], params=request).json()
    assert (operation["done"], get(batch, name)["status"]["state"]) == (False, "DELETION_IN_PROGRESS")
    again = batch.delete("/jobs/" + name.rpartition("/")[2], params=request).json()
    assert again["name"] == operation["name"]
    cloud.advance(10)
    with cloud.world.lock:
        assert cloud.world.changed.wait_for(lambda: cloud.world.operations[operation["name"]].ended_at, 30)
    assert get(batch, operation["name"])["done"] is True
    assert get(batch, name)["error"]["code"] == 404
    assert cloud.leftovers() == []


def test_a_cancelled_job_is_kept(batch, cloud):
    name = create(batch, job(HOLD, count=2))
    cloud.wait_for_task(name, 1, TaskState.RUNNING)
    batch.post(f"/jobs/{name.rpartition('/')[2]}:cancel")
    assert cloud.wait(name).state == JobState.CANCELLED
    assert cloud.leftovers() == []


# requests


def test_a_request_with_the_same_id_makes_one_job(batch, cloud):
    cloud.faults.lose_answers("jobs.create")
    request = {"requestId": str(uuid.uuid4())}
    with pytest.raises(httpx.RemoteProtocolError):
        batch.post("/jobs", json=job(HOLD), params=request)
    [made] = cloud.jobs()
    assert create(batch, job(HOLD), **request) == made.name
    assert len(cloud.jobs()) == 1
    assert refused(batch.post("/jobs", json=job(HOLD), params={"requestId": "1"})) == (
        400,
        "INVALID_ARGUMENT",
    )


def test_an_id_of_a_job_can_be_used_once(batch):
    create(batch, job(HOLD), jobId="one")
    assert refused(batch.post("/jobs?jobId=one", json=job(HOLD))) == (409, "ALREADY_EXISTS")


def test_errors_of_the_service(batch, cloud):
    after = PlannedFault(action="jobs.create", outcome=Outcome.ERROR_AFTER)
    cloud.faults.plan(UNAVAILABLE, after)
    assert refused(batch.post("/jobs", json=job(HOLD))) == (503, "UNAVAILABLE")
    assert cloud.jobs() == []
    assert refused(batch.post("/jobs", json=job(HOLD))) == (500, "INTERNAL")
    assert len(cloud.jobs()) == 1
    cloud.faults.fail("jobs.list", "RESOURCE_EXHAUSTED", status=429)
    assert refused(batch.get("/jobs")) == (429, "RESOURCE_EXHAUSTED")


@pytest.mark.parametrize(
    "body",
    [
        job(HOLD) | {"taskGroups": []},
        job(HOLD, task={"maxRetryCount": 11}),
        job(HOLD, task={"maxRunDuration": "1h"}),
        job(HOLD, task={"runnables": []}),
        job(HOLD, count=100_001),
        job(HOLD, labels={"Upper": "x"}),
        job(HOLD, labels={"goog-x": "x"}),
        job(HOLD, task={"computeResource": {"memoryMib": "16385"}}),
    ],
    ids=range(8),
)
def test_requests_that_are_not_valid(batch, body):
    assert refused(batch.post("/jobs", json=body)) == (400, "INVALID_ARGUMENT")


def test_what_is_not_simulated_is_refused(batch):
    body = job(HOLD, notifications=[{"pubsubTopic": "x"}])
    assert refused(batch.post("/jobs", json=body)) == (501, "UNIMPLEMENTED")


def test_lists_have_filters_and_pages(batch, cloud):
    for index in range(3):
        create(batch, job(HOLD, labels={"run": f"r{index % 2}"}), jobId=f"job-{index}")
    query = {"filter": 'status.state="RUNNING" AND labels.run="r0"', "pageSize": "1"}
    first = batch.get("/jobs", params=query).json()
    second = batch.get("/jobs", params=query | {"pageToken": first["nextPageToken"]}).json()
    names = [one["name"].rpartition("/")[2] for one in first["jobs"] + second["jobs"]]
    assert (names, "nextPageToken" in second) == (["job-0", "job-2"], False)
    cloud.faults.invisible_seconds = 10.0
    late = create(batch, job(HOLD))
    assert get(batch, late)["error"]["code"] == 404
    cloud.advance(10)
    assert get(batch, late)["status"]["state"] == "RUNNING"


# machines and money


def event(batch: httpx.Client, name: str) -> str:
    return str(get(batch, name)["status"].get("statusEvents", [{}])[-1].get("description", ""))


def test_quota_and_capacity(batch, cloud):
    cloud.faults.quotas = {"CPUS@us-central1": 0}
    name = create(batch, job(HOLD))
    assert get(batch, name)["status"]["state"] == "QUEUED"
    assert "CODE_GCE_QUOTA_EXCEEDED" in event(batch, name)
    cloud.faults.quotas, cloud.faults.capacity = {}, {"e2-standard-4@us-central1-*": 0}
    cloud.advance(1)
    assert "CODE_GCE_ZONE_RESOURCE_POOL_EXHAUSTED" in event(batch, name)
    cloud.faults.capacity = {}
    cloud.advance(1)
    cloud.wait(name, JobState.RUNNING)


def test_a_machine_type_that_does_not_exist_fails_the_job_before_it_runs(batch, cloud):
    name = create(batch, job(HOLD, policy={"machineType": "n9-huge"}))
    assert cloud.wait(name).running_since is None
    assert "CODE_GCE_INVALID_FIELD_VALUE" in str(get(batch, name)["status"])


def test_states_take_time(batch, cloud):
    cloud.faults.change(queued_seconds=2.0, boot_seconds=90.0, starting_seconds=20.0)
    name = create(batch, job(HOLD))
    seen = []
    for seconds in (0, 2, 90, 20):
        cloud.advance(seconds)
        seen.append((get(batch, name)["status"]["state"], task(batch, name)["state"]))
    assert seen == [
        ("QUEUED", "PENDING"), ("SCHEDULED", "PENDING"), ("SCHEDULED", "ASSIGNED"), ("RUNNING", "RUNNING"),
    ]  # fmt: skip


def test_the_bill_has_each_machine_by_the_second(batch, cloud):
    name = create(batch, job(HOLD, spot=True))
    cloud.wait(name, JobState.RUNNING)
    cloud.advance(100)
    batch.delete("/jobs/" + name.rpartition("/")[2])
    with cloud.world.lock:
        assert cloud.world.changed.wait_for(lambda: not list(cloud.world.jobs.all()), 30)
    cloud.advance(1000)
    [item] = cloud.bill().items
    assert (item.seconds, item.amount_micros) == (100, round(100 * 40_000 / 3600))


# credentials


def test_tokens_are_needed_and_expire(batch, cloud):
    assert batch.get("/jobs").status_code == 200
    cloud.deny("jobs.create")
    assert refused(batch.post("/jobs", json=job(HOLD))) == (403, "PERMISSION_DENIED")
    cloud.expire_tokens()
    assert refused(batch.get("/jobs")) == (401, "UNAUTHENTICATED")
    with client(cloud) as again:
        assert again.get("/jobs").status_code == 200
        cloud.revoke()
        assert refused(again.get("/jobs")) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"iss": "other@example.com"}, "invalid_grant"),
        ({"aud": "https://example.com"}, "invalid_grant"),
        ({"iat": 1, "exp": 3601}, "invalid_grant"),
        ({"scope": SCOPE + ".read-only"}, "invalid_scope"),
    ],
    ids=str,
)
def test_assertions_are_checked(cloud, changes, error):
    answer = token_answer(cloud, assertion(cloud.key_file(), **changes))
    assert (answer.status_code, answer.json()["error"]) == (400, error)


def test_a_key_of_another_account_is_refused(cloud):
    other = cloud.key_file(cloud.add_service_account("other"))
    forged = assertion(other | {"client_email": cloud.account.email})
    assert token_answer(cloud, forged).json()["error"] == "invalid_grant"
