"""The tables of a SQL store: records, events, and the numbers used up for ids."""

VERSIONS = ("0001",)
"""Every schema version this Gridmill can open, oldest first; the migrations lead from each to the last."""

STAMP = "alembic_version"  # the table, as Alembic makes it, that says which

TABLES = (
    # position grows: the order of first puts; noun: the class's name; live: false for every JobRun, which is
    # live while its run is; body: the noun as JSON
    """
    CREATE TABLE record (
        position {counted},
        noun VARCHAR NOT NULL,
        key VARCHAR NOT NULL,
        version BIGINT NOT NULL,
        parent VARCHAR NOT NULL,
        live BOOLEAN NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (position)
    )
    """,
    "CREATE UNIQUE INDEX record_key ON record (noun, key)",
    "CREATE INDEX record_order ON record (noun, position)",
    "CREATE INDEX record_parent ON record (noun, parent, position)",
    "CREATE INDEX record_live ON record (live, noun, key) WHERE live = TRUE",
    # The sequence is given by the writer, not by the database: then sequences grow in the order of commits,
    # and a reader that asks for what is `after` the last one it saw misses nothing.
    """
    CREATE TABLE event (
        sequence {number},
        time FLOAT NOT NULL,
        type VARCHAR NOT NULL,
        run_id VARCHAR NOT NULL,
        job VARCHAR NOT NULL,
        attempt_id VARCHAR NOT NULL,
        pod_id VARCHAR NOT NULL,
        number BIGINT NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (sequence)
    )
    """,
    "CREATE UNIQUE INDEX event_number ON event (pod_id, number) WHERE number > 0",
    "CREATE INDEX event_run ON event (run_id, sequence)",
    "CREATE INDEX event_job ON event (run_id, job, sequence)",
    """
    CREATE TABLE counter (
        name VARCHAR NOT NULL,
        value BIGINT NOT NULL,
        PRIMARY KEY (name)
    )
    """,
    f"""
    CREATE TABLE {STAMP} (
        version_num VARCHAR(32) NOT NULL,
        CONSTRAINT {STAMP}_pkc PRIMARY KEY (version_num)
    )
    """,
)
"""The statements that make an empty database a store; {counted} and {number} are types (see Dialect)."""
