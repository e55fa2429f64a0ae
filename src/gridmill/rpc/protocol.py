"""The protocol of the calls over a stream socket: frames, greetings and the envelope of a call.

A frame is a number of byte strings, preceded by their count and lengths. In their greetings client and
control node say what they are.
"""

import select
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field

from gridmill.domain.frozen import dataclass

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


def peer_pid(sock: socket.socket) -> int:
    """The process that opened the other end, or that listened there; 0 where the kernel does not say."""
    if sys.platform != "linux":
        return 0
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first frame of every connection.

    The first connection of a client has no `client`: it says who the client is, and stays open for as long as
    the client lives. Further ones name what that one was given. `settings` are the client's, as text by
    variable, `chosen` those of them that its environment sets. `attends` are runs that the client waits for
    and that another control node was to stop when it goes.
    """

    client: str = ""
    command: str = ""
    version: str = ""
    python: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    attends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The answer: the client's name for further connections. `stays`: the control node was started to stay
    (`gridmill up`). `notices` are for the user to read."""

    client: str
    pid: int
    stays: bool
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A use case by its name, with the names of its arguments, whose values follow in parts of their own.
    `attend`: the run that it starts ends when the client goes. `key` is what the client knows that run by;
    `again`: it asked for it before, and got no answer."""

    name: str
    arguments: tuple[str, ...] = ()
    attend: bool = False
    key: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMessage:
    """A message over a client's first connection after the welcome. The client says `bye` (and gets one
    word back if the control node `stays`), `release` when it starts no more work, or `attend` with a run; the
    control node sends warnings."""

    bye: bool = False
    release: bool = False
    attend: str = ""
    stays: bool = False
    warning: str = ""
