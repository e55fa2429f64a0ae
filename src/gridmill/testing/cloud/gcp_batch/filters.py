"""The filters and pages of lists.

Sources: https://google.aip.dev/160, https://google.aip.dev/158 and
https://cloud.google.com/batch/docs/view-jobs-tasks
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from gridmill.testing.cloud.gcp_batch.records import Job, Task, TaskState
from gridmill.testing.cloud.gcp_batch.refusal import invalid, not_simulated
from gridmill.testing.cloud.gcp_batch.specs import number

_MOST_LISTED = 1000
_TERM = re.compile(r"""\s*([\w.-]+)\s*(!=|>=|<=|=|:|>|<)\s*("(?:[^"\\]|\\.)*"|[^\s()"]+)\s*""")
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    ":": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


def fits(text: str) -> Callable[[Job], bool]:
    """Returns whether a job fits a filter: terms such as `status.state=RUNNING`, `labels.run="a"`,
    `name=…`, `uid=…` or `createTime>="2026-01-01T00:00:00Z"`, joined by AND."""
    terms = [_job_term(part) for part in re.split(r"\s+AND\s+", text.strip())] if text.strip() else []
    return lambda job: all(term(job) for term in terms)


def _job_term(text: str) -> Callable[[Job], bool]:
    match = _TERM.fullmatch(text)
    if match is None:
        raise not_simulated(f"the filter {text[:200]}")
    field, compared, value = match[1], _COMPARED[match[2]], match[3].strip('"')
    if field in ("createTime", "create_time"):
        moment = _time(value)
        return lambda job: compared(job.created_at, moment)
    if match[2] not in ("=", ":", "!="):
        raise invalid(f"Operator {match[2]} is not supported for {field}")
    if field.startswith("labels."):
        label = field.removeprefix("labels.")
        return lambda job: compared(dict(job.labels).get(label), value)
    values: Mapping[str, Callable[[Job], str]] = {
        "status.state": lambda job: job.state,
        "name": lambda job: job.name,
        "uid": lambda job: job.uid,
    }
    if field not in values:
        raise not_simulated(f"the filter field {field}")
    return lambda job: compared(values[field](job), value)


def _time(value: str) -> float:
    try:
        return datetime.fromisoformat(value).timestamp()
    except ValueError as error:
        raise invalid(f"Invalid time in the filter: {value}") from error


def task_fits(text: str) -> Callable[[Task], bool]:
    """Returns whether a task fits a filter `State=RUNNING`."""
    if not text.strip():
        return lambda _: True
    match = re.fullmatch(r"\s*[Ss]tate\s*=\s*\"?(\w+)\"?\s*", text)
    if match is None or match[1] not in set(TaskState):
        raise invalid(f"Invalid filter: {text[:200]}")
    return lambda task: task.state == match[1]


def page(items: Sequence[Any], query: Mapping[str, str]) -> tuple[Sequence[Any], dict[str, str]]:
    """Returns the items of the wanted page, and the field `nextPageToken` if there are more. The token is a
    position in the list: an item that is new in the meantime moves the others. A larger page than 1,000 items
    is cut."""
    size = min(number(query.get("pageSize"), _MOST_LISTED, "pageSize"), _MOST_LISTED)
    token = query.get("pageToken") or "0"
    if not token.isdecimal():
        raise invalid("The page token is not valid")
    start = int(token)
    end = start + size
    return items[start:end], ({"nextPageToken": str(end)} if end < len(items) else {})
