"""Alembic's folder: each schema version is a step from the one before."""
