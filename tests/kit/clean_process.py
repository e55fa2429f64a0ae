"""Jobs that fork, in a process of their own, as pods run them: not in one that has computed.

A test's process has run libraries with threads (OpenMP, Arrow), and a child forked from it may crash in
them.
"""

import contextlib
import io
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection

import gridmill.jobs.prediction.run
import gridmill.jobs.training.run
from gridmill.errors import GridmillError
from gridmill.jobs.context import JobContext, JobResult
from gridmill.plugins import MODEL_PREIMPORTS, PREIMPORTS

Run = Callable[[JobContext], JobResult]

_FORKS = multiprocessing.get_context("forkserver")
_LIBRARIES = {name for names in (PREIMPORTS["training"], *MODEL_PREIMPORTS.values()) for name in names}
_FORKS.set_forkserver_preload(
    ["__main__", "gridmill.jobs.prediction.run", "gridmill.jobs.training.run", *sorted(_LIBRARIES)]
)
"""As a zygote does: else each of them would import torch or scikit-learn for itself."""


def run_clean(run: Run, context: JobContext) -> JobResult:
    """What `run` gives; what it prints is printed, what it raises of GridmillError is raised."""
    here, there = _FORKS.Pipe()
    events = os.readlink(f"/proc/self/fd/{context.events_fd}")
    given = (run, replace(context, events_fd=None), events, there)
    process = _FORKS.Process(target=_run, args=given)
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


predict = partial(run_clean, gridmill.jobs.prediction.run.run)
train = partial(run_clean, gridmill.jobs.training.run.run)


def _run(run: Run, context: JobContext, events: str, answer: Connection) -> None:
    said = io.StringIO()
    os.environ["TMPDIR"] = str(context.work)  # what a worker that ends without a word leaves goes with it
    tempfile.tempdir = None
    with contextlib.redirect_stdout(said):
        try:
            result = run(replace(context, events_fd=os.open(events, os.O_WRONLY | os.O_APPEND)))
        except GridmillError as error:
            result = error
    answer.send((said.getvalue(), result))
