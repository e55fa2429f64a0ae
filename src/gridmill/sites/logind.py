"""What desktops tell systemd-logind of their users: whether they are idle, and since when."""

import subprocess
from collections.abc import Mapping

_SHOWN = ("Class", "Type", "State", "IdleHint", "IdleSinceHint")
_GRAPHICAL = ("x11", "wayland", "mir")
_PATIENCE_SECONDS = 2.0
_NEVER_SECONDS = 10.0**9


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


def read_sessions(told: str, now: float) -> float:
    """As seconds_since_use, of what `loginctl show-session` says: NAME=VALUE lines, a blank line between
    sessions."""
    desktops = [one for one in map(_properties, told.split("\n\n")) if _is_desktop(one)]
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
