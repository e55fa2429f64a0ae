"""The folder for Alembic. For each version of the schema, there is one migration step from the previous
version."""
