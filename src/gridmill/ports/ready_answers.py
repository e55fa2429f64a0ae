"""Answers of a grid that are already encoded as JSON, for a server with many readers.

A grid may implement this protocol in addition to `ports.grid.Grid`. For a use case and its arguments,
`ready` and `encoded` return the same answer as the use case, encoded as JSON. If a grid does not implement
the protocol, the server calls the use case and encodes its answer.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ReadyAnswers(Protocol):
    """A grid that can return answers that are already encoded as JSON."""

    def ready(self, name: str, arguments: Mapping[str, Any]) -> bytes | None:
        """Return the encoded answer if it is in memory. Return None if the caller has to call `encoded`.
        The method never waits and computes nothing. The answer of a stream use case may be empty (`[]`)."""

    def encoded(self, name: str, arguments: Mapping[str, Any]) -> bytes:
        """Return the encoded answer; the calling thread makes it and may have to wait. Raises the errors of
        the use case."""

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` after each commit and when the control node ends; the call may come from any
        thread. `watcher` must not wait."""
