"""A non-blocking byte stream with a buffer for what cannot go out yet; TLS is a subclass in `tls`."""

import contextlib
import socket
from collections import deque

_CHUNK_BYTES = 64 * 1024  # over this, malloc asks the kernel for fresh pages each time


class Wire:
    """One connected socket. Nothing here waits, nothing raises: a broken wire reads None, flushes False."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._queue: deque[memoryview] = deque()
        self.pending_bytes = 0

    def fileno(self) -> int:
        """For a selector; -1 when closed."""
        return self._sock.fileno()

    @property
    def wants_write(self) -> bool:
        """True while the socket should be watched for becoming writable."""
        return self.pending_bytes > 0

    def read(self) -> bytes | None:
        """What is there now, up to a chunk; empty when nothing is; None when the stream has ended."""
        try:
            return self._receive(_CHUNK_BYTES) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None

    def write(self, data: bytes) -> bool:
        """Queue `data` and send what goes at once; False when the stream is broken."""
        self._queue.append(memoryview(data))
        self.pending_bytes += len(data)
        return self.flush()

    def flush(self) -> bool:
        """Send what is queued as far as it goes; False when the stream is broken."""
        try:
            while self._queue:
                self._advance(self._transmit(self._queue[0]))
        except BlockingIOError:
            return True
        except OSError:
            self._drop_queue()
            return False
        return True

    def _advance(self, count: int) -> None:
        rest = self._queue.popleft()[count:]
        self.pending_bytes -= count
        if rest:
            self._queue.appendleft(rest)

    def end(self) -> None:
        """Say that nothing more will come; what was sent still arrives."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close; may be repeated."""
        self._drop_queue()
        self._sock.close()

    def _drop_queue(self) -> None:
        self._queue.clear()
        self.pending_bytes = 0

    def _receive(self, limit: int) -> bytes:
        """Bytes; empty at the end. Raises BlockingIOError, OSError."""
        return self._sock.recv(limit)

    def _transmit(self, data: memoryview) -> int:
        """How many bytes went. Raises BlockingIOError, OSError."""
        return self._sock.send(data)
