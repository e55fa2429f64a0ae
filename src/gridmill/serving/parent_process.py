"""Ties a process of a service to its parent process: it ends with it, and gives it signs of life."""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Make Linux send SIGTERM to this process when its parent process ends."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


def write_beat(beats: int, content: Mapping[str, Any]) -> bool:
    """Write a sign of life to the pipe of the parent process. Return False if the parent process has
    ended."""
    try:
        os.write(beats, json.dumps(content).encode() + b"\n")
    except BlockingIOError:  # the parent process is slow, and needs only the newest sign of life
        return True
    except BrokenPipeError:
        return False
    return True
