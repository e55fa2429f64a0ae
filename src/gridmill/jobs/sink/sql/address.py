"""Where a database is: a URL with what the environment fills in, and the same without secrets."""

import os
from dataclasses import dataclass

import sqlalchemy as sa

from gridmill.errors import InputError
from gridmill.settings import fill_in_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """`url` is for SQLAlchemy alone; `shown` is for messages: host and database, no user, no password."""

    url: sa.URL
    shown: str


def address_of(written: str, folder: str) -> Address:
    """The address of a URL as declared; SQLite files that are relative start at `folder`.

    Raises InputError for a variable that is not set, a URL that cannot be read, an SQLite file not there.
    """
    try:
        url = sa.make_url(fill_in_environment(written, "source.sql.url", in_url=True))
    except (sa.exc.ArgumentError, ValueError) as error:
        raise InputError("this is no database URL", place="source.sql.url") from error
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() != "sqlite":
        return Address(url=url, shown=f"{url.get_backend_name()}://{url.host or ''}/{url.database or ''}")
    path = os.path.normpath(os.path.join(os.path.abspath(folder), url.database or ""))
    if not os.path.isfile(path):
        raise InputError(f"the SQLite file {path} does not exist", place="source.sql.url")
    return Address(url=url.set(database=path), shown=f"sqlite:///{url.database}")
