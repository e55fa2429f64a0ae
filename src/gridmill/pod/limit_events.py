"""Counts how often a cgroup of version 1 ran out of memory at its limit (version 2 has memory.events).

The kernel signals an eventfd of the group that is at its limit, and of each group below it. So the events of
a group that the group above it did not get are those of its own limit.
"""

import os
from contextlib import suppress
from pathlib import Path


class LimitEvents:
    """The events of one group from now on. `close` it in the end."""

    def __init__(self, folder: Path | None) -> None:
        self._count = 0
        self._event = -1 if folder is None else _subscribe(f"{folder}")

    def count(self) -> int | None:
        """How often this group, or one above it, had no more memory; None where the kernel does not tell."""
        if self._event < 0:
            return None
        with suppress(BlockingIOError):
            self._count += os.eventfd_read(self._event)
        return self._count

    def close(self) -> None:
        """Let go of the eventfd."""
        if self._event >= 0:
            os.close(self._event)
            self._event = -1


def _subscribe(folder: str) -> int:
    """An eventfd for the group's events; -1 where there are none (version 2, no permission, no Linux)."""
    event = -1
    try:
        counter = os.open(f"{folder}/memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
        try:
            control = os.open(f"{folder}/cgroup.event_control", os.O_WRONLY | os.O_CLOEXEC)
            try:
                event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                os.write(control, f"{event} {counter}".encode())
            finally:
                os.close(control)
        finally:
            os.close(counter)
    except (OSError, AttributeError):
        if event >= 0:
            os.close(event)
        return -1
    return event
