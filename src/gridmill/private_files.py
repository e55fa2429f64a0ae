"""Writes files that only this user can read, such as keys and tokens. This module also deletes folders of
other users."""

import os
import shutil
import subprocess
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Writes a file completely or not at all. Only this user can read the file. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)


def remove_tree(folder: Path) -> None:
    """Deletes a folder of any depth, as far as possible. Links are not followed. The call can be
    repeated."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # the tree is too deep for Python's recursion or for a path, but not for rm
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False, stderr=subprocess.DEVNULL)
