"""Defects of Gridmill itself that show at one job: that job fails and says so, the others go on."""

import traceback

from gridmill.control.state import Control
from gridmill.errors import InternalError


def defect(control: Control, job: str, error: Exception) -> InternalError:
    """What to tell about an error that nothing expects; the control node's log gets the traceback."""
    control.warn(f"a defect of Gridmill at {job}:\n{''.join(traceback.format_exception(error)).rstrip()}")
    return InternalError(
        f"a defect of Gridmill: {type(error).__name__}: {error}".rstrip(": "),
        hint="The traceback is in the control node's log; please report it. `gridmill resume` tries again.",
    )
