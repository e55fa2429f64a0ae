"""A moment as declarations write it."""

from datetime import UTC, datetime, tzinfo

from gridmill.errors import InputError
from gridmill.model.calendar import moment_of


def read_moment(text: str, place: str = "", zone: tzinfo = UTC) -> datetime:
    """A time (ISO 8601; without an offset in `zone`) in UTC. Raises InputError, naming the place."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        hint = 'Write it as "2013-01-01" or "2013-01-01T06:00".'
        raise InputError(f"{text!r} is no time", hint=hint, place=place) from error
    if moment.tzinfo is not None:
        return moment.astimezone(UTC)
    if zone is UTC:
        return moment.replace(tzinfo=UTC)
    return datetime.fromtimestamp(moment_of(moment, zone), UTC)
