"""Runs the migrations in `gridmill.stores.migrations` on databases with an older schema."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, StaticPool, create_engine, event

from gridmill.stores.dialect import Dialect

_SHIPPED = Path(__file__).parent / "migrations"


def configuration(migrations: Path = _SHIPPED) -> Config:
    """Returns the configuration of Alembic, which needs no file. The configuration refers to the migrations
    beside this module."""
    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    return config


def upgrade(dialect: Dialect, migrations: Path = _SHIPPED) -> None:
    """Migrates the database to the newest schema in one transaction, so that an interrupted migration
    changes nothing."""
    config = configuration(migrations)
    engine = toolkit(dialect)
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    finally:
        engine.dispose()


def toolkit(dialect: Dialect) -> Engine:
    """Returns an engine of SQLAlchemy that uses one connection of the store. While a transaction of this
    engine is open, no other transaction writes."""
    engine = create_engine(f"{dialect.toolkit}://", creator=dialect.open, poolclass=StaticPool)

    def begin(connection: Connection) -> None:
        for statement in dialect.begin:
            connection.exec_driver_sql(statement)

    event.listen(engine, "begin", begin)
    return engine
