"""A wire: bytes in both directions without blocking; here over a socket. `tls` and `spool` contain other
wires."""

import contextlib
import socket
from collections import deque
from typing import Protocol

_CHUNK_BYTES = 64 * 1024  # larger sizes make malloc request new pages from the kernel each time


class Wire(Protocol):
    """A wire. No method waits or raises: on a broken wire `read` returns None and `write` False."""

    def fileno(self) -> int | None:
        """The descriptor for a selector; None if there is none and `read` must be polled."""

    def read(self) -> bytes | None:
        """The available bytes, up to a chunk; empty if there are none; None if the stream has ended."""

    def write(self, data: bytes) -> bool:
        """Queues `data` and sends as much as possible; False if the wire is broken."""

    def flush(self) -> bool:
        """Sends queued bytes as far as possible; False if the wire is broken."""

    def wants_write(self) -> bool:
        """True if `flush` must be called when the descriptor is writable."""

    def pending_bytes(self) -> int:
        """The bytes that the other end has not read, as far as this end knows."""

    def end(self) -> None:
        """Ends the sending direction; sent bytes still arrive. May be repeated."""

    def close(self) -> None:
        """Releases everything; may be repeated."""


class SocketWire:
    """A connected, non-blocking socket and a queue for bytes that it does not accept yet."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0

    def fileno(self) -> int | None:
        """The descriptor of the socket."""
        return self._sock.fileno()

    def read(self) -> bytes | None:
        """Reads with one `recv`, so that no sender delays the others."""
        try:
            return self._receive(_CHUNK_BYTES) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None

    def write(self, data: bytes) -> bool:
        """Queues and flushes."""
        self._queue.append(memoryview(data))
        self._queued_bytes += len(data)
        return self.flush()

    def flush(self) -> bool:
        """Sends until the socket accepts no more."""
        try:
            while self._queue:
                self._advance(self._transmit(self._queue[0]))
        except BlockingIOError:
            return True
        except OSError:
            self._forget_queue()
            return False
        return True

    def _advance(self, count: int) -> None:
        rest = self._queue.popleft()[count:]
        self._queued_bytes -= count
        if rest:
            self._queue.appendleft(rest)

    def wants_write(self) -> bool:
        """True while bytes are queued."""
        return bool(self._queue)

    def pending_bytes(self) -> int:
        """The bytes that are queued here, without those in the kernel's buffers."""
        return self._queued_bytes

    def end(self) -> None:
        """Closes the sending direction."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes the socket."""
        self._forget_queue()
        self._sock.close()

    def _forget_queue(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0

    def _receive(self, limit: int) -> bytes:
        """Received bytes; empty at the end. Raises BlockingIOError, OSError."""
        return self._sock.recv(limit)

    def _transmit(self, data: memoryview) -> int:
        """The number of bytes that were sent. Raises BlockingIOError, OSError."""
        return self._sock.send(data)
