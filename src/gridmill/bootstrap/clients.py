"""Connects a control node with its clients, and connects each run with the client that waits for it."""

import sys
import threading
from collections.abc import Callable

from gridmill.bootstrap.node import EmbeddedNode
from gridmill.control.client_runs import AttendedRuns
from gridmill.rpc.connected_clients import Attendance

RETURN_SECONDS = 3.0
"""If another control node started the runs, their clients have this number of seconds to reconnect. After
this time, the runs continue without their clients."""
_SWITCH_SECONDS = 0.0005
"""The interval in seconds after which Python switches between threads. The interval is short so that threads
that import modules do not delay the control node in the same process. Python's default is 0.005."""


def attend(node: EmbeddedNode, *, stays: bool, warn: Callable[[str], None]) -> Attendance:
    """Serves the clients of a control node in this process. If the control node `stays` after its clients
    have ended, jobs get the environment of the control node."""
    runs = AttendedRuns(
        node.node,
        own_environment=stays,
        on_begin=(lambda: None) if stays else _PreloadedReport().prepare,
    )
    attendance = Attendance(runs, stays=stays, warn=warn)
    node.grid.clients = attendance.views
    return attendance


class _PreloadedReport:
    """Imports and compiles the modules that write reports, while the jobs of the first run are running.
    Without this preparation, the user would have to wait for these imports at the end of the run."""

    def __init__(self) -> None:
        self._begun = False

    def prepare(self) -> None:
        """Imports the modules that write reports, in the background. Only the first call of this method has
        an effect."""
        if not self._begun:
            self._begun = True
            sys.setswitchinterval(_SWITCH_SECONDS)
            threading.Thread(target=_compile_report, daemon=True).start()


def _compile_report() -> None:
    """Compiles the templates of the report in advance, so that the first report is fast."""
    # imported here, because it loads Jinja, which most commands do not need
    from gridmill.report.render import compile_template

    compile_template()
