"""Requests to Google Cloud Batch as values, and what its answers mean."""

from dataclasses import replace

import pytest
from tests.kit.google_api import PROJECT, GoogleApi, refusal, settings

from gridmill.clouds.gcp.batch import GcpBatch, job_body, job_of, queue_problem, read_settings
from gridmill.clouds.gcp.requests import GcpRequests
from gridmill.domain.amounts import GIB
from gridmill.domain.states import Cause
from gridmill.errors import InputError
from gridmill.ports.batch import BatchPhase, BatchRequest

SETTINGS = {"region": "europe-west4", "image": "gridmill:1", "project": "my-project"}
REQUEST = BatchRequest(
    name="gm-1",
    command=("python3", "-m", "x"),
    variables={},
    cpus=2,
    memory_bytes=GIB + 1,
    gpus=0,
    limit_seconds=3600.0,
    labels={"gridmill-attempt": "P-1.Job.1"},
)


def event(description: str, seconds: int, code: int | None = None) -> dict[str, object]:
    body: dict[str, object] = {"description": description, "eventTime": f"1970-01-01T00:00:{seconds:02}.5Z"}
    return body if code is None else {**body, "taskExecution": {"exitCode": code}}


def test_a_job_has_one_task_without_retries() -> None:
    body = job_body(REQUEST, read_settings(SETTINGS, "site s"))
    [group] = body["taskGroups"]
    task = group["taskSpec"]
    assert (group["taskCount"], task["maxRetryCount"], task["maxRunDuration"]) == ("1", 0, "3600s")
    assert task["computeResource"] == {"cpuMilli": "2000", "memoryMib": "1025"}
    assert body["labels"] == {"gridmill-attempt": "p-1-job-1"}
    assert body["allocationPolicy"]["instances"] == [{"policy": {"provisioningModel": "STANDARD"}}]


def test_a_job_with_gpus_needs_their_type() -> None:
    wanted = replace(REQUEST, gpus=2, spot=True)
    with pytest.raises(InputError, match="no setting `accelerator`"):
        job_body(wanted, read_settings(SETTINGS, "site s"))
    body = job_body(wanted, read_settings({**SETTINGS, "accelerator": "nvidia-l4"}, "site s"))
    [instances] = body["allocationPolicy"]["instances"]
    assert instances["installGpuDrivers"]
    assert instances["policy"] == {
        "provisioningModel": "SPOT",
        "accelerators": [{"type": "nvidia-l4", "count": "2"}],
    }


def test_a_job_mounts_a_file_system_and_has_a_disk_of_its_own() -> None:
    more = {"nfs": "10.0.0.2:/vol1", "nfs_mount": "/mnt/data/", "disk": "100GiB"}
    [group] = job_body(REQUEST, read_settings({**SETTINGS, **more}, "site s"))["taskGroups"]
    task = group["taskSpec"]
    assert task["volumes"] == [
        {"nfs": {"server": "10.0.0.2", "remotePath": "/vol1"}, "mountPath": "/mnt/data"}
    ]
    assert task["computeResource"]["bootDiskMib"] == "102400"


def test_the_exit_code_of_a_preempted_machine_names_it() -> None:
    job = {
        "createTime": "1970-01-01T00:00:01Z",
        "status": {
            "state": "FAILED",
            "statusEvents": [
                event("Job state is set from SCHEDULED to RUNNING for job x.", 5),
                event("Job state is set from RUNNING to FAILED for job x.", 9),
            ],
        },
    }
    task = {"status": {"state": "FAILED", "statusEvents": [event("Task failed", 8, 50001)]}}
    seen = job_of("n", job, [task])
    assert (seen.phase, seen.cause, seen.exit_code) == (BatchPhase.ENDED, Cause.TAKEN, 50001)
    assert (seen.created, seen.started, seen.ended) == (1.0, 5.5, 9.5)
    assert seen.reason.startswith("exit code 50001: the Spot machine was preempted; Job state is set")
    assert job_of("n", job, []).cause is Cause.LOST
    late = {"status": {"state": "FAILED", "statusEvents": [event("Task failed", 8, 50005)]}}
    assert job_of("n", job, [late]).cause is Cause.TIMEOUT


