"""This module has the place of the request logs of services, and the sources that read them."""

import hashlib
import re

from gridmill.domain.frozen import replace
from gridmill.domain.job import Job
from gridmill.domain.naming import check_name
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.source import SERVICE_LOG, Format, Source
from gridmill.domain.storage_uri import below

LOG_FOLDER, READY_FOLDER = "requests", "ready"
"""The names of the folder of a request log that is transferred, in the output folder of the attempt of the
service, and of its folder with the complete files."""
_NAME = re.compile(r"(?:rows|requests)(?:-([0-9a-z]{16}))?-[0-9]+(-[0-9]+\.jsonl|\.part)")


def writer_of(attempt_id: str, token: str) -> str:
    """Return the part of the names of log files that differs between all attempts (see `RequestLog`)."""
    return hashlib.sha256(f"{attempt_id} {token}".encode()).hexdigest()[:16]


def writer_in(name: str) -> str:
    """Return the writer in the name of a log file; empty if the name has none."""
    match = _NAME.fullmatch(name)
    return (match[1] or "") if match is not None else ""


def is_complete_name(name: str) -> bool:
    """Return whether this is the name of a complete log file."""
    match = _NAME.fullmatch(name)
    return match is not None and match[2] != ".part"


def is_open_name(name: str) -> bool:
    """Return whether this is the name of a log file to which a replica appends."""
    match = _NAME.fullmatch(name)
    return match is not None and match[2] == ".part"


def name_after_end(name: str) -> str:
    """Return the name that a log file gets at home when its replica has ended. A file that its replica could
    not complete gets the time 0, so that it has the same name whenever it is taken."""
    return f"{name.removesuffix('.part')}-0.jsonl" if is_open_name(name) else name


def request_log_uri(service: str) -> str:
    """Return the folder of the request log of a service, below the storage root."""
    return f"requests/{service}"


def reads_service_logs(pipeline: Pipeline) -> bool:
    """Return whether a job of the pipeline reads the logged rows of a service."""
    return any(_reads_log(job) for job in pipeline.jobs)


def with_log_files(pipeline: Pipeline, location: str) -> Pipeline:
    """Return the pipeline in which each source `service://NAME` names the files with the logged rows of the
    service. `location` is the storage root. Raises InputError for a name that no service can have."""
    return replace(pipeline, jobs=tuple(_resolved(job, location) for job in pipeline.jobs))


def _reads_log(job: Job) -> bool:
    return job.sink is not None and has_service_log(job.sink.source)


def _resolved(job: Job, location: str) -> Job:
    if job.sink is None or not _reads_log(job):
        return job
    source = replace(
        job.sink.source,
        path=tuple(_files(path, location) for path in job.sink.source.paths),
        format=job.sink.source.format or Format.JSONL,
    )
    return replace(job, sink=replace(job.sink, source=source))


def _files(path: str, location: str) -> str:
    if not path.startswith(SERVICE_LOG):
        return path
    name = path.removeprefix(SERVICE_LOG)
    check_name("service", name)
    return str(below(location, f"{request_log_uri(name)}/rows-*.jsonl"))


def has_service_log(source: Source) -> bool:
    """Return whether a source reads the logged rows of a service, which only the control node finds."""
    return any(path.startswith(SERVICE_LOG) for path in source.paths)
