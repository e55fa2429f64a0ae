"""The folder for Alembic. Each version of the schema is a migration step from the previous version."""
