"""Metrics by name: which way is better."""

from gridmill.errors import InputError

OWN = "own_"
"""Begins the names of metrics that a model's own code reports, which Gridmill has not measured."""
HIGHER_IS_BETTER = frozenset(
    {"r2", "skill", "accuracy", "auc", "average_precision", "f1", "precision", "recall"}
)


def is_ranked(name: str) -> bool:
    """Whether one value of the metric is better than another: coverage is best where it is what was asked."""
    return not name.endswith("coverage")


def marked(name: str) -> str:
    """The name with its origin, if Gridmill has not measured it."""
    return f"{name} (reported by the model's code)" if name.startswith(OWN) else name


def read_metric(text: str) -> tuple[str, bool]:
    """The metric's name and whether higher is better: `validation_auc`, or `max:NAME` and `min:NAME`
    where the name does not say. Raises InputError."""
    way, colon, name = text.partition(":")
    if colon:
        if way not in ("max", "min") or not name:
            raise InputError(f"{text!r} is no metric", hint="Write NAME, max:NAME or min:NAME.")
        return name, way == "max"
    return text, any(text == known or text.endswith(f"_{known}") for known in HIGHER_IS_BETTER)
