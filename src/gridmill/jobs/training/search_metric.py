"""The metric that a search compares its trials by."""

from gridmill.errors import InputError
from gridmill.jobs.metrics import NAMES
from gridmill.model.training import Objective


def check_metric(metric: str | None, objective: Objective) -> str:
    """The metric to search by. Raises InputError for one that the objective does not have."""
    names = NAMES[objective]
    if metric is not None and metric not in names:
        raise InputError(
            f"there is no metric {metric!r} of {objective}",
            hint=f"There are: {', '.join(names)}.",
            place="training.search.metric",
        )
    return metric or names[0]
