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
    """A descriptor for reading without waiting. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


class InputDevices:
    """The keyboards and mice below `devices`/input, kept open.

    Each process that opens a device gets all its events, so other readers miss none. (The access times of
    these devices do not show use: reading does not change them.)
    """

    def __init__(self, devices: Path = Path("/dev"), opening: Callable[[Path], int] = open_device) -> None:
        self._opening = opening
        self._folder = devices / "input"
        self._open: dict[Path, int] = {}
        self._last: float | None = None
        self.blind = False
        """Some devices cannot be read by this user; one of them may be a keyboard."""

    def seconds_since(self, now: float) -> float:
        """Seconds since the last event, on the clock of `now`; a very large number if there was none. Devices
        that were plugged in later are watched from this call on."""
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
        """Whether the device may be read; True also for a file that is not a device."""
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
        """Whether there was an event. A device that was removed is dropped."""
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
"""Seconds. The kernel (tty_update_time in drivers/tty/tty_io.c) changes a terminal's access time only if more
than its three lowest bits differ: further keys within such a window of 8 s leave no trace."""


class Terminals:
    """The terminals below `devices`.

    A time that changed is a sign, unless the clock was set. A program that reads typed text changes the
    access time of its terminal. If no program reads it, only the time of the last write to ptmx changes,
    through which all terminal windows and logins type.
    """

    def __init__(self, devices: Path = Path("/dev")) -> None:
        self._devices = devices
        self._times: dict[Path, tuple[float, float]] = {}
        self._last = -NEVER_SECONDS
        self.where = ""
        """The terminal with the last sign."""

    def seconds_since(self, now: float, wall: float, is_grid: Callable[[int], bool]) -> float:
        """Seconds since the last input, on the clock of `now`; `wall` is in seconds since 1970.

        While a window with input is open, there may be more input. `is_grid` returns for a device number
        whether it is a terminal of the grid's own jobs.
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
    """Commands over SSH without a terminal, detected by their start.

    Short commands do not count, because monitoring programs use them. Later activity of a command is visible
    only in its CPU time.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], float] = {}

    def seconds_since(self, now: float, uptime: float, sessions: Mapping[int, int]) -> float:
        """Seconds since a command was last seen to last, on the clock of `now`; see
        process_table.ssh_sessions. `uptime` is the present time after boot, which is the clock of process
        starts."""
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
    """Combines all signs.

    If keyboards cannot be read, a desktop counts as used until it reports that it is idle. Otherwise only its
    report that it is no longer idle counts.
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
        """The kind of the last sign."""

    def seconds_since_input(self) -> float:
        """Seconds since the last sign of a person; a very large number if there was none."""
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
        """The same by a second look at the processes: a job that began after the first look may have used the
        terminal before its times were read."""
        table = self._processes()
        return is_grid_terminal(device, table, grid_processes(table, rays=False))

    def _seconds_since_desktop(self, now: float) -> float:
        desktops = self._desktops
        return desktops.seconds_since_use(now) if self._inputs.blind else desktops.seconds_since_arrival(now)

    @property
    def cannot_watch(self) -> bool:
        """Whether the last look could not read the keyboards, see BLIND."""
        return self._inputs.blind

    def close(self) -> None:
        """Closes the devices. May be repeated."""
        self._inputs.close()
