"""Encoded answers of a grid, for a server with many readers.

A grid may implement this protocol in addition to `ports.grid.Grid`. For a use case and its arguments, `ready`
and `encoded` return the same answer as the use case, encoded as JSON. If a grid does not implement the
protocol, the server calls the use case and encodes the answer.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ReadyAnswers(Protocol):
    """A grid with encoded answers."""

    def ready(self, name: str, arguments: Mapping[str, Any]) -> bytes | None:
        """The answer if it is in memory; None if the caller has to call `encoded`. Never waits and does no
        work. The answer of a stream may be empty (`[]`)."""

    def encoded(self, name: str, arguments: Mapping[str, Any]) -> bytes:
        """The answer, made in the calling thread, which may have to wait. Raises the errors of the use
        case."""

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` from any thread after each commit, and when the control node ends. `watcher` must
        not wait."""
