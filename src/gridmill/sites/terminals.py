"""When a key was last pressed at this machine."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

_NEVER_SECONDS = 10.0**9


def seconds_since_input(devices: Path = Path("/dev")) -> float:
    """Since the last input at a terminal or input device, by their access times, as `w` tells it."""
    return min((max(0.0, time.time() - at) for at in _inputs(devices)), default=_NEVER_SECONDS)


def _inputs(devices: Path) -> Iterator[float]:
    for pattern in ("tty[0-9]*", "pts/[0-9]*", "input/event*"):
        for path in devices.glob(pattern):
            try:
                yield os.stat(path).st_atime
            except OSError:
                continue
