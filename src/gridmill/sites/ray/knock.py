"""Whether somebody listens at an address and speaks as Ray does: asked first, for Ray tries for a minute."""

import os
import socket
from contextlib import suppress

SECONDS = 5.0
_SETTINGS = 4
_EMPTY_SETTINGS = bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _EMPTY_SETTINGS
_TYPE_AT = 3


def knock(host: str, port: int) -> str:
    """This machine's address on the way there. Raises OSError where nobody answers."""
    with socket.create_connection((host, port), timeout=SECONDS) as opened:
        return str(opened.getsockname()[0])


def answers(host: str, port: int) -> bool:
    """Whether somebody does."""
    with suppress(OSError):
        return bool(knock(host, port))
    return False


def speaks(host: str, port: int, seconds: float = SECONDS) -> bool:
    """Whether it may be Ray: its servers speak gRPC, so HTTP/2 (RFC 9113, 3.4), which begins with SETTINGS.
    With Ray's TLS nobody can tell. Raises OSError where nobody listens, or says anything in time."""
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return True
    with socket.create_connection((host, port), timeout=seconds) as opened, suppress(ConnectionError):
        opened.sendall(_HELLO)
        head = opened.recv(len(_EMPTY_SETTINGS), socket.MSG_WAITALL)
        return len(head) > _TYPE_AT and head[_TYPE_AT] == _SETTINGS
    return False
