"""Copies of requests for the shadow of a service.

All replicas write to one socket, from which the process of the shadow reads, and a replica never waits. A
copy is one message. If it is large, its bodies are in a file in memory, which the message passes on. A copy
is dropped and counted if the buffer of the socket is full, or if the large copies that wait would have more
than `WAITING_BYTES` together: because the shadow is slow, hangs or does not run.
"""

import os
import random
import select
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from gridmill.domain.service_shadow import WAITING_BYTES
from gridmill.serving.inference_protocol import HEADER_LENGTH
from gridmill.serving.request import Answer, Request

BUFFER_BYTES = 1 << 20
"""The wanted size of the buffer of the socket. The limit of the machine (`net.core.wmem_max`) may be less."""
INLINE_BYTES = 32 << 10
"""The bodies of a copy with more bytes than this are in a file in memory."""
MOST_LARGE = 128
"""The largest number of large copies of one replica that wait. Each has a pipe."""
_MESSAGE_BYTES = INLINE_BYTES + (64 << 10)
WAITING_FILE = "shadow-waiting"


class Copy(msgspec.Struct, array_like=True, frozen=True):
    """A request to `path` with the answer that the client got after `seconds`. Without tensors, `length` and
    `answer_length` are empty; otherwise they are the headers with the length of the JSON of each body.
    `as_of_us` is the as-of time of the rows that name none, in microseconds; 0 if there are none. `sizes` are
    the bytes of both bodies in a file; otherwise they are in the copy."""

    path: str
    content_type: bytes
    body: bytes
    answer: bytes
    length: bytes = b""
    answer_length: bytes = b""
    as_of_us: int = 0
    seconds: float = 0.0
    sizes: tuple[int, int] | None = None


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(Copy).decode


def copies_pair() -> tuple[socket.socket, socket.socket]:
    """Return the end of a socket that replicas write to, and the end that the shadow reads from."""
    writing, reading = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for one in (writing, reading):
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return writing, reading


class WaitingBytes:
    """The bytes of the large copies that wait, of all replicas: a file with a number of 8 bytes for each
    replica. Each replica writes its own number. Two replicas that add a copy at the same moment may exceed
    the limit by one copy, until one is read."""

    def __init__(self, folder: Path, replica: int, most: int = WAITING_BYTES) -> None:
        self._file = os.open(folder / WAITING_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._place, self._most, self._own = replica * 8, most, 0
        self.add(0)

    def is_room(self, size: int) -> bool:
        """Return whether a copy of this size may wait."""
        content = os.pread(self._file, 1 << 16, 0)
        used: int = sum(struct.unpack(f"={len(content) // 8}Q", content[: len(content) // 8 * 8]))
        return used + size <= self._most

    def add(self, size: int) -> None:
        """Count a copy that begins to wait; with a negative size, a copy that no longer waits."""
        self._own += size
        os.pwrite(self._file, struct.pack("=Q", self._own), self._place)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def forget_replica(folder: Path, replica: int) -> None:
    """Remove the waiting bytes of a replica that has ended."""
    with suppress(OSError):
        file = os.open(folder / WAITING_FILE, os.O_RDWR | os.O_CLOEXEC)
        os.pwrite(file, bytes(8), replica * 8)
        os.close(file)


class CopyWriter:
    """Sends copies of a part of the answered requests."""

    def __init__(
        self,
        descriptor: int,
        service: str,
        served: str,
        percent: float,
        waiting: WaitingBytes,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`served` is the label of the version whose answers are compared."""
        self._socket = socket.socket(fileno=descriptor)
        self._served, self._percent, self._chance = served, percent, chance
        self._paths = ("/predict", f"/v2/models/{service}/infer")
        self._waiting, self._large = waiting, deque[tuple[int, int]]()
        self.dropped = 0

    def send(self, request: Request, answer: Answer, body: bytes, seconds: float) -> None:
        """Send a copy of an answered request to predict, if it is in the sample and was answered by the
        version that is compared. `body` is the body of the answer before it was compressed."""
        if request.version != self._served or "version" in request.query or request.path not in self._paths:
            return
        if self._chance() * 100.0 >= self._percent:
            return
        copy = Copy(
            path=request.path,
            content_type=request.content_type(),
            body=request.body,
            answer=body,
            length=request.headers.get(HEADER_LENGTH, b""),
            answer_length=dict(answer.headers).get(HEADER_LENGTH, b""),
            as_of_us=request.as_of_us,
            seconds=seconds,
        )
        try:
            if len(request.body) + len(body) <= INLINE_BYTES:
                self._socket.send(_ENCODE(copy))
            elif not self._send_large(copy):
                self.dropped += 1
        except OSError:  # the buffer is full, there are too many files, or the shadow was replaced by another
            self.dropped += 1

    def _send_large(self, copy: Copy) -> bool:
        """Send a copy whose bodies are in a file in memory. The end of a pipe beside it shows when nobody has
        the file any longer: the shadow has read it, or has ended. Return whether there was room."""
        size = len(copy.body) + len(copy.answer)
        self.release()
        if len(self._large) >= MOST_LARGE or not self._waiting.is_room(size):
            return False
        small = msgspec.structs.replace(copy, body=b"", answer=b"", sizes=(len(copy.body), len(copy.answer)))
        reading, writing = os.pipe2(os.O_CLOEXEC)
        is_sent = False
        try:
            file = os.memfd_create("copy", os.MFD_CLOEXEC)
            try:
                _write(file, copy.body)
                _write(file, copy.answer)
                socket.send_fds(self._socket, [_ENCODE(small)], [file, reading])
                is_sent = True
            finally:
                os.close(file)
        finally:
            os.close(reading)
            if not is_sent:
                os.close(writing)
        self._large.append((writing, size))
        self._waiting.add(size)
        return True

    def release(self) -> None:
        """Count the large copies as read that no longer wait. They are read in the order of their sending.
        The replica also calls this from time to time, so that other replicas have the room."""
        while self._large:
            writing, size = self._large[0]
            poll = select.poll()
            poll.register(writing, 0)
            if not poll.poll(0):
                return
            os.close(writing)
            self._large.popleft()
            self._waiting.add(-size)

    def close(self) -> None:
        """Close the socket and the pipes of the copies that wait."""
        self._socket.close()
        self._waiting.close()
        for writing, _ in self._large:
            os.close(writing)


def _write(file: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def receive(copies: socket.socket) -> Copy | None:
    """Return the next copy. The result is None if no replica can write any longer. Raises BlockingIOError if
    none waits, and ValueError for a message that is no copy."""
    message, files, _, _ = socket.recv_fds(copies, _MESSAGE_BYTES, 2)
    try:
        if not message:
            return None
        try:
            copy = _DECODE(message)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a copy: {error}") from error
        if copy.sizes is None:
            return copy
        body, answer = copy.sizes
        content = b""
        if files:
            with open(files.pop(0), "rb") as file:
                file.seek(0)
                content = file.read()
        if len(content) != body + answer:
            raise ValueError(f"a copy of {body + answer} bytes has {len(content)} bytes")
        return msgspec.structs.replace(copy, body=content[:body], answer=content[body:])
    finally:
        for one in files:
            os.close(one)


def discard(copies: socket.socket) -> int:
    """Drop the copies that wait, and return their number."""
    number = 0
    with suppress(BlockingIOError):
        while True:
            message, files, _, _ = socket.recv_fds(copies, 1, 2)
            for one in files:
                os.close(one)
            if not message:
                break
            number += 1
    return number
