"""A control node as its own process: starts the run if there is none, waits for its end, tears down."""

import sys
import time
from pathlib import Path

from gridmill.bootstrap import embed
from gridmill.declarations import read_pipeline
from gridmill.model.state import FINISHED_RUNS
from gridmill.settings import read_settings


def main(pipeline_file: str) -> None:
    embedded = embed(read_settings())
    grid = embedded.grid
    runs = grid.runs()
    run_id = runs[0].id if runs else grid.start_run(read_pipeline(Path(pipeline_file))).run.id
    after = 0
    deadline = time.monotonic() + 60
    while grid.run(run_id).run.state not in FINISHED_RUNS and time.monotonic() < deadline:
        events = grid.events(run_id, after=after, wait_seconds=0.5)
        after = events[-1].sequence if events else after
    print(grid.run(run_id).run.state, embedded.node.commits, flush=True)
    embedded.close(tear_down=True)


if __name__ == "__main__":
    main(sys.argv[1])
