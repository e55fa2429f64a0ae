"""Whether somebody types or moves a mouse at this machine: by events of its input devices."""

import os
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_EVENT = struct.Struct("@llHHi")
"""struct input_event of linux/input.h: seconds, microseconds, type, code, value."""
_KEY, _RELATIVE = 1, 2
"""EV_KEY (a key, a button, a touch) and EV_REL (a mouse moves). What people do not do is of other types: the
lid (EV_SW), an accelerometer or a stick that drifts (EV_ABS)."""
_MANY = 1024
_NEVER_SECONDS = 10.0**9


def open_device(path: Path) -> int:
    """A descriptor that is read without waiting. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


class InputDevices:
    """The keyboards and mice below `devices`/input, kept open. Each that opens one has the events for itself:
    nobody else misses any. (The access times of these devices tell nothing: reading does not change them.)"""

    def __init__(self, devices: Path = Path("/dev"), opening: Callable[[Path], int] = open_device) -> None:
        self._opening = opening
        self._folder = devices / "input"
        self._open: dict[Path, int] = {}
        self._last: float | None = None
        self.blind = False
        """There are devices that this user may not read: a keyboard may be one of them."""

    def seconds_since(self, now: float) -> float:
        """Since the last event that was seen, on the clock of `now`; very many where there was none. Devices
        that were plugged in are seen from here on."""
        drained = [self._drained(path) for path in list(self._open)]
        if any(drained):
            self._last = now
        fresh = [path for path in self._folder.glob("event*") if path not in self._open]
        opened = [self._opened(path) for path in fresh]
        self.blind = not all(opened)
        return _NEVER_SECONDS if self._last is None else max(0.0, now - self._last)

    def close(self) -> None:
        """May be repeated."""
        for path in list(self._open):
            self._forget(path)

    def _opened(self, path: Path) -> bool:
        """Whether it may be read; True also for what is no device."""
        try:
            descriptor = self._opening(path)
        except PermissionError:
            return False
        except OSError:
            return True
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
        else:
            self._open[path] = descriptor
        return True

    def _drained(self, path: Path) -> bool:
        """Whether there was a sign of somebody. A device that is gone is forgotten."""
        seen = False
        try:
            while data := os.read(self._open[path], _MANY * _EVENT.size):
                whole = len(data) - len(data) % _EVENT.size
                kinds = {event[2] for event in _EVENT.iter_unpack(data[:whole])}
                seen = seen or bool(kinds & {_KEY, _RELATIVE})
        except BlockingIOError:
            pass
        except OSError:
            self._forget(path)
        return seen

    def _forget(self, path: Path) -> None:
        with suppress(OSError):
            os.close(self._open.pop(path))
