"""The requests for existing jobs, queues, compute environments and logs.

Sources: https://docs.aws.amazon.com/batch/latest/APIReference/API_DescribeJobs.html,
https://docs.aws.amazon.com/batch/latest/APIReference/API_ListJobs.html,
https://docs.aws.amazon.com/batch/latest/APIReference/API_CancelJob.html,
https://docs.aws.amazon.com/batch/latest/APIReference/API_TerminateJob.html and
https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_GetLogEvents.html
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gridmill.testing.cloud.aws_batch import attempts
from gridmill.testing.cloud.aws_batch.answers import client_error, milliseconds
from gridmill.testing.cloud.aws_batch.call import Call, name_of, page
from gridmill.testing.cloud.aws_batch.records import Job, Status
from gridmill.testing.cloud.aws_batch.shapes import (
    environment_shape,
    job_detail,
    job_summary,
    queue_shape,
)
from gridmill.testing.cloud.containers import Line
from gridmill.testing.cloud.ec2.refusal import RefusalError, not_simulated

_MOST_DESCRIBED = 100
_MOST_BY_STATUS, _MOST_BY_FILTER = 1000, 100
_LONGEST_REASON = 1024
_LOG_GROUP = "/aws/batch/job"
_MOST_EVENTS = 10_000
_MOST_BYTES, _EVENT_BYTES = 1024 * 1024, 26


def describe_jobs(call: Call) -> dict[str, Any]:
    """Describes up to 100 jobs. Unknown jobs are left out."""
    wanted = call.get("jobs")
    if len(wanted) > _MOST_DESCRIBED:
        raise client_error(f"At most {_MOST_DESCRIBED} jobs can be described at once.")
    found = (call.job(one, call.as_of) for one in dict.fromkeys(wanted))
    return {"jobs": [job_detail(call, one) for one in found if one is not None]}


def list_jobs(call: Call) -> dict[str, Any]:
    """Lists the jobs of a queue, the children of an array job, or the nodes of a multi-node job."""
    sources = [name for name in ("jobQueue", "arrayJobId", "multiNodeJobId") if call.get(name)]
    if len(sources) != 1:
        raise client_error("Exactly one of jobQueue, arrayJobId and multiNodeJobId must be given.")
    status = call.get("jobStatus")
    if status is not None and status not in set(Status):
        raise client_error(f"Job status {status[:40]} is not valid.")
    filters = call.get("filters") or ()
    if filters and sources == ["jobQueue"]:
        found = sorted(_filtered(call, filters), key=lambda one: -one.created_at)
    else:
        found = [one for one in _source(call, sources[0]) if one.status == (status or Status.RUNNING)]
    most = _MOST_BY_FILTER if filters else _MOST_BY_STATUS
    listed, token = page(found, call.parameters, most)
    return {"jobSummaryList": [job_summary(call, one) for one in listed]} | token


def _source(call: Call, source: str) -> Iterable[Job]:
    if source == "jobQueue":
        return _of_queue(call)
    parent = call.job(call.get(source), call.as_of)
    ids = call.world.children.get(parent.id, ()) if parent is not None else ()
    return [one for one in (call.job(child, call.as_of) for child in ids) if one is not None]


def _of_queue(call: Call) -> list[Job]:
    name = name_of(call.get("jobQueue"))
    if (call.region, name) not in call.world.queues:
        raise client_error(f"JobQueue {name[:200]} not found.")
    return [
        one
        for one in call.world.jobs.all(call.as_of)
        if (one.region, one.queue) == (call.region, name) and not one.parent and call.is_visible(one)
    ]


def _filtered(call: Call, filters: list[Mapping[str, Any]]) -> list[Job]:
    if len(filters) != 1 or len(filters[0].get("values", ())) != 1:
        raise client_error("Exactly one filter with one value can be used.")
    kind, value = filters[0].get("name"), filters[0]["values"][0]
    jobs = _of_queue(call)
    match kind:
        case "JOB_NAME":
            return [one for one in jobs if _fits(value.lower(), one.name.lower())]
        case "JOB_DEFINITION":
            return [one for one in jobs if _has_definition(call, one, value)]
        case "BEFORE_CREATED_AT":
            return [one for one in jobs if one.created_at * 1000 < _time(value)]
        case "AFTER_CREATED_AT":
            return [one for one in jobs if one.created_at * 1000 > _time(value)]
        case "SHARE_IDENTIFIER":
            raise not_simulated("share identifiers")
    raise client_error(f"Filter {kind} is not valid.")


def _has_definition(call: Call, job: Job, value: str) -> bool:
    if value.startswith("arn:"):
        full = f"{job.definition.name}:{job.definition.revision}"
        return call.arn("job-definition", full) == value
    return _fits(value, job.definition.name)


def _fits(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _time(value: str) -> int:
    if not value.isdecimal():
        raise client_error("The value of the filter must be a time in milliseconds.")
    return int(value)


def cancel_job(call: Call) -> dict[str, Any]:
    """Cancels a job that has not started. For other jobs the request has no effect, but succeeds."""
    attempts.cancel(call.world, _found(call), call.get("reason"), call.now)
    return {}


def terminate_job(call: Call) -> dict[str, Any]:
    """Ends a job, also if it has started."""
    attempts.cancel(call.world, _found(call), call.get("reason"), call.now, terminates=True)
    return {}


def _found(call: Call) -> Job:
    if len(call.get("reason")) > _LONGEST_REASON:
        raise client_error(f"The reason can have at most {_LONGEST_REASON} characters.")
    job = call.job(call.get("jobId"))
    if job is None:
        raise client_error(f"Job {call.get('jobId')[:200]} not found.")
    return job


def describe_queues(call: Call) -> dict[str, Any]:
    """Lists job queues. Unknown ones are left out."""
    wanted = {name_of(one) for one in call.get("jobQueues") or ()}
    found = [
        queue_shape(call, one)
        for (region, name), one in call.world.queues.items()
        if region == call.region and (not wanted or name in wanted)
    ]
    listed, token = page(found, call.parameters, most=100)
    return {"jobQueues": listed} | token


def describe_environments(call: Call) -> dict[str, Any]:
    """Lists compute environments. Unknown ones are left out."""
    wanted = {name_of(one) for one in call.get("computeEnvironments") or ()}
    found = [
        environment_shape(call, one)
        for (region, name), one in call.world.environments.items()
        if region == call.region and (not wanted or name in wanted)
    ]
    listed, token = page(found, call.parameters, most=100)
    return {"computeEnvironments": listed} | token


def get_log_events(call: Call) -> dict[str, Any]:
    """Returns a page of the output of a container: the newest lines, or the oldest with `startFromHead`. The
    tokens are positions. At the end of the output the token of a page is the token of the request."""
    call.allow_only("logGroupName", "logStreamName", "startFromHead", "limit", "nextToken")
    lines = _log(call)
    limit = call.get("limit") or _MOST_EVENTS
    if not 1 <= limit <= _MOST_EVENTS:
        raise RefusalError("InvalidParameterException", f"limit must be between 1 and {_MOST_EVENTS}")
    start, end = _range(call, len(lines), limit)
    while end > start + 1 and sum(map(_size, lines[start:end])) > _MOST_BYTES:
        end -= 1
    events = [
        {
            "timestamp": milliseconds(one.time),
            "message": one.text,
            "ingestionTime": milliseconds(one.time),
        }
        for one in lines[start:end]
    ]
    return {"events": events, "nextForwardToken": f"f/{end:056d}", "nextBackwardToken": f"b/{start:056d}"}


def _log(call: Call) -> list[Line]:
    stream = call.get("logStreamName") or ""
    if call.get("logGroupName") != _LOG_GROUP:
        raise RefusalError("ResourceNotFoundException", "The specified log group does not exist.")
    lines = call.world.containers.lines(stream.rpartition("/")[2])
    if not lines:
        # AWS Batch makes a stream when the container writes its first line
        raise RefusalError("ResourceNotFoundException", "The specified log stream does not exist.")
    return lines


def _range(call: Call, count: int, limit: int) -> tuple[int, int]:
    token = call.get("nextToken")
    if not token:
        return (0, min(limit, count)) if call.get("startFromHead") else (max(0, count - limit), count)
    direction, _, position = token.partition("/")
    if direction not in ("f", "b") or not position.isdecimal():
        raise RefusalError("InvalidParameterException", "The specified nextToken is invalid.")
    at = int(position)
    return (at, min(at + limit, count)) if direction == "f" else (max(0, at - limit), at)


def _size(line: Line) -> int:
    return len(line.text.encode()) + _EVENT_BYTES
