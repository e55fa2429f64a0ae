"""`python -m gridmill.pod POD_FOLDER` runs the pod that the order file in this folder describes."""

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
    """Returns the exit code: 0 if the pod has ended or another process already runs it, 2 if the order
    cannot be used. `lock` is the file descriptor of the pod's lock if the site has already taken the
    lock."""
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
    """Makes the pod independent of the terminal that started it, so that the pod continues when the terminal
    closes. (A process that is the leader of its process group cannot start a new session.)"""
    try:
        os.setsid()
    except PermissionError:
        return


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]).absolute(), inherited_lock()))
