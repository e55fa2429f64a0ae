"""A file in a further folder: a link where the file system has them, else a copy."""

import os
import shutil
from pathlib import Path


def link_file(path: Path, folder: Path, name: str = "") -> Path:
    """The file in `folder` too, under its name or another; one that is there already is replaced. Returns
    its path there. Raises OSError."""
    target = folder / (name or path.name)
    target.unlink(missing_ok=True)
    try:
        os.link(path, target)
    except OSError:
        shutil.copy2(path, target)
    return target
