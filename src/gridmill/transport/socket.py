"""A wire: bytes in both directions without blocking; here over a socket. `tls` and `spool` have others."""

import contextlib
import socket
from collections import deque
from typing import Protocol

_CHUNK_BYTES = 64 * 1024  # over this, malloc asks the kernel for fresh pages each time


class Wire(Protocol):
    """Nothing here waits, nothing raises: a broken wire reads None and writes False."""

    def fileno(self) -> int | None:
        """For a selector; None where there is nothing to select on and `read` must be polled."""

    def read(self) -> bytes | None:
        """What is there now, up to a chunk; empty when nothing is; None when the stream has ended."""

    def write(self, data: bytes) -> bool:
        """Queue `data` and send what goes at once; False when the wire is broken."""

    def flush(self) -> bool:
        """Send what is queued as far as it goes; False when the wire is broken."""

    def wants_write(self) -> bool:
        """True while `flush` should be called once the descriptor is writable."""

    def pending_bytes(self) -> int:
        """How much the other end has left unread, as far as this end can tell."""

    def end(self) -> None:
        """Say that nothing more will come; what was sent still arrives. May be repeated."""

    def close(self) -> None:
        """Release everything; may be repeated."""


class SocketWire:
    """A connected, non-blocking socket and a queue for what it does not take yet."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0

    def fileno(self) -> int | None:
        """The socket's."""
        return self._sock.fileno()

    def read(self) -> bytes | None:
        """One `recv`, so that no sender keeps the others waiting."""
        try:
            return self._receive(_CHUNK_BYTES) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None

    def write(self, data: bytes) -> bool:
        """Queue and flush."""
        self._queue.append(memoryview(data))
        self._queued_bytes += len(data)
        return self.flush()

    def flush(self) -> bool:
        """Send until the socket takes no more."""
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
        """True while something is queued."""
        return bool(self._queue)

    def pending_bytes(self) -> int:
        """What is queued here; the kernel's buffers do not count."""
        return self._queued_bytes

    def end(self) -> None:
        """Close the sending direction."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket."""
        self._forget_queue()
        self._sock.close()

    def _forget_queue(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0

    def _receive(self, limit: int) -> bytes:
        """Bytes; empty at the end. Raises BlockingIOError, OSError."""
        return self._sock.recv(limit)

    def _transmit(self, data: memoryview) -> int:
        """How many bytes went. Raises BlockingIOError, OSError."""
        return self._sock.send(data)
