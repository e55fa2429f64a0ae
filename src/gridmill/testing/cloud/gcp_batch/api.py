"""The methods of the simulated Google Cloud Batch, and the checks of each request.

Sources: https://cloud.google.com/batch/docs/reference/rest, for long-running operations
https://google.aip.dev/151, for request ids https://google.aip.dev/155, and for the limits on the rates of
requests https://cloud.google.com/batch/quotas
"""

import json
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from gridmill.domain.frozen import dataclass
from gridmill.testing.cloud.cloud_faults import PlannedFault
from gridmill.testing.cloud.gcp_batch import catalogue, execution
from gridmill.testing.cloud.gcp_batch.filters import fits, page, task_fits
from gridmill.testing.cloud.gcp_batch.records import Job, JobState, Operation
from gridmill.testing.cloud.gcp_batch.refusal import GoogleRefusalError, invalid, not_found, not_simulated
from gridmill.testing.cloud.gcp_batch.shapes import job_shape, operation_shape, task_shape
from gridmill.testing.cloud.gcp_batch.specs import read_labels, read_spec
from gridmill.testing.cloud.gcp_batch.world import World
from gridmill.testing.cloud.google_accounts import PERMITTED_BY_ANY, TOKEN_PATH
from gridmill.testing.cloud.simulation_server import NO_ANSWER, Answer, json_answer, with_fault
from gridmill.testing.cloud.token_bucket import TokenBuckets

