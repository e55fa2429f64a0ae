"""Metrics by name: which way is better."""

from gridmill.errors import InputError

HIGHER_IS_BETTER = frozenset({"r2", "skill", "accuracy", "auc", "f1"})


def read_metric(text: str) -> tuple[str, bool]:
    """The metric's name and whether higher is better: `validation_auc`, or `max:NAME` and `min:NAME`
    where the name does not say. Raises InputError."""
    way, colon, name = text.partition(":")
    if colon:
        if way not in ("max", "min") or not name:
            raise InputError(f"{text!r} is no metric", hint="Write NAME, max:NAME or min:NAME.")
        return name, way == "max"
    return text, any(text == known or text.endswith(f"_{known}") for known in HIGHER_IS_BETTER)
