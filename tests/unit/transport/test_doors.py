"""Doors: one for each address that sites ask for, and another one where another port is asked for."""

from pathlib import Path

import pytest

from gridmill.transport.listeners import HomeListeners
from gridmill.transport.server import PodLinkServer

pytest.importorskip("cryptography")


def port_of(link: str) -> int:
    return int(link.partition("#")[0].rpartition(":")[2])


def test_a_port_that_is_asked_for_later_is_listened_at_too(tmp_path: Path) -> None:
    links = PodLinkServer(lambda: None)
    try:
        doors = HomeListeners(links, tmp_path, lambda: 1e9)
        first = doors.tls("127.0.0.1")
        assert doors.tls("127.0.0.1") == first
        other = HomeListeners(links, tmp_path / "other", lambda: 1e9)
        free = port_of(other.tls("127.0.0.2"))  # free at the other address
        second = doors.tls("127.0.0.1", free)
        assert port_of(second) == free
        assert doors.tls("127.0.0.1", free) == second
        assert doors.tls("127.0.0.1") == second
    finally:
        links.close()
