"""Gridmill pools scattered compute into one grid and takes pipelines from raw data to predictions."""

__version__ = "0.1.0"
