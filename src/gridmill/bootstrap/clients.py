"""Connects a control node to the record of its clients, and their runs to them."""

import sys
import threading
from collections.abc import Callable

from gridmill.bootstrap.node import EmbeddedNode
from gridmill.control.client_runs import AttendedRuns
from gridmill.rpc.connected_clients import Attendance

RETURN_SECONDS = 3.0
"""How long clients of runs that another control node left have to reconnect, before these continue without
them."""
_SWITCH_SECONDS = 0.0005
"""Threads that import modules must not delay the control node in the same process (Python's default is
0.005)."""


def attend(node: EmbeddedNode, *, stays: bool, warn: Callable[[str], None]) -> Attendance:
    """The clients of a control node in this process. Where it `stays`, jobs have its own environment."""
    runs = AttendedRuns(
        node.node,
        look=node.grid.run,
        own_environment=stays,
        on_begin=(lambda: None) if stays else _PreloadedReport().prepare,
    )
    attendance = Attendance(runs, stays=stays, warn=warn)
    node.grid.clients = attendance.views
    return attendance


class _PreloadedReport:
    """What writes reports is imported and compiled while the jobs of the first run are under way: at its end
    it would be waited for."""

    def __init__(self) -> None:
        self._begun = False

    def prepare(self) -> None:
        """Once."""
        if not self._begun:
            self._begun = True
            sys.setswitchinterval(_SWITCH_SECONDS)
            threading.Thread(target=_compile_report, daemon=True).start()


def _compile_report() -> None:
    """Make the first report quick: its templates are compiled now."""
    from gridmill.report.render import compile_template  # and with it Jinja, which most commands do not need

    compile_template()
