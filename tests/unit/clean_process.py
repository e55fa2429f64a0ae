"""Predictions in a process of their own, as pods run them: one that forks must not be one that has computed.

A test's process has run libraries with threads (OpenMP, Arrow), and a child forked from it may crash in them.
"""

import contextlib
import io
import multiprocessing
import os
from dataclasses import replace
from multiprocessing.connection import Connection

from gridmill.errors import GridmillError
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.prediction.run import run

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["__main__", "gridmill.jobs.prediction.run"])


def predict(context: JobContext) -> JobResult:
    """What a prediction gives; what it prints is printed, what it raises of GridmillError is raised."""
    here, there = _FORKS.Pipe()
    process = _FORKS.Process(target=_predict, args=(replace(context, events_fd=None), there))
    process.start()
    there.close()
    try:
        said, result = here.recv()
    finally:
        process.join()
    print(said, end="")
    if isinstance(result, GridmillError):
        raise result
    return result


def _predict(context: JobContext, answer: Connection) -> None:
    events = os.open(context.work / "events", os.O_WRONLY | os.O_APPEND)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            result = run(replace(context, events_fd=events))
        except GridmillError as error:
            result = error
    answer.send((said.getvalue(), result))
