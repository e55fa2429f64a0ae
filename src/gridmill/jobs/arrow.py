"""Prevents pyarrow from importing pandas. If pandas is installed, the first conversion of pyarrow imports
pandas, which takes 0.5 s."""

import sys

import pyarrow as pa


class _PandasBlocker:
    """An import finder that reports the module pandas as missing."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """See importlib.abc.MetaPathFinder."""
        if name == "pandas":
            raise ModuleNotFoundError("pandas is hidden from pyarrow", name=name)


def keep_pandas_out() -> None:
    """Make pyarrow check for pandas while pandas cannot be imported. pyarrow checks only once.

    Other code in this process can import pandas later. If pandas is already imported, this function does
    nothing.
    """
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _PandasBlocker)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(_PandasBlocker)
