"""Fixtures that several folders of tests share."""

from collections.abc import Iterator

import pytest

from tests.postgresql import HOW_TO_GET_IT, PostgresqlServer, postgresql_server


@pytest.fixture(scope="session")
def _postgresql() -> Iterator[PostgresqlServer | None]:
    with postgresql_server() as server:
        yield server


@pytest.fixture
def postgresql(_postgresql: PostgresqlServer | None) -> PostgresqlServer:
    """A private PostgreSQL server, one for all tests of this process; skips where there is none."""
    if _postgresql is None:
        pytest.skip(HOW_TO_GET_IT)
    return _postgresql


@pytest.fixture
def postgresql_url(postgresql: PostgresqlServer) -> str:
    """The URL of a new, empty database of it, with the password."""
    return postgresql.url(postgresql.create_database())