def test_a_failed_job_whose_tasks_may_not_be_read_hides_no_other_job() -> None:
    jobs = f"projects/{PROJECT}/locations/europe-west4/jobs"
    api = GoogleApi(
        {
            f"GET /v1/{jobs}/one": {"status": {"state": "FAILED"}},
            f"GET /v1/{jobs}/one/taskGroups/group0/tasks": refusal(403, "PERMISSION_DENIED"),
            f"GET /v1/{jobs}/two": {"status": {"state": "RUNNING"}},
        }
    )
    parsed = read_settings(SETTINGS, "site s")
    service = GcpBatch(parsed, GcpRequests(settings(), transport=api.transport))
    found = service.describe([f"{jobs}/one", f"{jobs}/two"])
    assert [one.phase for one in found.values()] == [BatchPhase.ENDED, BatchPhase.RUNNING]
    service.close()


def test_a_job_that_exists_but_cannot_be_read_yet_is_not_an_error() -> None:
    jobs = f"projects/{PROJECT}/locations/europe-west4/jobs"
    api = GoogleApi(
        {
            f"POST /v1/{jobs}": refusal(409, "ALREADY_EXISTS"),
            f"GET /v1/{jobs}/gm-1": refusal(404, "NOT_FOUND"),
        }
    )
    service = GcpBatch(read_settings(SETTINGS, "site s"), GcpRequests(settings(), transport=api.transport))
    assert service.submit(REQUEST) == f"{jobs}/gm-1"
    service.close()


def test_a_job_whose_machines_are_requested_is_queued() -> None:
    assert job_of("n", {"status": {"state": "SCHEDULED"}}, []).phase is BatchPhase.QUEUED
    assert job_of("n", {"status": {"state": "CANCELLATION_IN_PROGRESS"}}, []).phase is BatchPhase.RUNNING


def test_a_queued_job_is_diagnosed_by_its_events() -> None:
    quota = event("Quota 'NVIDIA_L4_GPUS' exceeded. Limit: 0.0 in region europe-west4.", 3)
    problem = queue_problem([event("Job state is set from QUEUED to SCHEDULED for job x.", 2), quota])
    assert problem is not None
    assert "NVIDIA_L4_GPUS" in problem.message
    assert not problem.hopeless
    silent = queue_problem([])
    assert silent is not None
    assert "Batch gives no reason" in silent.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"region": "x"}, "is not a region"),
        ({"image": ""}, "image is missing"),
        ({"queue": "q"}, "no setting 'queue'"),
        ({"nfs": "/vol1"}, "not an NFS file system"),
        ({"nfs": "10.0.0.2:/v", "nfs_mount": "share"}, "not an absolute path"),
        ({"disk": "much"}, "much"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_settings({**SETTINGS, **changes}, "site s")


def test_the_states_of_many_open_jobs_come_from_one_list() -> None:
    jobs = f"projects/{PROJECT}/locations/europe-west4/jobs"
    ids = [f"{jobs}/{number}" for number in range(40)]
    labels = {"gridmill-owner": "mark"}
    one = {"labels": labels, "status": {"state": "RUNNING"}}
    ended = {"labels": labels, "status": {"state": "SUCCEEDED"}}
    pages = [
        {"jobs": [{"name": id, **one} for id in ids[:30]], "nextPageToken": "more"},
        {"jobs": [{"name": id, **one} for id in ids[30:-1]]},
    ]
    api = GoogleApi({f"GET /v1/{id}": one for id in ids} | {f"GET /v1/{jobs}": pages})
    service = GcpBatch(read_settings(SETTINGS, "site s"), GcpRequests(settings(), transport=api.transport))
    assert len(service.describe(ids)) == 40  # the first answers show the owner
    api.answers[f"GET /v1/{ids[-1]}"] = ended
    before = len(api.requests)
    found = service.describe(ids)
    asked = [request.url for request in api.requests[before:]]
    assert [url.path for url in asked] == [f"/v1/{jobs}", f"/v1/{jobs}", f"/v1/{ids[-1]}"]
    assert asked[0].params["filter"].startswith('labels.gridmill-owner="mark" AND status.state!="SUCCEEDED"')
    assert asked[1].params["pageToken"] == "more"
    assert [found[id].phase for id in ids[-2:]] == [BatchPhase.RUNNING, BatchPhase.ENDED]
    api.answers[f"GET /v1/{jobs}"] = refusal(403, "PERMISSION_DENIED")
    assert len(service.describe(ids)) == 40  # the jobs are requested one by one
    service.close()
