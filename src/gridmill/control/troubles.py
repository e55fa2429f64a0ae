"""Troubles that last: told once, until they are others or over."""

from gridmill.control.state import Control


def tell(control: Control, what: str, trouble: str) -> None:
    """Warn of the trouble with `what`, unless that was the last thing told of it; empty: it is over."""
    if not trouble:
        control.troubles.pop(what, None)
    elif control.troubles.get(what) != trouble:
        control.troubles[what] = trouble
        control.warn(trouble)
