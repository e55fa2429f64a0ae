"""Alembic's environment: each migration runs on our connection, in our transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
