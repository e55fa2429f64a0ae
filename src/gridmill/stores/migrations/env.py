"""The environment of Alembic: each migration uses the connection and the transaction of the store."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
