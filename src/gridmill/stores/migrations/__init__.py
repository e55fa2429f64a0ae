"""Alembic's folder: each schema version as a step from the one before."""
