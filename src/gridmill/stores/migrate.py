"""Runs the migrations shipped in `gridmill.stores.migrations`, only on databases that are behind."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, StaticPool, create_engine, event

from gridmill.stores.dialect import Dialect

_SHIPPED = Path(__file__).parent / "migrations"


def configuration(migrations: Path = _SHIPPED) -> Config:
    """Alembic's, without any file: it finds the migrations beside this module."""
    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    return config


def upgrade(dialect: Dialect, migrations: Path = _SHIPPED) -> None:
    """To the newest schema, in one transaction: an interrupted one leaves what was."""
    config = configuration(migrations)
    engine = toolkit(dialect)
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    finally:
        engine.dispose()


def toolkit(dialect: Dialect) -> Engine:
    """SQLAlchemy's, over one connection of ours, each transaction of which is the only one that writes."""
    engine = create_engine(f"{dialect.toolkit}://", creator=dialect.open, poolclass=StaticPool)

    def begin(connection: Connection) -> None:
        for statement in dialect.begin:
            connection.exec_driver_sql(statement)

    event.listen(engine, "begin", begin)
    return engine
