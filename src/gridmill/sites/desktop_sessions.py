"""Asks systemd-logind, with the program `loginctl`, when the desktop sessions of a machine's users were last
used.

Desktops report to logind whether their users are idle, and since which time they are idle. The properties
are those of org.freedesktop.login1.Session:
https://www.freedesktop.org/software/systemd/man/org.freedesktop.login1.html
"""

import subprocess
from collections.abc import Iterator, Mapping

_SHOWN = ("Class", "Type", "State", "IdleHint", "IdleSinceHint", "TimestampMonotonic")
_GRAPHICAL = ("x11", "wayland", "mir")
_PATIENCE_SECONDS = 1.0
_SILENT_LOOKS = 3
"""After this many unanswered requests to logind in a row, the machine counts as in use. A single answer of
logind can be late because the machine is busy."""
_AGAIN_SECONDS = 30.0
"""If a machine has no logind, Gridmill looks for logind again after this number of seconds."""
NEVER_SECONDS = 10.0**9


class DesktopSessions:
    """Collects the reports of logind about desktop sessions over time.

    The methods return a very long time since the last activity of a user if there was no activity or if
    there is no logind. All times in this class are times of the monotonic clock. Times of the wall clock are
    converted to the monotonic clock when they are first read, so a change of the wall clock does not look
    like activity of a user.
    """

    def __init__(self) -> None:
        self._sessions: tuple[Mapping[str, str], ...] | None = None
        self._silent = 0
        self._ask_at = 0.0
        self._times: dict[int, float] = {}

    def look(self, now: float, wall: float) -> None:
        """Asks logind for the state of the sessions. `wall` is the time of the wall clock in seconds since
        1970."""
        if now < self._ask_at:
            return
        try:
            answer = _sessions()
        except subprocess.TimeoutExpired:
            self._silent += 1
            return
        self._silent = 0
        self._sessions = answer or ()
        self._ask_at = now + _AGAIN_SECONDS if answer is None else 0.0
        stamps = {at for one in self._sessions if (at := _microseconds(one, "IdleSinceHint"))}
        self._times = {at: self._times.get(at, now - wall + at / 1e6) for at in stamps}

    @property
    def is_silent(self) -> bool:
        """Returns whether the state of the users' sessions is unknown."""
        return self._silent >= _SILENT_LOOKS or (self._silent > 0 and self._sessions is None)

    def seconds_since_use(self, now: float) -> float:
        """Returns the seconds since a graphical session of a user was last in use.

        A session whose desktop never reports idleness counts as in use. A machine whose logind does not
        answer counts as in use too.
        """
        if self.is_silent:
            return 0.0
        desktops = (one for one in self._of_users() if one.get("Type") in _GRAPHICAL)
        return min((self._idle_seconds(one, now) for one in desktops), default=NEVER_SECONDS)

    def seconds_since_arrival(self, now: float) -> float:
        """Returns the seconds since a session of a user started, or since a desktop reported that its user
        is no longer idle."""
        times = (since for one in self._of_users() for since in self._arrivals(one, now))
        return min(times, default=NEVER_SECONDS)

    def _of_users(self) -> Iterator[Mapping[str, str]]:
        """Yields the sessions of users, without login screens and without sessions that are closing."""
        return (
            one
            for one in self._sessions or ()
            if one.get("Class") == "user" and one.get("State") != "closing"
        )

    def _idle_seconds(self, session: Mapping[str, str], now: float) -> float:
        since = self._times.get(_microseconds(session, "IdleSinceHint") or 0)
        return 0.0 if session.get("IdleHint") != "yes" or since is None else max(0.0, now - since)

    def _arrivals(self, session: Mapping[str, str], now: float) -> Iterator[float]:
        if (began := _microseconds(session, "TimestampMonotonic")) is not None:
            yield max(0.0, now - began / 1e6)
        woke = self._times.get(_microseconds(session, "IdleSinceHint") or 0)
        if woke is not None and session.get("Type") in _GRAPHICAL and session.get("IdleHint") == "no":
            yield max(0.0, now - woke)


def _microseconds(session: Mapping[str, str], name: str) -> int | None:
    text = session.get(name, "")
    return int(text) if text.isdigit() else None


def read_sessions(output: str) -> tuple[Mapping[str, str], ...]:
    """Parses the output of `loginctl show-session`, which has lines NAME=VALUE and a blank line between two
    sessions."""
    return tuple(filter(None, map(_properties, output.split("\n\n"))))


def _properties(block: str) -> Mapping[str, str]:
    words = (line.partition("=") for line in block.splitlines())
    return {name: value for name, equals, value in words if equals}


def _sessions() -> tuple[Mapping[str, str], ...] | None:
    """Returns the properties of all sessions, or None if there is no logind. Raises TimeoutExpired."""
    listed = _loginctl("list-sessions", "--no-legend")
    if listed is None:
        return None
    names = [line.split()[0] for line in listed.splitlines() if line.strip()]
    wanted = [f"--property={name}" for name in _SHOWN]
    return read_sessions(_loginctl("show-session", *wanted, *names) or "") if names else ()


def _loginctl(*words: str) -> str | None:
    """Returns the output of `loginctl`, or None if there is no logind or if a session has just ended. Raises
    TimeoutExpired."""
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
        return None
    return done.stdout if done.returncode == 0 else None
