"""Which version `latest` is: the one that the last run of its pipeline made, or found unchanged."""

from gridmill.model.noun import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The latest version of `name` (`pipeline/job`): its id is `artifact`.

    `run` is the last submitted run in which the job succeeded or was unchanged, `order` that run's order: an
    earlier run that ends later does not replace it.
    """

    name: str
    artifact: str
    run: str
    order: int
