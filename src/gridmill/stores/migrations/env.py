"""The environment of Alembic. Each migration uses the connection and the transaction of the record store."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
