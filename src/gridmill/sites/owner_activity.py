"""Detects when a machine's owner last used it: at terminals, keyboards and mice, over SSH, at a desktop.

Keyboards and mice are seen by events of their input devices, terminals by their access times, commands over
SSH by their processes. Desktops report to systemd-logind: see `desktop_sessions`.
"""

import os
import stat
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gridmill.sites.desktop_sessions import NEVER_SECONDS, DesktopSessions
from gridmill.sites.process_table import Table, grid_processes, is_grid_terminal, read_table, ssh_sessions

_EVENT = struct.Struct("@llHHi")
"""struct input_event of linux/input.h: seconds, microseconds, type, code, value."""
_KEY, _RELATIVE = 1, 2
"""EV_KEY (a key, a button, a touch) and EV_REL (a mouse moves). Events that people do not cause have other
types: the lid (EV_SW), an accelerometer or a stick that drifts (EV_ABS)."""
_MANY = 1024


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
        return NEVER_SECONDS if self._last is None else max(0.0, now - self._last)

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


_MASTERS = ("ptmx", "pts/ptmx")
_WINDOW = 8
"""Seconds. The kernel (tty_update_time in drivers/tty/tty_io.c) writes a terminal's access time only where it
differs from the last one in more than its three lowest bits: within such a window of 8 s further keys leave
no trace."""


class Terminals:
    """The terminals below `devices`. A sign is a time that changed: what a clock that was set makes of an old
    one is none.

    A program that reads what was typed changes the access time of its terminal. What no program reads changes
    only the time at which something was written to ptmx, through which all terminal windows and logins type.
    """

    def __init__(self, devices: Path = Path("/dev")) -> None:
        self._devices = devices
        self._times: dict[Path, tuple[float, float]] = {}
        self._last = -NEVER_SECONDS
        self.where = ""
        """The terminal of the last sign."""

    def seconds_since(self, now: float, wall: float, is_grid: Callable[[int], bool]) -> float:
        """Since the last input, on the clock of `now`; `wall` is in seconds since 1970. As long as a window
        is open in which there was input, there may be more. `is_grid` says of a device number whether it is a
        terminal of the grid's own jobs."""
        found = dict(self._access_times())
        for path, (at, device) in found.items():
            known = self._times.get(path)
            if known is not None and known[0] == at:
                until = known[1]
            elif is_grid(device):
                until = -NEVER_SECONDS
            else:
                until = now + min(_WINDOW, (int(at) | (_WINDOW - 1)) + 1 - wall)
            self._times[path] = (at, until)
            if until > self._last:
                self._last, self.where = until, str(path.relative_to(self._devices))
        self._times = {path: self._times[path] for path in found}
        return max(0.0, now - self._last)

    def _access_times(self) -> Iterator[tuple[Path, tuple[float, int]]]:
        for path in (self._devices / name for name in _MASTERS):
            with suppress(OSError):
                status = os.stat(path)
                yield path, (status.st_mtime, status.st_rdev)
        for pattern in ("tty[0-9]*", "pts/[0-9]*"):
            for path in self._devices.glob(pattern):
                with suppress(OSError):
                    status = os.stat(path)
                    yield path, (status.st_atime, status.st_rdev)


class SshSessions:
    """Commands that somebody runs over SSH without a terminal, by their start. Short ones are none: programs
    that watch over machines ask so. What they do afterwards is seen by its CPU time only."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], float] = {}

    def seconds_since(self, now: float, uptime: float, sessions: Mapping[int, int]) -> float:
        """Since the last of them was seen to last, on the clock of `now`; see process_table.ssh_sessions. The
        start of a process is told as time after boot: `uptime` is now."""
        ticks = os.sysconf("SC_CLK_TCK")
        lasting = {
            key: now - (age - _SESSION_SECONDS)
            for key in sessions.items()
            if (age := uptime - key[1] / ticks) >= _SESSION_SECONDS
        }
        self._known = {key: self._known.get(key, at) for key, at in lasting.items()}
        return min((max(0.0, now - at) for at in self._known.values()), default=NEVER_SECONDS)


_SESSION_SECONDS = 1.0

BLIND = (
    "this user may not read all keyboards and mice (members of the group `input` may). Therefore only "
    "terminals are "
    "watched, and a desktop counts as used until systemd-logind reports it as idle"
)


class IdleWatch:
    """Looks at all of it. Where the keyboards may not be read a desktop is in use until it says that it is
    idle; elsewhere it counts only that it says that it no longer is."""

    def __init__(
        self,
        devices: Path = Path("/dev"),
        inputs: InputDevices | None = None,
        desktops: DesktopSessions | None = None,
        processes: Callable[[], Table] = read_table,
    ) -> None:
        self._processes = processes
        self._inputs = inputs or InputDevices(devices)
        self._terminals = Terminals(devices)
        self._sessions = SshSessions()
        self._desktops = desktops or DesktopSessions()
        self.sign = ""
        """What the last sign was."""

    def seconds_since_input(self) -> float:
        """Since the last sign of somebody; very many where there was none."""
        now, wall = time.monotonic(), time.time()
        self._desktops.look(now, wall)
        table = self._processes()
        grid = grid_processes(table, rays=False)
        signs = {
            "the keyboard or mouse is in use": self._inputs.seconds_since(now),
            "input at a terminal": self._terminals.seconds_since(
                now, wall, lambda device: is_grid_terminal(device, table, grid)
            ),
            "somebody works over SSH": self._sessions.seconds_since(
                now, time.clock_gettime(time.CLOCK_BOOTTIME), ssh_sessions(table, grid)
            ),
            "a user's session is in use": self._seconds_since_desktop(now),
        }
        seconds, what = min((since, sign) for sign, since in signs.items())
        where = f" ({self._terminals.where})" if what == "input at a terminal" else ""
        self.sign = f"{what}{where}" if seconds < NEVER_SECONDS else ""
        return seconds

    def _seconds_since_desktop(self, now: float) -> float:
        desktops = self._desktops
        return desktops.seconds_since_use(now) if self._inputs.blind else desktops.seconds_since_arrival(now)

    @property
    def cannot_watch(self) -> bool:
        """Whether the last look could not see the keyboards: see BLIND."""
        return self._inputs.blind

    def close(self) -> None:
        """May be repeated."""
        self._inputs.close()