_LOCATION = r"projects/[^/]+/locations/[^/]+"
_METHODS = (
    ("POST", rf"({_LOCATION})/jobs", "jobs.create"),
    ("GET", rf"({_LOCATION})/jobs", "jobs.list"),
    ("GET", rf"({_LOCATION}/jobs/[^/:]+)", "jobs.get"),
    ("DELETE", rf"({_LOCATION}/jobs/[^/:]+)", "jobs.delete"),
    ("POST", rf"({_LOCATION}/jobs/[^/:]+):cancel", "jobs.cancel"),
    ("GET", rf"({_LOCATION}/jobs/[^/]+/taskGroups/[^/]+)/tasks", "tasks.list"),
    ("GET", rf"({_LOCATION}/jobs/[^/]+/taskGroups/[^/]+/tasks/[^/]+)", "tasks.get"),
    ("GET", rf"({_LOCATION}/operations/[^/:]+)", "operations.get"),
    ("GET", r"(projects/[^/]+)/locations", "locations.list"),
    ("GET", rf"({_LOCATION})", "locations.get"),
)
_PATHS = tuple((method, re.compile(f"/v1/{path}"), name) for method, path, name in _METHODS)
_JOB_ID = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_LARGEST_REQUEST_BYTES = 1_000_000
_KNOWN_SECONDS = 60 * 60.0
_MUTATIONS_PER_MINUTE, _READS_PER_MINUTE = 6000.0, 15000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that is allowed. `subject` is the name in its path, `now` the time at which it has its
    effect, and `as_of` the time whose state a list shows."""

    world: World
    subject: str
    query: Mapping[str, str]
    body: Mapping[str, Any]
    now: float
    as_of: float

    @property
    def location(self) -> str:
        """Returns the location in the path."""
        return self.subject.split("/")[3]

    def job(self, name: str) -> Job:
        """Returns a job. Raises GoogleRefusalError if it is unknown, or cannot be seen yet."""
        job = self.world.jobs.get(name, self.as_of)
        if job is None or job.visible_from > self.now:
            raise not_found(name)
        return job


class BatchApi:
    """The API of one project."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.url = ""
        self._buckets = TokenBuckets()

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Carries out a request, and returns its answer."""
        with self.world.lock:
            try:
                parts = urlsplit(path)
                if parts.path == TOKEN_PATH:
                    return self._exchanged(body)
                query = dict(parse_qsl(parts.query, keep_blank_values=True))
                return self._carried_out(method, parts.path, query, headers, body)
            except GoogleRefusalError as error:
                return _refused(error)

    def _exchanged(self, body: bytes) -> Answer:
        world = self.world
        now = world.settle()
        world.requests.append((now, "", "token"))
        return with_fault(
            world.faults.next_fault("token", "", ""),
            lambda: world.accounts.exchange(body, self.url + TOKEN_PATH, world.wall_time(), PERMITTED_BY_ANY),
            lambda fault: json_answer({"error": "internal_failure"}, fault.status),
        )

    def _carried_out(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> Answer:
        world = self.world
        now = world.settle()
        action, subject = _matched(method, path)
        region = subject.split("/")[3] if subject.count("/") >= 3 else ""
        world.requests.append((now, region, action))
        if region in world.faults.regions_down:
            return NO_ANSWER
        found = world.accounts.caller(headers, world.wall_time())
        if found is None:
            raise _unauthenticated()
        account, _ = found
        self._check(action, subject, region, account.email, account.denied)
        fault = world.faults.next_fault(action, region, account.email)

        def effect() -> Answer:
            if world.faults.throttling:
                self._throttle(region, is_read=method == "GET", now=now)
            as_of = now - world.faults.lag_seconds() if method == "GET" else now
            call = Call(world=world, subject=subject, query=query, body=_json(body), now=now, as_of=as_of)
            value = _FUNCTIONS[action](call)
            world.settle()
            return json_answer(value)

        return with_fault(fault, effect, lambda one: _refused(_error_of(one)))

    def _check(self, action: str, subject: str, region: str, email: str, denied: tuple[str, ...]) -> None:
        project = subject.split("/")[1]
        if project != catalogue.PROJECT or any(fnmatchcase(action, one) for one in denied):
            text = f"Permission 'batch.{action}' denied on 'projects/{project}' for {email}"
            raise GoogleRefusalError(403, text)
        if region in self.world.faults.regions_gone:
            raise GoogleRefusalError(403, f"Location {region} is not allowed by the organization policy")
        if region and region not in catalogue.LOCATIONS:
            raise not_found(f"projects/{project}/locations/{region}")

    def _throttle(self, region: str, *, is_read: bool, now: float) -> None:
        rate = _READS_PER_MINUTE if is_read else _MUTATIONS_PER_MINUTE
        if not self._buckets.take((region, is_read), now, size=rate, per_second=rate / 60):
            raise GoogleRefusalError(429, "Quota exceeded for quota metric 'Requests' and limit 'per minute'")


def _unauthenticated() -> GoogleRefusalError:
    return GoogleRefusalError(
        401,
        "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie "
        "or other valid authentication credential.",
    )


def _matched(method: str, path: str) -> tuple[str, str]:
    for wanted, pattern, name in _PATHS:
        match = pattern.fullmatch(path)
        if match is not None and wanted == method:
            return name, match[1]
    raise GoogleRefusalError(404, f"The requested URL {path[:200]} was not found on this server.")


def _json(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body or b"{}")
    except ValueError as error:
        raise invalid("Invalid JSON payload received.") from error
    if not isinstance(value, dict):
        raise invalid("Invalid JSON payload received. It is not an object.")
    return value


def _error_of(fault: PlannedFault) -> GoogleRefusalError:
    names = {"InternalError": "INTERNAL", "Unavailable": "UNAVAILABLE"}
    return GoogleRefusalError(fault.status, fault.message, names.get(fault.code, fault.code))


def _refused(error: GoogleRefusalError) -> Answer:
    value = {"code": error.http_status, "message": error.message, "status": error.status}
    return json_answer({"error": value}, error.http_status)


# jobs


def _create(call: Call) -> dict[str, Any]:
    if len(json.dumps(call.body)) > _LARGEST_REQUEST_BYTES:
        raise invalid("The job definition is larger than 1 MB")
    known = _known(call, "jobs.create")
    if known is not None:
        return job_shape(call.world, call.world.job(known))
    job_id = call.query.get("jobId") or f"j-{call.world.new_uuid()}"
    if not _JOB_ID.fullmatch(job_id):
        raise invalid(f"Invalid job id: {job_id[:100]}")
    name = f"{call.subject}/jobs/{job_id}"
    if call.world.jobs.get(name) is not None:
        raise GoogleRefusalError(409, f"Job {name} already exists")
    spec = read_spec(call.body, call.location)
    _check_fit(spec.machine_type, spec.cpu_milli, spec.memory_mib)
    job = Job(
        name=name,
        uid=f"{job_id[:20]}-{call.world.new_uuid()}",
        location=call.location,
        spec=spec,
        request=call.body,
        state=JobState.QUEUED,
        created_at=call.now,
        updated_at=call.now,
        visible_from=call.now + call.world.faults.invisible(),
        labels=read_labels(call.body.get("labels")),
    )
    _remember(call, "jobs.create", name)
    call.world.create(job, call.now)
    return job_shape(call.world, call.world.job(name))


def _check_fit(machine_type: str, cpu_milli: int, memory_mib: int) -> None:
    kind = catalogue.MACHINE_TYPES.get(machine_type)
    if kind is not None and (cpu_milli > kind.vcpus * 1000 or memory_mib > kind.memory_mib):
        raise invalid(f"The compute resource of a task is more than a machine {machine_type} has")


def _known(call: Call, method: str) -> str | None:
    """Returns what a request with the same id made within the last hour."""
    given = call.query.get("requestId")
    if not given:
        return None
    if not _UUID.fullmatch(given) or not given.strip("0-"):
        raise invalid(f"Invalid request id: {given[:100]}")
    at, name = call.world.known_requests.get((method, given), (0.0, ""))
    exists = name in call.world.operations or call.world.jobs.get(name) is not None
    return name if exists and call.now <= at + _KNOWN_SECONDS else None


def _remember(call: Call, method: str, name: str) -> None:
    if call.query.get("requestId"):
        call.world.known_requests[(method, call.query["requestId"])] = (call.now, name)


def _get(call: Call) -> dict[str, Any]:
    return job_shape(call.world, call.job(call.subject))


def _list(call: Call) -> dict[str, Any]:
    if call.query.get("orderBy"):
        raise not_simulated("the parameter orderBy")
    wanted = fits(call.query.get("filter", ""))
    found = [
        one
        for one in call.world.jobs.all(call.as_of)
        if one.name.startswith(f"{call.subject}/jobs/") and one.visible_from <= call.now and wanted(one)
    ]
    listed, token = page(found, call.query)
    return {"jobs": [job_shape(call.world, one) for one in listed]} | token


def _delete(call: Call) -> dict[str, Any]:
    return _ending(call, "jobs.delete", "delete", JobState.DELETION_IN_PROGRESS)


def _cancel(call: Call) -> dict[str, Any]:
    return _ending(call, "jobs.cancel", "cancel", JobState.CANCELLATION_IN_PROGRESS)


def _ending(call: Call, method: str, verb: str, state: JobState) -> dict[str, Any]:
    known = _known(call, method)
    if known is not None:
        return operation_shape(call.world.operations[known])
    job = call.job(call.subject)
    if verb == "cancel" and job.state.is_over:
        raise GoogleRefusalError(400, f"Job {job.name} is {job.state}", "FAILED_PRECONDITION")
    operation = Operation(
        name=f"{call.subject.rpartition('/jobs/')[0]}/operations/operation-{call.world.new_uuid()}",
        verb=verb,
        target=job.name,
        created_at=call.now,
    )
    call.world.operations[operation.name] = operation
    _remember(call, method, operation.name)
    if job.state != state:
        execution.stop(call.world, job, state, "", call.now)
    return operation_shape(call.world.operations[operation.name])


def _get_operation(call: Call) -> dict[str, Any]:
    operation = call.world.operations.get(call.subject)
    if operation is None:
        raise not_found(call.subject)
    return operation_shape(operation)


# tasks and locations


def _get_task(call: Call) -> dict[str, Any]:
    call.job(call.subject.partition("/taskGroups/")[0])
    task = call.world.tasks.get(call.subject, call.as_of)
    if task is None:
        raise not_found(call.subject)
    return task_shape(task)


def _list_tasks(call: Call) -> dict[str, Any]:
    job = call.job(call.subject.partition("/taskGroups/")[0])
    if call.subject != job.group:
        raise not_found(call.subject)
    wanted = task_fits(call.query.get("filter", ""))
    names = call.world.tasks_of.get(job.name, ())
    tasks = [one for one in (call.world.tasks.get(name, call.as_of) for name in names) if one is not None]
    listed, token = page([one for one in tasks if wanted(one)], call.query)
    return {"tasks": [task_shape(one) for one in listed]} | token


def _get_location(call: Call) -> dict[str, Any]:
    return {"name": call.subject, "locationId": call.location}


def _list_locations(call: Call) -> dict[str, Any]:
    names = [f"{call.subject}/locations/{one}" for one in catalogue.LOCATIONS]
    found = [{"name": name, "locationId": name.rpartition("/")[2]} for name in names]
    listed, token = page(found, call.query)
    return {"locations": list(listed)} | token


_FUNCTIONS: Mapping[str, Callable[[Call], dict[str, Any]]] = {
    "jobs.create": _create,
    "jobs.list": _list,
    "jobs.get": _get,
    "jobs.delete": _delete,
    "jobs.cancel": _cancel,
    "tasks.list": _list_tasks,
    "tasks.get": _get_task,
    "operations.get": _get_operation,
    "locations.list": _list_locations,
    "locations.get": _get_location,
}
