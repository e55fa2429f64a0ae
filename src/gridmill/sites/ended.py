"""Folders of pods that have ended, on machines where no control node keeps house."""

import shutil
from contextlib import suppress
from pathlib import Path

KEPT_SECONDS = 86400.0
"""Somebody may want to see why a pod ended by itself, or died; and what it said last is read from there."""


def clear(folder: Path) -> None:
    """Remove the folder of a pod, if it has ended: out of sight first, for others look at what lies in it."""
    if not (folder / "ended").exists():
        return
    gone = folder.with_name(f".gone-{folder.name}")
    with suppress(OSError):  # somebody else removes it
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def clear_old(pods: Path, now: float) -> None:
    """Remove those among these folders whose pods ended over a day before `now` (Unix time)."""
    for mark in tuple(pods.glob("*/ended")):
        with suppress(OSError):
            if now - mark.stat().st_mtime > KEPT_SECONDS:
                clear(mark.parent)
