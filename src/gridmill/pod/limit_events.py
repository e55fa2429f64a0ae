"""Counts how often a cgroup ran out of memory at its own limit, as the kernel says it.

Version 2 counts it in memory.events. Version 1 signals an eventfd of the group that is at its limit, and of
each group below it: the events of a group that the group above it did not get are those of its own limit.
"""

import os
from contextlib import suppress
from pathlib import Path


class LimitEvents:
    """The events of one group, and of the group `above` it, from `watch` on. `close` it in the end."""

    def __init__(self, folder: Path | None, above: "LimitEvents | None" = None) -> None:
        self.folder = folder
        self._above = above
        self._above_before = 0
        self._count = 0
        self._event = -1

    def watch(self) -> None:
        """Count from now on. Not done for groups of jobs that end at once: it takes 40 microseconds."""
        if self._event < 0 and self.folder is not None:
            self._event = _subscribe(f"{self.folder}")
            self._above_before = self._above.total() if self._above is not None else 0

    def own(self) -> int | None:
        """How often it had no more memory at its own limit; None where version 1 does not tell."""
        counted = _counted(self.folder, "memory.events")
        if counted is not None or self._event < 0:
            return counted
        return self.total() - self.above()

    def above(self) -> int:
        """How often the group above had none: in version 2 at its own limit, in version 1 also at one further
        up."""
        return 0 if self._above is None else self._above.total() - self._above_before

    def total(self) -> int:
        """All that were counted here."""
        counted = _counted(self.folder, "memory.events.local")
        if counted is not None:
            return counted
        if self._event >= 0:
            with suppress(BlockingIOError):
                self._count += os.eventfd_read(self._event)
        return self._count

    def close(self) -> None:
        """Let go of the eventfd."""
        if self._event >= 0:
            os.close(self._event)
            self._event = -1


def _counted(folder: Path | None, name: str) -> int | None:
    """The count of `oom` in a file of version 2; None where there is no such file."""
    if folder is None:
        return None
    try:
        with open(f"{folder}/{name}", "rb") as file:
            words = (line.split() for line in file.read().splitlines())
            return next((int(word[1]) for word in words if word[0] == b"oom"), 0)
    except OSError:
        return None


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
