"""Copies of requests for the shadow of a service, and the comparison of two answers.

All replicas write to one socket, from which the process of the shadow reads. A copy is one message, and a
replica never waits: if the buffer of the socket is full, because the shadow is slow, hangs or does not run,
the copy is dropped and counted.
"""

import random
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import msgspec

from gridmill.domain.frozen import dataclass
from gridmill.serving.request import Request
from gridmill.serving.row_log import predictions_of

BUFFER_BYTES = 1 << 20
"""The wanted size of the buffer of the socket. The limit of the machine (`net.core.wmem_max`) may be less. A
larger copy is dropped."""
PROBABILITY_TOLERANCE = 1e-3
"""The difference of a probability, or of a number in standard deviations of the label, up to which two rows
are equal: the tolerance of golden rows."""
_RELATIVE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A request with the answer that the client got."""

    content_type: bytes
    body: bytes
    answer: bytes


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(tuple[bytes, bytes, bytes]).decode


def copies_pair() -> tuple[socket.socket, socket.socket]:
    """Return the end of a socket that replicas write to, and the end that the shadow reads from."""
    writing, reading = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for one in (writing, reading):
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return writing, reading


class CopyWriter:
    """Sends copies of a part of the answered requests."""

    def __init__(
        self,
        descriptor: int,
        served: str,
        percent: float,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`served` is the label of the version whose answers are compared."""
        self._socket = socket.socket(fileno=descriptor)
        self._served, self._percent, self._chance = served, percent, chance
        self.dropped = 0

    def send(self, request: Request, answer: bytes) -> None:
        """Send a copy of a request that `POST /predict` has answered with the body `answer`, if it is in the
        sample and was answered by the version that is compared."""
        if request.version != self._served or "version" in request.query:
            return
        if self._chance() * 100.0 >= self._percent:
            return
        try:
            self._socket.send(_ENCODE((request.content_type(), request.body, answer)))
        except OSError:  # the buffer is full, the copy is too large, or the shadow was replaced by another
            self.dropped += 1


def read_copy(message: bytes) -> Copy:
    """Return the copy in a message. Raises msgspec.DecodeError."""
    kind, body, answer = _DECODE(message)
    return Copy(content_type=kind, body=body, answer=answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result for the rows of one request. `differences` are those of the different rows that have numbers
    in both answers."""

    equal: int = 0
    different: int = 0
    differences: tuple[float, ...] = field(default=())


def compare(served: bytes, shadow: bytes, tolerance: float) -> Comparison:
    """Compare the bodies of two answers row by row. Two rows are equal if their classes and missing values
    are the same, their probabilities differ by at most PROBABILITY_TOLERANCE, and their other numbers by at
    most `tolerance`. Rows with an error in both answers do not count. Raises ValueError for answers with a
    different number of rows."""
    pairs = zip(predictions_of(served), predictions_of(shadow), strict=True)
    found = [
        _compared(one, other, tolerance) for one, other in pairs if not ("error" in one and "error" in other)
    ]
    differences = tuple(size for is_equal, size in found if not is_equal and size is not None)
    equal = sum(is_equal for is_equal, _ in found)
    return Comparison(equal=equal, different=len(found) - equal, differences=differences)


def _compared(
    served: Mapping[str, Any], shadow: Mapping[str, Any], tolerance: float
) -> tuple[bool, float | None]:
    """Return whether two rows are equal, and the largest difference of their numbers; None if they have no
    numbers to compare."""
    if ("error" in served) or ("error" in shadow):
        return False, None
    is_equal, largest = _names(served) == _names(shadow), None
    for name in _names(served) & _names(shadow):
        allowed = PROBABILITY_TOLERANCE if name.startswith("probability_") else tolerance
        for one, other in zip(_values(served[name]), _values(shadow[name]), strict=False):
            if not (_is_number(one) and _is_number(other)):
                is_equal &= one == other
                continue
            size = abs(one - other)
            is_equal &= size <= allowed + _RELATIVE * abs(one)
            largest = max(size, largest or 0.0)
    return is_equal, largest


def _names(row: Mapping[str, Any]) -> set[str]:
    return {name for name in row if name not in ("features", "not_finite")}


def _values(value: Any) -> Sequence[Any]:  # noqa: ANN401  any JSON
    return value if isinstance(value, list) else [value]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
