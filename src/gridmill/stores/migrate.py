"""Run the migrations shipped in `gridmill.stores.migrations`: only for databases that are behind."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def configuration() -> Config:
    """Alembic's, without any file: it finds the migrations beside this module."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


def upgrade(connection: Connection) -> None:
    """To the newest schema, within the connection's transaction."""
    config = configuration()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
