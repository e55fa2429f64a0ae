"""What a dataset's `sql` may call beside DuckDB's own functions; their libraries are loaded when it does."""

import re
from collections.abc import Callable
from importlib import import_module

import duckdb

FUNCTIONS = {"pixels": "gridmill.jobs.dataset.images"}
"""The module of each; its `register` makes the function known to a connection."""


def register_functions(engine: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Those that the text calls. Raises ModuleNotFoundError where a library is not installed."""
    for name, module in FUNCTIONS.items():
        if re.search(rf"\b{name}\s*\(", sql, re.IGNORECASE):
            register: Callable[[duckdb.DuckDBPyConnection], None] = import_module(module).register
            register(engine)
