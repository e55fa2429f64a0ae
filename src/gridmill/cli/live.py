"""The table of a run on the terminal, which is redrawn while the run is in progress."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live

from gridmill.cli.render import run_table
from gridmill.cli.session import console
from gridmill.sdk.runs import Tick

_LINES_BESIDE_JOBS = 4


class LiveTable:
    """A table on the terminal that is redrawn at each tick of the run."""

    def __init__(self, screen: Console | None = None) -> None:
        self._screen = screen or console(error=True)
        self._live = Live(console=self._screen, auto_refresh=False, transient=True)

    def __enter__(self) -> Callable[[Tick], None]:
        self._live.__enter__()
        return self.show

    def __exit__(self, *ending: object) -> None:
        self._live.__exit__(None, None, None)

    def show(self, tick: Tick) -> None:
        """Draw the table, and replace the table that was drawn before."""
        most = max(3, self._screen.height - _LINES_BESIDE_JOBS)
        self._live.update(run_table(tick.view, time.time(), most=most), refresh=True)
