"""The folder of Alembic: each schema version is a step from the previous one."""
