"""Detects when the owner of a machine last used it: at a terminal, with a keyboard or a mouse, over SSH, or
at a desktop.

The use of keyboards and mice is detected by the events of their input devices, the use of terminals by their
access times, and commands over SSH by their processes. Desktops report their use to systemd-logind: see
`desktop_sessions`.
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
"""The structure input_event of linux/input.h: seconds, microseconds, type, code, value."""
_KEY, _RELATIVE = 1, 2
"""The event types EV_KEY (a key, a button or a touch) and EV_REL (the movement of a mouse). Events that
people do not cause have other types: for example the lid (EV_SW), or an accelerometer or a joystick that
drifts (EV_ABS)."""
_MANY = 1024


def open_device(path: Path) -> int:
    """Returns a file descriptor for reading the device without waiting. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


class InputDevices:
    """Reads events of the keyboards and mice below `devices`/input, which this class leaves open.

    Each process that opens a device gets all events of the device, so other programs that read the device
    miss no event. (The access times of input devices do not show whether a person uses them, because reading
    does not change these times.)
    """

    def __init__(self, devices: Path = Path("/dev"), opening: Callable[[Path], int] = open_device) -> None:
        self._opening = opening
        self._folder = devices / "input"
        self._open: dict[Path, int] = {}
        self._last: float | None = None
        self.blind = False
        """True if this user cannot read some input devices. Any of these devices may be a keyboard."""

    def seconds_since(self, now: float) -> float:
        """Returns the seconds since the last event of any input device, on the clock of `now`, or a very
        large number if there was no event. If a device was plugged in after the previous call, this call
        opens the device, and later calls detect its events."""
        drained = [self._had_input(path) for path in list(self._open)]
        if any(drained):
            self._last = now
        fresh = [path for path in self._folder.glob("event*") if path not in self._open]
        opened = [self._opened(path) for path in fresh]
        self.blind = not all(opened)
        return NEVER_SECONDS if self._last is None else max(0.0, now - self._last)

    def close(self) -> None:
        """Closes the devices. May be repeated."""
        for path in list(self._open):
            self._close_device(path)

    def _opened(self, path: Path) -> bool:
        """Returns whether the device may be read. Returns True also for a file that is not a device."""
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
        """Returns whether the device reported an event since the previous call. A device that was removed
        from the machine is no longer observed."""
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
"""The length of a window in seconds. The kernel (tty_update_time in drivers/tty/tty_io.c) changes the access
time of a terminal only if more than its three lowest bits differ. Therefore further keys within the same
window of 8 s cannot be detected."""


class Terminals:
    """Observes the access times of the terminals below `devices`. If an access time has changed, somebody
    has typed, unless the clock was set. A program that reads typed text changes the access time of its
    terminal. If no program reads the typed text, only the time of the last write to the device ptmx changes.
    All terminal windows and logins type through the device ptmx.
    """

    def __init__(self, devices: Path = Path("/dev")) -> None:
        self._devices = devices
        self._times: dict[Path, tuple[float, float]] = {}
        self._last = -NEVER_SECONDS
        self.where = ""
        """The terminal with the latest input."""

    def seconds_since(self, now: float, wall: float, is_grid: Callable[[int], bool]) -> float:
        """Returns the seconds since the last input at a terminal, on the clock of `now`. `wall` is the wall
        clock time in seconds since 1970.

        After an input was detected, further input within the same window of time cannot be detected.
        `is_grid` takes the device number of a terminal and returns whether the terminal belongs to jobs of
        the grid.
        """
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
    """Detects commands over SSH that have no terminal, by the start of their processes.

    Short commands do not count as use of the machine, because monitoring programs run short commands. The
    later activity of such a command is visible only in its CPU time.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], float] = {}

    def seconds_since(self, now: float, uptime: float, sessions: Mapping[int, int]) -> float:
        """Returns the seconds since a command over SSH first ran long enough to count, on the clock of
        `now`; see process_table.ssh_sessions. `uptime` is the present time in seconds after boot, because
        process starts are measured on this clock."""
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
    """Combines all signs that a person uses the machine.

    If keyboards cannot be read, a desktop counts as used until it reports that it is idle. If keyboards can
    be read, a desktop counts as used only at the moment when it reports that it is no longer idle.
    """

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
        """The kind of the last sign that a person used the machine."""

    def seconds_since_input(self) -> float:
        """Returns the seconds since the last sign that a person uses the machine, or a very large number if
        there was no sign."""
        now, wall = time.monotonic(), time.time()
        self._desktops.look(now, wall)
        table = self._processes()
        grid = grid_processes(table, rays=False)
        signs = {
            "the keyboard or mouse is in use": self._inputs.seconds_since(now),
            "input at a terminal": self._terminals.seconds_since(
                now, wall, lambda device: is_grid_terminal(device, table, grid) or self._is_grid_now(device)
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

    def _is_grid_now(self, device: int) -> bool:
        """Returns whether the terminal belongs to jobs of the grid, by reading the processes again. A job
        that began after the first reading may have used the terminal before the access times were read."""
        table = self._processes()
        return is_grid_terminal(device, table, grid_processes(table, rays=False))

    def _seconds_since_desktop(self, now: float) -> float:
        desktops = self._desktops
        return desktops.seconds_since_use(now) if self._inputs.blind else desktops.seconds_since_arrival(now)

    @property
    def cannot_watch(self) -> bool:
        """Returns whether the keyboards could not be read at the last check; see BLIND."""
        return self._inputs.blind

    def close(self) -> None:
        """Closes the devices. May be repeated."""
        self._inputs.close()
