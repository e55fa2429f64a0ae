"""Asks systemd-logind when the sessions of a machine's users were last used, by the program `loginctl`.

Desktops report to logind whether their users are idle, and since when. The properties are those of
org.freedesktop.login1.Session: https://www.freedesktop.org/software/systemd/man/org.freedesktop.login1.html
"""

import subprocess
from collections.abc import Iterator, Mapping

_SHOWN = ("Class", "Type", "State", "IdleHint", "IdleSinceHint", "TimestampMonotonic")
_GRAPHICAL = ("x11", "wayland", "mir")
_PATIENCE_SECONDS = 1.0
_SILENT_LOOKS = 3
"""So many looks one after the other are left unanswered before the machine counts as in use: an answer may be
late once on a busy machine."""
_AGAIN_SECONDS = 30.0
"""A machine that has no logind is asked for one again after this time."""
NEVER_SECONDS = 10.0**9


class DesktopSessions:
    """What logind says, look by look. Times since a sign are very long where there was none, or no logind.

    All times are those of the monotonic clock. logind's times of the wall clock are converted when they are
    first seen: a wall clock that is set meanwhile makes no sign.
    """

    def __init__(self) -> None:
        self._sessions: tuple[Mapping[str, str], ...] | None = None
        self._silent = 0
        self._ask_at = 0.0
        self._times: dict[int, float] = {}

    def look(self, now: float, wall: float) -> None:
        """Ask for the sessions; `wall` is in seconds since 1970."""
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
        """Whether nothing is known of the sessions."""
        return self._silent >= _SILENT_LOOKS or (self._silent > 0 and self._sessions is None)

    def seconds_since_use(self, now: float) -> float:
        """Since a graphical session of a user was last in use. One whose desktop never says that it is idle
        is in use, and so is a machine whose logind does not answer."""
        if self.is_silent:
            return 0.0
        desktops = (one for one in self._of_users() if one.get("Type") in _GRAPHICAL)
        return min((self._idle_seconds(one, now) for one in desktops), default=NEVER_SECONDS)

    def seconds_since_arrival(self, now: float) -> float:
        """Since a session of a user began, or a desktop said that its user is no longer idle."""
        times = (since for one in self._of_users() for since in self._arrivals(one, now))
        return min(times, default=NEVER_SECONDS)

    def _of_users(self) -> Iterator[Mapping[str, str]]:
        """Not the screen at which one logs in, nor a session that is being left."""
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
    """Of what `loginctl show-session` says: NAME=VALUE lines, a blank line between sessions."""
    return tuple(filter(None, map(_properties, output.split("\n\n"))))


def _properties(block: str) -> Mapping[str, str]:
    words = (line.partition("=") for line in block.splitlines())
    return {name: value for name, equals, value in words if equals}


def _sessions() -> tuple[Mapping[str, str], ...] | None:
    """None where there is no logind. Raises TimeoutExpired."""
    listed = _loginctl("list-sessions", "--no-legend")
    if listed is None:
        return None
    names = [line.split()[0] for line in listed.splitlines() if line.strip()]
    wanted = [f"--property={name}" for name in _SHOWN]
    return read_sessions(_loginctl("show-session", *wanted, *names) or "") if names else ()


def _loginctl(*words: str) -> str | None:
    """What it says; None where there is no logind, or a session has just ended. Raises TimeoutExpired."""
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
