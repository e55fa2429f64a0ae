"""How many different values there are in ranges of rows, all ranges at once, exactly.

A value counts in a range where it is there for the first time: where its last occurrence lies before the
range. So the values of a range are counted whose earlier occurrence is less than the range's beginning. A
wavelet matrix counts them: rows sorted by one bit of that number after another, and each range followed
through.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gridmill.jobs.dataset.frames import NOWHERE, Flags, Frames, Ints

Number: TypeAlias = np.int32 | np.int64


def distinct(codes: Ints, frames: Frames) -> Ints:
    """How many different codes; NOWHERE is none. Ranges may hold rows of one key only."""
    count = len(codes)
    kind: type[Number] = np.int32 if count < 2**31 - 3 else np.int64
    number = _typed(np.where(codes == NOWHERE, count + 1, _earlier(codes) + 1), kind)
    low, high = _typed(frames.low, kind), _typed(np.maximum(frames.high, frames.low), kind)
    than = _typed(frames.low + 1, kind)
    found = np.zeros(len(low), np.int64)
    for bit in reversed(range(int(count + 2).bit_length())):
        ones = (number >> bit & 1).astype(np.bool_)
        zeros = _running_zeros(ones, kind)
        low_zeros, high_zeros = zeros[low], zeros[high]
        above = (than >> bit & 1).astype(np.bool_)
        found += np.where(above, high_zeros - low_zeros, 0)
        low = np.where(above, low - low_zeros + zeros[-1], low_zeros)
        high = np.where(above, high - high_zeros + zeros[-1], high_zeros)
        number = np.concatenate((number[~ones], number[ones]))
    return found


def _typed(numbers: Ints, kind: type[Number]) -> NDArray[Number]:
    made: NDArray[Number] = numbers.astype(kind)
    return made


def _earlier(codes: Ints) -> Ints:
    """Of each row the last one before it with the same code; NOWHERE where there is none."""
    order = np.argsort(codes, kind="stable")
    same = codes[order[1:]] == codes[order[:-1]]
    found = np.full(len(codes), NOWHERE, np.int64)
    found[order[1:]] = np.where(same, order[:-1], NOWHERE)
    return found


def _running_zeros(ones: Flags, kind: type[Number]) -> NDArray[Number]:
    found = np.zeros(len(ones) + 1, kind)
    np.cumsum(~ones, out=found[1:])
    return found
