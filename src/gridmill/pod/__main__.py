"""`python -m gridmill.pod POD_FOLDER`: runs the pod whose order is in that folder."""

import os
import sys
from pathlib import Path

from gridmill.codec import decode
from gridmill.domain.pod_protocol import PodOrder
from gridmill.errors import GridmillError
from gridmill.pod import processes
from gridmill.pod.agent import serve
from gridmill.pod.folders import (
    PodFolder,
    acquire_lock,
    has_ended,
    inherited_lifeline,
    inherited_lock,
    mark_ended,
    mark_started,
    was_started,
)
from gridmill.settings import read_settings

_LOCK_PATIENCE_SECONDS = 0.3


def main(path: Path, lock: int | None = None) -> int:
    """Returns the exit code: 0 when the pod has ended or another process runs it, 2 for an order that cannot
    be used. `lock` is the descriptor of the pod's lock, if the site has already taken it."""
    if lock is None:
        lock = acquire_lock(path, patience_seconds=_LOCK_PATIENCE_SECONDS)
    if lock is None or was_started(path) or has_ended(path):
        return 0
    mark_started(path, processes.started(os.getpid()))
    if os.getsid(0) != os.getpid():
        _leave_session()
    try:
        order = decode((path / "order.json").read_bytes(), PodOrder)
        serve(order, PodFolder(path=path, home=Path(order.home)), read_settings(), inherited_lifeline())
    except GridmillError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    mark_ended(path)
    return 0


def _leave_session() -> None:
    """A pod must survive the terminal that started it. (The leader of a process group cannot start a
    session.)"""
    try:
        os.setsid()
    except PermissionError:
        return


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]).absolute(), inherited_lock()))
