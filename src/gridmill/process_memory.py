"""Keeps the memory of this process small: the C library returns free memory to the system early.

The GNU C library gives each thread its own area for small buffers, up to eight areas for each CPU, and keeps
freed memory in each of them. A process with many threads that each answer a request now and then holds much
free memory. Other C libraries do not have these options, and nothing happens there.
"""

import ctypes
import gc
from contextlib import suppress

from gridmill.domain.amounts import MIB

LARGE_BYTES = MIB
"""If a request is at least this large, its memory is returned to the system after the answer."""
_AREAS = 2
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # option numbers from malloc.h


def share_memory_areas() -> None:
    """Let all threads share two areas, and give each large buffer memory of its own, which returns to the
    system when the buffer is freed. Call this before the process starts threads."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for option, value in ((_ARENA_MAX, _AREAS), (_MMAP_THRESHOLD, MIB), (_TRIM_THRESHOLD, MIB)):
            library.mallopt(option, value)


def return_free_memory(*, collect: bool = False) -> None:
    """Return free memory to the system. With `collect`, find objects in reference cycles first: this holds
    up all threads for as long as it takes to look at all objects."""
    if collect:
        gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
