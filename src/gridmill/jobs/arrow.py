"""Keeps pyarrow from importing pandas: if pandas is installed, pyarrow's first conversion imports it (0.5
s)."""

import sys

import pyarrow as pa


class _PandasBlocker:
    """An import finder that reports pandas as missing."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """See importlib.abc.MetaPathFinder."""
        if name == "pandas":
            raise ModuleNotFoundError("pandas is hidden from pyarrow", name=name)


def keep_pandas_out() -> None:
    """Make pyarrow look for pandas once while pandas cannot be found. pyarrow does not look a second time.

    Other code in this process can still import pandas. If pandas is already imported, this function does
    nothing.
    """
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _PandasBlocker)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(_PandasBlocker)
