"""The tables of a SQL store: records, events, and the numbers used up for ids."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Identity,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    true,
)

VERSIONS = ("0001",)
"""Every schema version this Gridmill can open, oldest first; the migrations lead from each to the last."""

METADATA = MetaData()

_NUMBER = BigInteger().with_variant(Integer(), "sqlite")  # only INTEGER can be SQLite's row id

RECORD = Table(
    "record",
    METADATA,
    Column("position", _NUMBER, Identity(always=True), primary_key=True),  # grows: the order of first puts
    Column("noun", String, nullable=False),  # the class's name
    Column("key", String, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("parent", String, nullable=False),
    Column("live", Boolean, nullable=False),  # false for every JobRun: it is live while its run is
    Column("body", Text, nullable=False),  # the noun as JSON
)
Index("record_key", RECORD.c.noun, RECORD.c.key, unique=True)
Index("record_order", RECORD.c.noun, RECORD.c.position)
Index("record_parent", RECORD.c.noun, RECORD.c.parent, RECORD.c.position)
IS_LIVE = RECORD.c.live == true()
Index(
    "record_live",
    RECORD.c.live,
    RECORD.c.noun,
    RECORD.c.key,
    sqlite_where=IS_LIVE,
)

EVENT = Table(
    "event",
    METADATA,
    # Given by the writer, not by the database: then sequences grow in the order of commits, and a reader
    # that asks for what is `after` the last one it saw misses nothing.
    Column("sequence", _NUMBER, primary_key=True, autoincrement=False),
    Column("time", Float, nullable=False),
    Column("type", String, nullable=False),
    Column("run_id", String, nullable=False),
    Column("job", String, nullable=False),
    Column("attempt_id", String, nullable=False),
    Column("pod_id", String, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("body", Text, nullable=False),  # JSON
)
_BY_POD = EVENT.c.number > 0
Index(
    "event_number",
    EVENT.c.pod_id,
    EVENT.c.number,
    unique=True,
    sqlite_where=_BY_POD,
)


def adapt_to(dialect: str) -> None:
    """Make the partial indices partial in that dialect too. Naming it in the index above would load it."""
    for table in METADATA.tables.values():
        for index in table.indexes:
            where = index.dialect_kwargs.get("sqlite_where")
            if where is not None:
                index.dialect_kwargs[f"{dialect}_where"] = where


Index("event_run", EVENT.c.run_id, EVENT.c.sequence)
Index("event_job", EVENT.c.run_id, EVENT.c.job, EVENT.c.sequence)

COUNTER = Table(
    "counter",
    METADATA,
    Column("name", String, primary_key=True),
    Column("value", BigInteger, nullable=False),
)
