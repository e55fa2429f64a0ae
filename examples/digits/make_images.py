"""Writes scikit-learn's 1,797 handwritten digits as files: `make_images.py [FOLDER [BLOCKS [SECONDS]]]`.

An image goes to FOLDER/<its digit>/<number>.pgm. They come in BLOCKS, with SECONDS from one to the next.
"""

import sys
import time
from pathlib import Path

from sklearn.datasets import load_digits

HERE = Path(__file__).parent


def main(folder: Path, blocks: int, pause_seconds: float) -> None:
    """All of them, one block after the other."""
    digits = load_digits()
    size = -(-len(digits.target) // blocks)
    for number, (image, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
        if number and number % size == 0:
            time.sleep(pause_seconds)
        write(folder / str(digit) / f"{number:04}.pgm", image.astype("uint8").tobytes())
    print(f"{len(digits.target):,} images in {blocks} blocks")


def write(path: Path, pixels: bytes) -> None:
    """A PGM file of 8 x 8 pixels from 0 to 16; it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_bytes(b"P5\n8 8\n16\n" + pixels)
    draft.rename(path)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(
        Path(given[0]) if given else HERE / "arriving",
        int(given[1]) if len(given) > 1 else 1,
        float(given[2]) if len(given) > 2 else 0.0,
    )
