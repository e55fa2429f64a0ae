"""A request to the simulated AWS Batch that was read and is allowed."""

from collections.abc import Mapping, Sequence
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.testing.cloud.aws_batch.answers import client_error
from gridmill.testing.cloud.aws_batch.records import Job
from gridmill.testing.cloud.aws_batch.world import World
from gridmill.testing.cloud.ec2.catalogue import ACCOUNT
from gridmill.testing.cloud.ec2.refusal import not_simulated


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request. `now` is the time at which it has its effect, and `as_of` the time whose state a list
    shows."""

    world: World
    region: str
    action: str
    parameters: Mapping[str, Any]
    now: float
    as_of: float

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401  the type is that of the parameter
        """Returns a parameter."""
        return self.parameters.get(name, default)

    def allow_only(self, *names: str) -> None:
        """Raises RefusalError if the request has a parameter that is not named here."""
        check_known(self.parameters, names, self.action)

    def arn(self, kind: str, name: str) -> str:
        """Returns the name of a resource with its region and account."""
        return f"arn:aws:batch:{self.region}:{ACCOUNT}:{kind}/{name}"

    def job(self, job_id: str, as_of: float | None = None) -> Job | None:
        """Returns a job of the region if it can be seen already."""
        job = self.world.jobs.get(job_id) if as_of is None else self.world.jobs.get(job_id, as_of)
        return job if job is not None and job.region == self.region and self.is_visible(job) else None

    def is_visible(self, job: Job) -> bool:
        """Returns whether a new job can be seen already."""
        return job.visible_from <= self.now


def check_known(given: Mapping[str, Any], names: Sequence[str], place: str) -> None:
    """Raises RefusalError if a structure has a member that the simulation does not implement."""
    for name, value in given.items():
        if name not in names and value not in (None, [], {}):
            raise not_simulated(f"the parameter {name} of {place}")


def page(
    items: Sequence[Any], parameters: Mapping[str, Any], most: int
) -> tuple[Sequence[Any], dict[str, str]]:
    """Returns the items of the wanted page, and the member `nextToken` if there are more. The token is a
    position in the list: an item that is new in the meantime moves the others."""
    size = parameters.get("maxResults") or most
    if not 1 <= size <= most:
        raise client_error(f"Value '{size}' at 'maxResults' must be between 1 and {most}")
    token = parameters.get("nextToken") or "0"
    if not token.isdecimal():
        raise client_error("The value of nextToken is not valid")
    start = int(token)
    end = start + size
    return items[start:end], ({"nextToken": str(end)} if end < len(items) else {})


def name_of(text: str) -> str:
    """Returns the name of a resource that is given by its name or its ARN."""
    return text.rpartition("/")[2] if text.startswith("arn:") else text
