"""Rows of SQL databases, by SQLAlchemy: what is beyond the last load's position, staged as Parquet."""
