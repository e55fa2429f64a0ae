"""The SQL function `pixels(bytes, width, height)` of datasets, which converts an image to numbers for
models."""

from io import BytesIO
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image, ImageOps

_ARROW: Any = "arrow"
_NULLS: Any = "special"
"""DuckDB's options for missing values, by the name of the option. The enums of DuckDB for these options are
not public."""
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""The exceptions that Pillow raises for bytes that are not an image, for incomplete images, and for images
that would use too much memory."""


def register(engine: duckdb.DuckDBPyConnection) -> None:
    """Register the SQL function pixels(BLOB, INTEGER, INTEGER) -> FLOAT[]. If the bytes are not an image,
    the SQL function returns a missing value."""
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
    """Resize the image and return the lightness of each pixel, from 0 to 1, row by row. Return None if the
    bytes are not an image.

    Colours are converted to lightness. A photo is rotated as the orientation tag of its camera requires.
    Each pixel of the resized image is the mean of the pixels of the original image that it covers. Raises
    ValueError for an invalid width or height.
    """
    if width < 1 or height < 1:
        raise ValueError(f"pixels(): {width} x {height} is not a valid image size")
    try:
        with Image.open(BytesIO(data)) as image:
            # Pillow would clip the pixels of these modes, which have more than 8 bits, to 255
            deep = image.mode.startswith("I")
            plain = ImageOps.exif_transpose(image).convert("F" if deep else "L").convert("F")
    except _UNREADABLE:
        return None
    small = plain.resize((width, height), Image.Resampling.BOX)
    return np.asarray(small, np.float32).reshape(-1) / np.float32(65535 if deep else 255)
