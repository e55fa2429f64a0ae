"""Keeps pandas out of pyarrow: an installed pandas is imported at pyarrow's first conversion (0.5 s)."""

import sys

import pyarrow as pa


class _PandasBlocker:
    """A finder that says there is no pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """See importlib.abc.MetaPathFinder."""
        if name == "pandas":
            raise ModuleNotFoundError("pandas is hidden from pyarrow", name=name)


def keep_pandas_out() -> None:
    """Let pyarrow look for pandas once, while it cannot be found; it does not look again.

    Others in this process may still import pandas. Nothing happens where it is imported already.
    """
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _PandasBlocker)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(_PandasBlocker)
