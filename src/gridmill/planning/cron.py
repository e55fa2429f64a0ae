"""Due times of a cron expression in a time zone. Loaded only where there is one."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from gridmill.errors import InputError


def check_cron(expression: str, zone: str) -> None:
    """Raise InputError for an expression or a time zone that is none."""
    _zone(zone)
    try:
        if len(expression.split()) != 5:
            raise CronSimError("Wrong number of fields")
        next(CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration) as error:
        raise InputError(
            f"{expression!r} is no cron expression: {str(error).lower() or 'it never comes'}",
            hint='Five fields: minute, hour, day, month, weekday; for example "0 6 * * *".',
            place="schedule.cron",
        ) from error


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:  # unknown; a folder of the database; not a name at all
        raise InputError(
            f"there is no time zone {name!r}",
            hint="Names are those of the tz database, for example UTC or Europe/Amsterdam.",
            place="schedule.zone",
        ) from error


def next_after(expression: str, zone: str, time: float) -> float:
    """The first due time after `time`; both in Unix seconds."""
    return next(CronSim(expression, datetime.fromtimestamp(time, _zone(zone)))).timestamp()


def latest_until(expression: str, zone: str, time: float) -> float:
    """The last due time not after `time`."""
    # going back starts a minute before: what is due in this very minute is found by going forward again
    here = datetime.fromtimestamp(time, _zone(zone))
    latest = next(CronSim(expression, here, reverse=True)).timestamp()
    following = next_after(expression, zone, latest)
    while following <= time:
        latest, following = following, next_after(expression, zone, following)
    return latest
