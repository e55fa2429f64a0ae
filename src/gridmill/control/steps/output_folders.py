"""This module has the output folders of attempts, and the ids and folders of the parts of a job."""

from collections.abc import Iterator
from functools import partial

from gridmill.control.ledger import Transaction
from gridmill.domain.job import JobKind
from gridmill.domain.run import JobRun
from gridmill.domain.version_manifest import contents_uri

FOLDERS = {
    JobKind.SINK: "sinks",
    JobKind.DATASET: "datasets",
    JobKind.TRAINING: "models",
    JobKind.PREDICTION: "predictions",
    JobKind.SERVICE: "services",
    JobKind.COMMAND: "files",
}


def output_uri(job_run: JobRun, attempt_id: str) -> str:
    """Return the folder to which an attempt writes, below the storage root."""
    return f"{FOLDERS[job_run.job.kind]}/{job_run.name}/{attempt_id}"


def left_behind(job_run: JobRun, attempt_id: str) -> tuple[str, ...]:
    """Return the folders that an unsuccessful attempt may have left below the storage root."""
    uri = output_uri(job_run, attempt_id)
    folder, _, name = uri.rpartition("/")
    return (uri, f"{folder}/.{name}.draft", contents_uri(uri))


def part_id(job_run_id: str, number: int) -> str:
    """Return the id of the JobRun of a part."""
    return f"{job_run_id}.p{number}"


def parts_of(transaction: Transaction, job_run: JobRun) -> Iterator[JobRun]:
    """Return the current parts of a job."""
    for number in range(job_run.parts):
        part = transaction.get(JobRun, part_id(job_run.id, number))
        if part is not None:
            yield part


def folders_of_parts(transaction: Transaction, job_run: JobRun) -> tuple[str, ...]:
    """Return the folders of the attempts of the parts, in order."""
    parts = parts_of(transaction, job_run)
    return tuple(output_uri(part, part.attempt_id) for part in parts if part.attempt_id)


def discard_parts(discarded: list[str], transaction: Transaction, job_run: JobRun) -> None:
    """Delete the outputs of the parts, which are not needed after they were combined or after the job has
    failed."""
    for part in parts_of(transaction, job_run):
        if part.attempt_id is not None:
            transaction.then(partial(discarded.extend, left_behind(part, part.attempt_id)))
