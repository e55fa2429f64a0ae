"""This module has the URIs of a storage root: each URI names a folder or a file below the root, but never
the root itself."""

from functools import lru_cache
from pathlib import Path

from gridmill.errors import UnsafePathError


@lru_cache(maxsize=1024)
def below(root: str | Path, uri: str) -> Path:
    """Return the path of `uri` below the folder `root`. The function does not read the disk, and does not
    follow links.

    Raises UnsafePathError if a URI is empty, is absolute, or contains `..` or NUL, because such a URI does
    not name a file below the root. Gridmill uses only this function to join a URI of a version, an attempt
    or a checkpoint with a root.
    """
    return Path(path_below(str(root), uri))


def path_below(root: str, uri: str) -> str:
    """Return the path of a URI as `below` does, but as text, for a path that is used only once. Making a
    Path object would take several times as long."""
    parts = uri.split("/")
    if uri.startswith("/") or ".." in parts or "\0" in uri:
        raise UnsafePathError(f"{uri!r} is outside the storage root {root}")
    if not any(part not in ("", ".") for part in parts):
        raise UnsafePathError(
            f"an empty URI does not name a folder below the storage root {root}",
            hint="This version has no files.",
        )
    return f"{root}/{uri}"
