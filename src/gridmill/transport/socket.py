"""A wire sends bytes in both directions and never blocks. The wire in this module uses a socket. The modules
`tls` and `spool` contain other kinds of wires."""

import contextlib
import socket
from collections import deque
from typing import Protocol

_CHUNK_BYTES = 64 * 1024  # larger sizes make malloc request new pages from the kernel each time


class Wire(Protocol):
    """Sends and receives bytes. No method waits or raises an error. If the wire is broken, `read` returns
    None and `write` returns False."""

    def fileno(self) -> int | None:
        """Returns the file descriptor for a selector, or None if there is none and `read` must be polled."""

    def read(self) -> bytes | None:
        """Returns the available bytes, up to a limit, or empty bytes if no bytes are available. Returns None
        if the stream has ended."""

    def write(self, data: bytes) -> bool:
        """Queues `data` and sends as much of it as possible. Returns False if the wire is broken."""

    def flush(self) -> bool:
        """Sends as many queued bytes as possible. Returns False if the wire is broken."""

    def wants_write(self) -> bool:
        """Returns True if `flush` must be called when the descriptor can be written to."""

    def pending_bytes(self) -> int:
        """Returns the number of bytes that the other end has not read, as far as this end has
        information."""

    def end(self) -> None:
        """Ends the sending direction. Bytes that were sent before this call still arrive. May be
        repeated."""

    def close(self) -> None:
        """Closes the wire and releases all its resources. The call may be repeated."""


class SocketWire:
    """A connected, non-blocking socket, and a queue for the bytes that it does not accept yet."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0

    def fileno(self) -> int | None:
        """Returns the file descriptor of the socket."""
        return self._sock.fileno()

    def read(self) -> bytes | None:
        """Reads with a single `recv`, so that no sender delays other senders."""
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
        """Sends queued bytes until the socket accepts no more."""
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
        """Returns True while bytes are queued."""
        return bool(self._queue)

    def pending_bytes(self) -> int:
        """Returns the number of bytes that are queued in this object, without the bytes in the buffers of
        the kernel."""
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
        """Returns received bytes, or empty bytes at the end of the stream. Raises BlockingIOError,
        OSError."""
        return self._sock.recv(limit)

    def _transmit(self, data: memoryview) -> int:
        """Sends data and returns the number of bytes that were sent. Raises BlockingIOError, OSError."""
        return self._sock.send(data)
