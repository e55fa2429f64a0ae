"""The training rows of a sequence model: those with enough rows of their entity before them."""

from gridmill.errors import DataError
from gridmill.jobs.features import Integers
from gridmill.jobs.training.frame import Frame


def whole_windows(frame: Frame, length: int) -> Integers:
    """The training rows that have `length` rows of their entity up to them. Raises DataError for none."""
    rows = frame.rows["train"]
    whole: Integers = rows[rows - frame.starts[rows] >= length - 1]
    if len(whole) == 0:
        most = int((rows - frame.starts[rows]).max()) + 1
        raise DataError(
            f"no training row has {length} rows of its entity up to it (the most is {most})",
            hint=f"Use `sequence: {most}` or less, or check the dataset's entity.",
            place="training.sequence",
        )
    return whole
