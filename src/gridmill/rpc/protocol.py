"""The protocol of calls over a stream socket: frames, greetings, and the envelope of a call.

A frame contains several byte strings. The number and the lengths of the byte strings come first. In their
greetings, the client and the control node send their versions and settings.
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
"""The largest size of a request in bytes: a code bundle of 512 MiB and its envelope."""


class BrokenFrameError(OSError):
    """The connection ended inside a frame, or the other end sent an invalid frame."""


def frame(parts: Sequence[bytes]) -> bytes:
    """Returns the parts of a frame together with their header."""
    lengths = b"".join(_COUNT.pack(len(part)) for part in parts)
    return b"".join((_COUNT.pack(len(parts)), lengths, *parts))


def send_frame(sock: socket.socket, parts: Sequence[bytes]) -> None:
    """Send a frame completely. Raises OSError."""
    sock.sendall(frame(parts))


def receive_frame(sock: socket.socket, limit: int | None = None) -> list[bytes] | None:
    """Returns the parts of the next frame, or None if the other end closed the connection before the first
    byte of a frame.

    Raises BrokenFrameError if the frame has more than `limit` bytes, and OSError.
    """
    first = _receive(sock, _COUNT.size, may_end=True)
    if first is None:
        return None
    number = int(_COUNT.unpack(first)[0])
    if number > _MOST_PARTS:
        raise BrokenFrameError(f"a frame cannot have {number} parts")
    sizes = struct.unpack(f">{number}I", _whole(sock, number * _COUNT.size))
    if limit is not None and sum(sizes) > limit:
        raise BrokenFrameError(f"a frame of {sum(sizes)} bytes is larger than {limit}")
    return [_whole(sock, size) for size in sizes]


def readable(*files: "socket.socket | int | None", milliseconds: int | None = 0) -> list[int]:
    """Returns the file descriptors that can be read or have reached their end. If `milliseconds` is None,
    the function waits until there is such a descriptor."""
    poll = select.poll()
    for file in files:
        if file is not None:
            poll.register(file, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(milliseconds)]


def peer_pid(sock: socket.socket) -> int:
    """Returns the id of the process that opened the other end of the socket or listened at it. The result is
    0 if the kernel does not report this id."""
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

    The first connection of a client has no `client`. The first connection introduces the client and stays
    open as long as the client lives. Further connections of the client contain the name that the first
    connection received. `settings` are the settings of the client, as texts by variable, and `chosen` are
    the variables that its environment sets. `attends` has the names of runs that were started at another
    control node and that end together with this client.
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
    """The answer to a Hello. The Welcome contains the client's name for further connections. `stays` is true
    if the control node is permanent (`gridmill up`). `notices` are texts that are shown to the user."""

    client: str
    pid: int
    stays: bool
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a use case, with the names of its arguments. The values of the arguments are the other parts
    of the frame. With `attend`, the started run ends together with the client. `key` is the client's key for
    the started run, and `again` is true if an earlier call with this key got no answer."""

    name: str
    arguments: tuple[str, ...] = ()
    attend: bool = False
    key: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMessage:
    """A message that is sent over a client's first connection after the Welcome. The client sends `bye` (and
    gets an answer if the control node `stays`), `release` when it starts no more runs, or `attend` with the
    name of a run. The control node sends warnings in such messages."""

    bye: bool = False
    release: bool = False
    attend: str = ""
    stays: bool = False
    warning: str = ""
