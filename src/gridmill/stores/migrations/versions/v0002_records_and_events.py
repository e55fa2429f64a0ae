"""Creates the tables of records, events and counters."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_LIVE, _BY_POD = sa.column("live", sa.Boolean) == sa.true(), sa.text("number > 0")


def upgrade() -> None:
    """Make the tables."""
    _make_record()
    _make_event()
    op.create_table(
        "counter",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
        sa.Column("checksum", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "damaged",
        sa.Column("number", _NUMBER, sa.Identity(always=True), primary_key=True),
        sa.Column("noun", sa.String, nullable=False),
        sa.Column("key", sa.String, nullable=False),
        sa.Column("parent", sa.String, nullable=False),
        sa.Column("problem", sa.String, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("told", sa.Boolean, nullable=False),
    )


def _make_record() -> None:
    op.create_table(
        "record",
        sa.Column("position", _NUMBER, sa.Identity(always=True), primary_key=True),
        sa.Column("noun", sa.String, nullable=False),
        sa.Column("key", sa.String, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("parent", sa.String, nullable=False),
        sa.Column("live", sa.Boolean, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("checksum", sa.BigInteger, nullable=False),
    )
    op.create_index("record_key", "record", ["noun", "key"], unique=True)
    op.create_index("record_order", "record", ["noun", "position"])
    op.create_index("record_parent", "record", ["noun", "parent", "position"])
    op.create_index(
        "record_live", "record", ["live", "noun", "key"], sqlite_where=_LIVE, postgresql_where=_LIVE
    )


def _make_event() -> None:
    op.create_table(
        "event",
        sa.Column("sequence", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("type", sa.String, nullable=False),
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("job", sa.String, nullable=False),
        sa.Column("attempt_id", sa.String, nullable=False),
        sa.Column("pod_id", sa.String, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("checksum", sa.BigInteger, nullable=False),
    )
    op.create_index(
        "event_number",
        "event",
        ["pod_id", "number"],
        unique=True,
        sqlite_where=_BY_POD,
        postgresql_where=_BY_POD,
    )
    op.create_index("event_run", "event", ["run_id", "sequence"])
    op.create_index("event_job", "event", ["run_id", "job", "sequence"])
