"""When somebody was last at this machine: at its terminals, its keyboards and mice, its desktop."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gridmill.sites.inputs import InputDevices
from gridmill.sites.logind import seconds_since_use

_NEVER_SECONDS = 10.0**9


BLIND = (
    "this user may not read all keyboards and mice (who is in the group `input` may): terminals are watched,"
    " and a desktop is in use until it tells systemd-logind that it is idle"
)


class Watch:
    """Looks at all of it. The desktop is asked only where the keyboards may not be read."""

    def __init__(
        self,
        devices: Path = Path("/dev"),
        inputs: InputDevices | None = None,
        desktop: Callable[[float], float] = seconds_since_use,
    ) -> None:
        self._devices = devices
        self._desktop = desktop
        self._inputs = inputs or InputDevices(devices)

    def seconds_since_input(self) -> float:
        """Since the last sign of somebody; very many where there was none."""
        least = min(seconds_since_input(self._devices), self._inputs.seconds_since(time.monotonic()))
        return min(least, self._desktop(time.time())) if self._inputs.blind else least

    @property
    def blind(self) -> bool:
        """Whether the last look could not see the keyboards: see BLIND."""
        return self._inputs.blind

    def close(self) -> None:
        """May be repeated."""
        self._inputs.close()


def seconds_since_input(devices: Path = Path("/dev")) -> float:
    """Since the last input at a terminal, by their access times, as `w` tells it."""
    return min((max(0.0, time.time() - at) for at in _inputs(devices)), default=_NEVER_SECONDS)


def _inputs(devices: Path) -> Iterator[float]:
    for pattern in ("tty[0-9]*", "pts/[0-9]*"):
        for path in devices.glob(pattern):
            try:
                yield os.stat(path).st_atime
            except OSError:
                continue
