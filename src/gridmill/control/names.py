"""Which versions the names of other pipelines' results mean in a run: decided once, when the run begins."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from gridmill.control.references import find_version
from gridmill.control.state import Control
from gridmill.errors import InputError, NotFoundError
from gridmill.model.alias import split_reference
from gridmill.model.artifact import Artifact
from gridmill.model.job import Job


def settle_names(control: Control, jobs: Iterable[Job]) -> Mapping[str, str]:
    """The id of the version that each name in these jobs means now. A name without a version is left out."""
    settled: dict[str, str] = {}
    for name in dict.fromkeys(name for job in jobs for name in job.external_names):
        try:
            settled[name] = find_version(control, name).id
        except NotFoundError:
            continue
    return settled


def check_names_known(control: Control, jobs: Iterable[Job]) -> None:
    """Raise InputError for a name that no version has."""
    for job in jobs:
        for name in job.external_names:
            unknown = unknown_name(control, name, job)
            if unknown is not None:
                raise unknown


def unknown_name(control: Control, reference: str, job: Job) -> InputError | None:
    """What to say of a name that no version has; None for one that a version has."""
    try:
        find_version(control, reference)
    except NotFoundError as error:
        if control.newest_artifact(split_reference(reference)[0]) is not None:
            return InputError(f"job {job.name!r} reads {reference!r}: {error}", hint=error.hint)
        return InputError(
            f"job {job.name!r} reads {reference!r}, which does not exist", hint=_near(control, reference)
        )
    return None


def _near(control: Control, reference: str) -> str:
    name = split_reference(reference)[0]
    records = control.ledger.store.list(Artifact)
    known = {record.noun.name for record in records if isinstance(record.noun, Artifact)}
    close = get_close_matches(name, known, n=1)
    first = f"Run the pipeline {name.partition('/')[0]!r} first."
    return f"Did you mean {close[0]!r}? If not: {first}" if close else first
