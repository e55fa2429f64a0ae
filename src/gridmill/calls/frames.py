"""Frames on a stream socket: some parts of bytes, after their number and lengths."""

import select
import socket
import struct
from collections.abc import Sequence

_COUNT = struct.Struct(">I")
_MOST_PARTS = 64
REQUEST_BYTES = 576 * 2**20
"""Largest request: a code bundle of 512 MiB and its envelope."""


class BrokenFrameError(OSError):
    """The other end went away within a frame, or sent what is no frame."""


def frame(parts: Sequence[bytes]) -> bytes:
    """The parts as they are sent."""
    lengths = b"".join(_COUNT.pack(len(part)) for part in parts)
    return b"".join((_COUNT.pack(len(parts)), lengths, *parts))


def send_frame(sock: socket.socket, parts: Sequence[bytes]) -> None:
    """Send all of it. Raises OSError."""
    sock.sendall(frame(parts))


def receive_frame(sock: socket.socket, limit: int | None = None) -> list[bytes] | None:
    """The parts; None when the other end closed the connection before the first byte of a frame.

    Raises BrokenFrameError for more than `limit` bytes, OSError.
    """
    first = _receive(sock, _COUNT.size, may_end=True)
    if first is None:
        return None
    number = int(_COUNT.unpack(first)[0])
    if number > _MOST_PARTS:
        raise BrokenFrameError(f"{number} parts are no frame")
    sizes = struct.unpack(f">{number}I", _whole(sock, number * _COUNT.size))
    if limit is not None and sum(sizes) > limit:
        raise BrokenFrameError(f"a frame of {sum(sizes)} bytes is larger than {limit}")
    return [_whole(sock, size) for size in sizes]


def readable(*files: "socket.socket | int | None", milliseconds: int | None = 0) -> list[int]:
    """The descriptors of those that can be read, or are at their end; None: wait until one is."""
    poll = select.poll()
    for file in files:
        if file is not None:
            poll.register(file, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(milliseconds)]


def _whole(sock: socket.socket, size: int) -> bytes:
    return _receive(sock, size, may_end=False) or b""


def _receive(sock: socket.socket, size: int, *, may_end: bool) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(min(size - len(data), 1 << 20))
        if not piece:
            if may_end and not data:
                return None
            raise BrokenFrameError("the connection ended within a frame")
        data += piece
    return bytes(data)
