"""An outage: a stretch of time in which a sink's data is known to be bad or missing."""

from datetime import datetime

from gridmill.errors import InputError
from gridmill.model.moment import read_moment
from gridmill.model.noun import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Rows whose column `time` lies from `begins` on and before `ends` (ISO 8601; without a zone UTC).

    They stay in the table, and datasets do not see them: no feature, window, lag, join or label is made of
    them. A backfill leaves that time out.
    """

    time: str
    begins: str
    ends: str
    reason: str = ""

    def check(self) -> None:
        """Raise InputError for what is no time, and for an end that is not after the beginning."""
        if self.range[0] >= self.range[1]:
            raise InputError("an outage `ends` after it `begins`", place="outage.ends")

    @property
    def range(self) -> tuple[datetime, datetime]:
        """Beginning and end, in UTC. Raises InputError."""
        return read_moment(self.begins, "outage.begins"), read_moment(self.ends, "outage.ends")

    def covers(self, begins: datetime, ends: datetime) -> bool:
        """Whether all of that time lies within."""
        return self.range[0] <= begins and ends <= self.range[1]
