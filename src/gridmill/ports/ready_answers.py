"""Answers of a grid that are encoded already, for a server with many readers.

A grid may implement this beside `ports.grid.Grid`. Both methods give what the use case of that name gives, as
JSON, for the same arguments. A server that finds neither calls the use case and encodes the answer.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ReadyAnswers(Protocol):
    """A grid with encoded answers."""

    def ready(self, name: str, arguments: Mapping[str, Any]) -> bytes | None:
        """The answer if it is in memory: this never waits and does no work. None: call `encoded`. An answer
        of a stream may be empty (`[]`)."""

    def encoded(self, name: str, arguments: Mapping[str, Any]) -> bytes:
        """The answer, from a thread that may wait. Raises what the use case raises."""

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` from any thread after each commit, and when the control node ends. It must not
        wait."""
