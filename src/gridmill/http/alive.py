"""TCP connections that end by themselves where the line is cut, or the machine at the other end is gone."""

import socket

_ALIVE = (  # shows within 20 s, also where nothing is to be said
    ("SO_KEEPALIVE", socket.SOL_SOCKET, 1),
    ("TCP_KEEPIDLE", socket.IPPROTO_TCP, 5),
    ("TCP_KEEPINTVL", socket.IPPROTO_TCP, 5),
    ("TCP_KEEPCNT", socket.IPPROTO_TCP, 3),
)
_UNREAD = (("TCP_USER_TIMEOUT", socket.IPPROTO_TCP, 20_000),)


def keep_alive(connection: socket.socket, *, reads: bool = False) -> None:
    """A connection, or one that listens: what it accepts is as it is. Where the other end `reads` without a
    pause, what it has not taken for 20 s ends it too. What this machine does not know it goes without."""
    for name, level, value in _ALIVE + (_UNREAD if reads else ()):
        if hasattr(socket, name):
            connection.setsockopt(level, getattr(socket, name), value)


UNSENT_BYTES = 1 << 17


def little_unsent(connection: socket.socket) -> None:
    """What is sent is soon on its way: of what waits before a thin line the kernel takes no more than this.
    Without it counts as sent what takes seconds until it is."""
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
