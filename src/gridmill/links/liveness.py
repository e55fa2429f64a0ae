"""Heartbeats where a dead peer makes no sound: say something in time, and notice a long silence.

A Unix socket needs none of this (the kernel tells); a TLS connection through a network and a spool folder do.
Only the local monotonic clock is read, so the clocks of two machines are never compared.
"""

from collections.abc import Callable
from typing import TypeAlias

Monotonic: TypeAlias = Callable[[], float]


class Liveness:
    """Of one channel, seen from one end."""

    def __init__(self, monotonic: Monotonic, *, heartbeat_seconds: float, silence_seconds: float) -> None:
        self._monotonic = monotonic
        self._heartbeat_seconds = heartbeat_seconds
        self._silence_seconds = silence_seconds
        self._said = self._heard = monotonic()

    def said(self) -> None:
        """Something was sent."""
        self._said = self._monotonic()

    def heard(self) -> None:
        """Something came."""
        self._heard = self._monotonic()

    def should_speak(self) -> bool:
        """True when a heartbeat is due."""
        return self._monotonic() - self._said >= self._heartbeat_seconds

    def is_silent(self) -> bool:
        """True when the peer must be taken for gone."""
        return self._monotonic() - self._heard >= self._silence_seconds


def for_tls(monotonic: Monotonic) -> Liveness:
    """A peer that is there speaks within 5 s; 20 s leave room for a long pause or lost packets."""
    return Liveness(monotonic, heartbeat_seconds=5.0, silence_seconds=20.0)


def for_spool(monotonic: Monotonic) -> Liveness:
    """Slower: a heartbeat is a file, and a shared file system may show it half a minute late."""
    return Liveness(monotonic, heartbeat_seconds=10.0, silence_seconds=90.0)


NewLiveness: TypeAlias = Callable[[Monotonic], Liveness]
