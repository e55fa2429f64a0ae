"""Counts from events of the kernel how often a cgroup ran out of memory at its own limit.

Cgroup version 2 counts these events in the file memory.events. Cgroup version 1 signals an eventfd of the
group whose limit was reached, and of each group below it. Therefore, in version 1, the events of a group
that were not also events of the group above it are caused by the group's own limit.
"""

import os
from contextlib import suppress
from pathlib import Path


class LimitEvents:
    """Counts the out-of-memory events of one cgroup, and of the cgroup `above` (its parent), since `watch`
    was called. The method `close` must be called at the end."""

    def __init__(self, folder: Path | None, above: "LimitEvents | None" = None) -> None:
        self.folder = folder
        self._above = above
        self._above_before = 0
        self._count = 0
        self._event = -1

    def watch(self) -> None:
        """Starts to count. Starting to watch takes 40 microseconds, so groups of very short jobs are not
        watched."""
        if self._event < 0 and self.folder is not None:
            self._event = _subscribe(f"{self.folder}")
            self._above_before = self._above.total() if self._above is not None else 0

    def own(self) -> int | None:
        """Returns how often the group ran out of memory at its own limit, or None if cgroup version 1 does
        not report it."""
        counted = _counted(self.folder, "memory.events")
        if counted is not None or self._event < 0:
            return counted
        return self.total() - self.above()

    def above(self) -> int:
        """Returns how often the group `above` ran out of memory. Cgroup version 2 counts only the limit of
        this group. Cgroup version 1 also counts the limits of the groups that contain this group."""
        return 0 if self._above is None else self._above.total() - self._above_before

    def total(self) -> int:
        """All events counted here."""
        counted = _counted(self.folder, "memory.events.local")
        if counted is not None:
            return counted
        if self._event >= 0:
            with suppress(BlockingIOError):
                self._count += os.eventfd_read(self._event)
        return self._count

    def close(self) -> None:
        """Closes the eventfd."""
        if self._event >= 0:
            os.close(self._event)
            self._event = -1


def _counted(folder: Path | None, name: str) -> int | None:
    """Returns the number after `oom` in a file of cgroup version 2, or None if the file does not exist."""
    if folder is None:
        return None
    try:
        with open(f"{folder}/{name}", "rb") as file:
            words = (line.split() for line in file.read().splitlines())
            return next((int(word[1]) for word in words if word[0] == b"oom"), 0)
    except OSError:
        return None


def _subscribe(folder: str) -> int:
    """Returns an eventfd for the events of the group, or -1 if there are no events (cgroup version 2, no
    permission, or not Linux)."""
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
