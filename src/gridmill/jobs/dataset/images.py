"""The SQL function `pixels(bytes, width, height)` of datasets: an image as numbers that models learn from."""

from io import BytesIO
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image, ImageOps

_ARROW: Any = "arrow"
_NULLS: Any = "special"
"""Modes of a function, by name: DuckDB's enums for them are not public."""
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""Exceptions of Pillow for bytes that are no image, end early, or would fill the memory."""


def register(engine: duckdb.DuckDBPyConnection) -> None:
    """Make the function known: pixels(BLOB, INTEGER, INTEGER) -> FLOAT[]; missing for what is no image."""
    engine.create_function(
        "pixels",
        _pixels,
        ["BLOB", "INTEGER", "INTEGER"],
        "FLOAT[]",
        type=_ARROW,
        null_handling=_NULLS,
    )


def _pixels(files: pa.ChunkedArray, widths: pa.ChunkedArray, heights: pa.ChunkedArray) -> pa.Array:
    rows = zip(files.to_pylist(), widths.to_pylist(), heights.to_pylist(), strict=True)
    pixels = [None if None in row else grey(*row) for row in rows]
    return pa.array(pixels, pa.list_(pa.float32()))


def grey(data: bytes, width: int, height: int) -> npt.NDArray[np.float32] | None:
    """How light each pixel is, 0 to 1, row by row, of the image brought to that size; None for no image.

    Colours become their lightness, a photo is turned as its camera says; each pixel is the mean of those it
    stands for. Raises ValueError for a size that is none.
    """
    if width < 1 or height < 1:
        raise ValueError(f"pixels(): {width} x {height} is no size of an image")
    try:
        with Image.open(BytesIO(data)) as image:
            deep = image.mode.startswith("I")  # 16 bits
            plain = ImageOps.exif_transpose(image).convert("F" if deep else "L").convert("F")
    except _UNREADABLE:
        return None
    small = plain.resize((width, height), Image.Resampling.BOX)
    return np.asarray(small, np.float32).reshape(-1) / np.float32(65535 if deep else 255)
