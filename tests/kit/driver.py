"""A control node as its own process: starts the run if there is none, waits for its end, tears down.

Its processes are forked from one that has loaded everything: what a kill does is the same, and a hundred of
them cost a hundredth.
"""

import multiprocessing
import os
import time
from collections.abc import Mapping
from pathlib import Path

from gridmill.bootstrap.node import embed
from gridmill.declarations import read_pipeline
from gridmill.domain.states import FINISHED_RUNS
from gridmill.settings import read_settings
from tests.e2e.conftest import PATIENCE_SECONDS

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__, "gridmill.stores.migrate", "gridmill.stores.postgresql"])


def control_node(pipeline_file: Path, settings: Mapping[str, str], log: Path) -> int | None:
    """Run one to its end, which may be a kill. Its exit status; None when it does not come."""
    process = _FORKS.Process(target=_main, args=(pipeline_file, dict(settings), log))
    process.start()
    process.join(PATIENCE_SECONDS)
    if process.is_alive():
        process.kill()
        return None
    return process.exitcode


def _main(pipeline_file: Path, settings: dict[str, str], log: Path) -> None:
    os.environ.update(settings)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    embedded = embed(read_settings())
    grid = embedded.grid
    runs = grid.runs().items
    run_id = runs[0].id if runs else grid.start_run(read_pipeline(pipeline_file)).run.id
    after = ""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while grid.run(run_id).run.state not in FINISHED_RUNS and time.monotonic() < deadline:
        events = grid.events(run_id, after=after, wait_seconds=0.5)
        after = events[-1].id if events else after
    embedded.close(tear_down=True)
