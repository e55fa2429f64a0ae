"""Loads that end somewhere on their way: at the n-th call of a function, by SIGKILL or by an exception."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from types import FrameType
from typing import Any

from gridmill.jobs.context import JobContext
from gridmill.jobs.sink.run import run

SINKS = os.path.dirname(sys.modules[run.__module__].__file__ or "")
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["gridmill.jobs.sink.run", "tests.oracles.kills"])


@dataclass(frozen=True)
class Kill:
    """At which call, and whether a process of its own dies without a word or an exception comes up."""

    call: int
    hard: bool


class _DiesError(KeyboardInterrupt):
    """What comes up in the middle of a load; nothing catches it."""


def killed(kill: Kill, context: JobContext) -> bool:
    """Load until that call. False where the load ended before it."""
    if kill.hard:
        process = _FORKS.Process(target=_load, args=(kill, context))
        process.start()
        process.join()
        return process.exitcode == -signal.SIGKILL
    try:
        with _ignored_where_it_is_lost():
            _load(kill, context)
    except _DiesError:
        return True
    except Exception:  # noqa: BLE001 - what a load says that was not killed is compared when it is done again
        return False
    finally:
        sys.setprofile(None)
    return False


@contextmanager
def _ignored_where_it_is_lost() -> Iterator[None]:
    """Without a warning where it comes up in a generator that is thrown away: Python then goes on, as if the
    load had not been killed."""
    told = sys.unraisablehook
    sys.unraisablehook = lambda what: None if what.exc_type is _DiesError else told(what)
    try:
        yield
    finally:
        sys.unraisablehook = told


def _load(kill: Kill, context: JobContext) -> None:
    calls = 0
    here = threading.get_ident()

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        if event in ("call", "return") and frame.f_code.co_filename.startswith(SINKS):
            calls += 1
            if calls == kill.call and threading.get_ident() == here:
                if kill.hard:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise _DiesError

    sys.setprofile(count)
    try:
        with redirect_stdout(StringIO()):
            run(context)
    except _DiesError:
        raise
    except Exception:
        if not kill.hard:
            raise
