"""Lets the transfers of running attempts pass before transfers that can wait."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gridmill.errors import InterruptedRunError

_POLL_SECONDS = 0.5
"""A waiting transfer notices within this number of seconds that it was stopped."""


class LinkPriority:
    """The transfers over one connection. A transfer that can wait sends one batch at a time, and waits before
    each batch until no other transfer is running. This class is safe to use from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0

    @contextmanager
    def first(self) -> Iterator[None]:
        """Runs a transfer that does not wait, inside the `with` block."""
        with self._changed:
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def wait(self, stop: threading.Event) -> None:
        """Waits until no transfer is running that has priority. Raises InterruptedRunError after `stop` is
        set."""
        with self._changed:
            while not stop.is_set():
                if not self._running:
                    return
                self._changed.wait(_POLL_SECONDS)
        raise InterruptedRunError(
            "the transfer was stopped", hint="Chunks that arrived are kept and are not sent again."
        )
