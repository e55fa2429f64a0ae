"""Whether somebody listens at an address: asked before Ray is, which tries for a minute."""

import socket

SECONDS = 5.0


def knock(host: str, port: int, seconds: float = SECONDS) -> str:
    """This machine's address on the way there. Raises OSError where nobody answers."""
    with socket.create_connection((host, port), timeout=seconds) as opened:
        return str(opened.getsockname()[0])


def answers(host: str, port: int) -> bool:
    """Whether somebody does."""
    try:
        knock(host, port)
    except OSError:
        return False
    return True
