"""What Alembic runs around each migration: our connection, in our transaction."""

from alembic import context

from gridmill.stores.schema import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
context.run_migrations()
