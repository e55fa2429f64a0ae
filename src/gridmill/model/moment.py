"""A moment as declarations write it."""

from datetime import UTC, datetime

from gridmill.errors import InputError


def read_moment(text: str, place: str = "") -> datetime:
    """A time (ISO 8601; without a zone UTC) in UTC. Raises InputError, naming the place."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        hint = 'Write it as "2013-01-01" or "2013-01-01T06:00".'
        raise InputError(f"{text!r} is no time", hint=hint, place=place) from error
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
