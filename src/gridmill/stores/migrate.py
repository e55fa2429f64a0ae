"""Run the migrations shipped in `gridmill.stores.migrations`: only for databases that are behind."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

_SHIPPED = Path(__file__).parent / "migrations"


def configuration(migrations: Path = _SHIPPED) -> Config:
    """Alembic's, without any file: it finds the migrations beside this module."""
    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    return config


def upgrade(connection: Connection, migrations: Path = _SHIPPED) -> None:
    """To the newest schema, within the connection's transaction: an interrupted one leaves what was."""
    config = configuration(migrations)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
