"""Runs the migrations in `gridmill.stores.migrations` on databases with an older schema."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, StaticPool, create_engine, event

from gridmill.stores.dialect import Dialect

_SHIPPED = Path(__file__).parent / "migrations"


def configuration(migrations: Path = _SHIPPED) -> Config:
    """The configuration of Alembic, without a file. It finds the migrations beside this module."""
    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    return config


def upgrade(dialect: Dialect, migrations: Path = _SHIPPED) -> None:
    """Migrate to the newest schema, in one transaction: an interrupted migration changes nothing."""
    config = configuration(migrations)
    engine = toolkit(dialect)
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    finally:
        engine.dispose()


def toolkit(dialect: Dialect) -> Engine:
    """The engine of SQLAlchemy over one connection of the store. Each transaction of it is the only one that
    writes."""
    engine = create_engine(f"{dialect.toolkit}://", creator=dialect.open, poolclass=StaticPool)

    def begin(connection: Connection) -> None:
        for statement in dialect.begin:
            connection.exec_driver_sql(statement)

    event.listen(engine, "begin", begin)
    return engine
