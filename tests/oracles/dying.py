"""Loads that are killed or disturbed at any of their steps: the n-th call of a function of the sink."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing.context import ForkServerContext
from types import FrameType

from gridmill.domain.sink import SinkSpec
from gridmill.jobs.sink.run import run
from tests.kit.redisserver import PASSWORD
from tests.kit.sink_case import SinkCase

STEPS = 1_000
"""About so many steps a load of few rows has."""
_KILLED, _DONE = -signal.SIGKILL, 0


@cache
def _server() -> ForkServerContext:
    """Processes are forked from one that has imported all and has run nothing: it has no threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.oracles.dying", "tests.oracles.imported"])
    return context


@contextmanager
def at_step(number: int, act: Callable[[], None], function: str = "") -> Iterator[None]:
    """Act once when the sink's code makes its n-th call or return, in whichever thread; of one function
    alone, if it is named."""
    count = 0

    def look(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        code = frame.f_code
        if "gridmill/jobs/sink" in code.co_filename and function in ("", code.co_name):
            count += 1
            if count == number:
                act()

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _load(case: SinkCase, spec: SinkSpec, step: int, function: str) -> None:
    os.environ["REDIS_PASSWORD"] = PASSWORD
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with at_step(step, die, function):
        run(case.context(spec))


def load_and_die(case: SinkCase, spec: SinkSpec, step: int) -> bool:
    """Load in a process of its own, which is killed at that step; whether it was. Each second one is killed
    around the commit, which few steps are of."""
    case.attempts += 1
    process = _server().Process(
        target=_load, args=(case, spec, *((step % 80 // 2 + 1, "_commit") if step % 2 else (step, "")))
    )
    process.start()
    process.join(60)
    assert process.exitcode in (_KILLED, _DONE), f"the load ended with {process.exitcode}"
    return process.exitcode == _KILLED
