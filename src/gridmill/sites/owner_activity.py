"""Detects when a machine's owner last used it: at its terminals, its keyboards and mice, its desktop.

Keyboards and mice are seen by events of their input devices. Desktops report to systemd-logind whether their
users are idle, and since when.
"""

import os
import stat
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

_EVENT = struct.Struct("@llHHi")
"""struct input_event of linux/input.h: seconds, microseconds, type, code, value."""
_KEY, _RELATIVE = 1, 2
"""EV_KEY (a key, a button, a touch) and EV_REL (a mouse moves). Events that people do not cause have other
types: the lid (EV_SW), an accelerometer or a stick that drifts (EV_ABS)."""
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
        drained = [self._had_input(path) for path in list(self._open)]
        if any(drained):
            self._last = now
        fresh = [path for path in self._folder.glob("event*") if path not in self._open]
        opened = [self._opened(path) for path in fresh]
        self.blind = not all(opened)
        return _NEVER_SECONDS if self._last is None else max(0.0, now - self._last)

    def close(self) -> None:
        """May be repeated."""
        for path in list(self._open):
            self._close_device(path)

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

    def _had_input(self, path: Path) -> bool:
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
            self._close_device(path)
        return seen

    def _close_device(self, path: Path) -> None:
        with suppress(OSError):
            os.close(self._open.pop(path))


_SHOWN = ("Class", "Type", "State", "IdleHint", "IdleSinceHint")
_GRAPHICAL = ("x11", "wayland", "mir")
_PATIENCE_SECONDS = 2.0


def seconds_since_use(now: float) -> float:
    """Since a graphical session of a user was last in use, at `now` (seconds since 1970); very many where
    there is none, or no logind. One whose desktop never says that it is idle is in use, and so is a machine
    whose logind does not answer in time."""
    wanted = [f"--property={name}" for name in _SHOWN]
    try:
        listed = _loginctl("list-sessions", "--no-legend").splitlines()
        names = [line.split()[0] for line in listed if line.strip()]
        return read_sessions(_loginctl("show-session", *wanted, *names), now) if names else _NEVER_SECONDS
    except subprocess.TimeoutExpired:
        return 0.0


def read_sessions(output: str, now: float) -> float:
    """As seconds_since_use, of what `loginctl show-session` says: NAME=VALUE lines, a blank line between
    sessions."""
    desktops = [one for one in map(_properties, output.split("\n\n")) if _is_desktop(one)]
    return min((_idle_seconds(one, now) for one in desktops), default=_NEVER_SECONDS)


def _properties(block: str) -> Mapping[str, str]:
    words = (line.partition("=") for line in block.splitlines())
    return {name: value for name, equals, value in words if equals}


def _is_desktop(session: Mapping[str, str]) -> bool:
    """Not the screen at which one logs in, nor one that is being left."""
    ours = session.get("Class") == "user" and session.get("Type") in _GRAPHICAL
    return ours and session.get("State") != "closing"


def _idle_seconds(session: Mapping[str, str], now: float) -> float:
    since = session.get("IdleSinceHint", "")
    if session.get("IdleHint") != "yes" or not since.isdigit():
        return 0.0
    return max(0.0, now - int(since) / 1e6)


def _loginctl(*words: str) -> str:
    """What it says; nothing where there is no logind. Raises TimeoutExpired."""
    try:
        done = subprocess.run(
            ["loginctl", "--no-pager", *words],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


BLIND = (
    "this user may not read all keyboards and mice (who is in the group `input` may): terminals are watched,"
    " and a desktop is in use until it tells systemd-logind that it is idle"
)


class IdleWatch:
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
    def cannot_watch(self) -> bool:
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
