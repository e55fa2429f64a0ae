"""Limits the memory of this process by making the C library return free memory to the system early.

The GNU C library gives each thread a separate memory area for small buffers, with up to eight areas for each
CPU, and keeps freed memory in each of these areas. A process with many threads, each of which answers a
request from time to time, therefore keeps much free memory. With other C libraries, the functions of this
module do nothing, because these libraries do not have the needed options.
"""

import ctypes
import gc
from contextlib import suppress

from gridmill.domain.amounts import MIB

LARGE_BYTES = MIB
"""If a request has at least this many bytes, its memory is returned to the system after the answer."""
_AREAS = 2
# the option numbers from malloc.h, because mallopt() is called without its header file
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def share_memory_areas() -> None:
    """Makes all threads share two memory areas. Each large buffer gets separate memory, which is returned to
    the system when the buffer is freed. The function must be called before the process starts threads."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for option, value in ((_ARENA_MAX, _AREAS), (_MMAP_THRESHOLD, MIB), (_TRIM_THRESHOLD, MIB)):
            library.mallopt(option, value)


def return_free_memory(*, collect: bool = False) -> None:
    """Returns free memory to the system. With `collect`, objects in reference cycles are found and freed
    first. The search for reference cycles stops all threads until all objects were examined."""
    if collect:
        gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
