"""Numbers of a CSV file that begin with a zero or a plus, found in its bytes: Arrow reads 01234 as 1234."""

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_ZERO, _PLUS, _QUOTE, _LINE = b'0+"\n'
_BYTES = np.arange(256)
_DIGITS = np.isin(_BYTES, np.frombuffer(b"0123456789abcdefABCDEFxX", np.uint8))
_NEXT = np.isin(_BYTES, np.frombuffer(b"0123456789xX", np.uint8))
_SIGNS = np.isin(_BYTES, np.frombuffer(b"+-", np.uint8))
_PIECE_BYTES = 2**18
"""Looked at together: what a processor's cache holds."""
_BELOW = _ZERO
"""All that stands before a value is below the digits, but some delimiters."""


@dataclass(slots=True)
class Zeros:
    """Looks at the blocks of a file, in order. `columns` (from 0) are those that count, of `width`."""

    delimiter: int
    columns: Collection[int]
    width: int
    _rest: bytes = b""
    _inside: bool = False
    _around: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self._around = np.isin(_BYTES, [*b'\n\r\t "', self.delimiter])

    def see(self, block: bytes, quotes: int) -> bool:
        """Whether a value of these columns is a whole number with a zero before another digit, a plus, or 0x;
        or may be, where that takes long to tell. An empty block is the end; `quotes` are in it."""
        first, line = block.find(b"\n") + 1, block.rfind(b"\n") + 1
        if block and not first:
            self._rest += block
            return b"\r" in block  # lines may end with it alone
        begin, self._rest = self._rest + (block[:first] or b"\n"), block[line:]
        found = self._is_in(np.frombuffer(begin, np.uint8), begin.count(b'"'), b"+" in begin)
        if first == line:
            return found
        inner = quotes - block.count(b'"', 0, first) - self._rest.count(b'"')
        lines = np.frombuffer(block, np.uint8, line - first, first)  # no copy
        return self._is_in(lines, inner, b"+" in block) or found

    def _is_in(self, lines: NDArray[np.uint8], quotes: int, plus: bool) -> bool:
        """Whether such a value is in whole lines."""
        found = self._is_found(lines, plus)
        self._inside ^= bool(quotes % 2)
        return found

    def _is_found(self, data: NDArray[np.uint8], plus: bool) -> bool:
        places = self._places(data, plus)
        if not len(places):
            return False
        if self._inside:  # the data begins within a value of several lines
            return True
        columns = self._columns_of(data, places)
        return bool(np.any(np.isin(columns, list(self.columns)) | (columns >= self.width)))

    def _places(self, data: NDArray[np.uint8], plus: bool) -> NDArray[np.intp]:
        """Where such numbers begin."""
        pieces = (data[at : at + _PIECE_BYTES + 2] for at in range(0, len(data), _PIECE_BYTES))
        found = [self._zeros(piece, plus) + number * _PIECE_BYTES for number, piece in enumerate(pieces)]
        places = np.concatenate(found)
        if len(data) > 1 and data[0] in (_ZERO, _PLUS):
            places = np.concatenate([[0], places])
        places = places[_NEXT[data[places + 1]]]
        return self._whole(data, places[self._is_beginning(data, places - 1)])

    def _zeros(self, data: NDArray[np.uint8], plus: bool) -> NDArray[np.intp]:
        """Zeros and plus signs, if there are any, behind what may stand before a value, and some others."""
        before = data[:-2] < _BELOW
        if self.delimiter >= _BELOW:
            before |= data[:-2] == self.delimiter
        signs = data[1:-1] == _ZERO
        if plus:
            signs |= data[1:-1] == _PLUS
        before &= signs
        return np.flatnonzero(before) + 1

    def _is_beginning(self, data: NDArray[np.uint8], before: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Whether nothing of a value stands at these places, or its sign alone."""
        before = before - ((before >= 0) & _SIGNS[data[before]])
        return (before < 0) | self._around[data[before]]

    def _whole(self, data: NDArray[np.uint8], places: NDArray[np.intp]) -> NDArray[np.intp]:
        """Those from which digits follow up to the end of the value: 01:30 and 01.5 are other things."""
        found, length = places[:0], 2
        while len(places):
            after = data[places + length]
            found = np.concatenate([found, places[self._around[after]]])
            places, length = places[_DIGITS[after]], length + 1
        return found

    def _columns_of(self, data: NDArray[np.uint8], places: NDArray[np.intp]) -> NDArray[np.intp]:
        """The column of each place; the data begins with a line."""
        delimiters, lines = data == self.delimiter, data == _LINE
        quotes = data == _QUOTE
        if quotes.any():
            outside = np.cumsum(quotes, dtype=np.uint8) & 1 == 0  # even stays even where it overflows
            delimiters &= outside
            lines &= outside
        ends, signs = np.flatnonzero(lines), np.flatnonzero(delimiters)
        line = np.searchsorted(ends, places)
        starts = np.concatenate([[-1], ends])[line]
        columns: NDArray[np.intp] = np.searchsorted(signs, places) - np.searchsorted(signs, starts)
        return columns
