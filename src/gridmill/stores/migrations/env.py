"""What Alembic runs around each migration: our connection, in our transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
