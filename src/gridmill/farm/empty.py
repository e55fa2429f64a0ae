"""Folders that are left where jobs made files, and nothing is any more."""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path


def remove_empty(root: Path, kept: Collection[str]) -> None:
    """Those below `root`, which stays; not those of `kept` (paths below it), nor what is in them. No link is
    followed. What others put there meanwhile stays."""
    above = tuple(f"{uri}/" for uri in kept)
    for folder, names, _, descriptor in os.fwalk(root, topdown=False):
        below = os.path.relpath(folder, root)
        for name in names:
            uri = name if below == "." else f"{below}/{name}"
            if not f"{uri}/".startswith(above):
                with suppress(OSError):
                    os.rmdir(name, dir_fd=descriptor)
