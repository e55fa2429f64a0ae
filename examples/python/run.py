"""A pipeline built, run and looked at in Python: `python examples/python/run.py`."""

import gridmill
from gridmill import Job, Pipeline

WORDS = "to be or not to be"

pipeline = Pipeline(
    name="in-python",
    jobs=[
        Job(name="write", command=f"echo {WORDS} > $GRIDMILL_OUTPUT/words", timeout="5m"),
        Job(name="count", needs="write", command="wc -w < $GRIDMILL_INPUT_WRITE/words"),
    ],
)

with gridmill.connect() as grid:
    dry_run = grid.plan(pipeline)
    for planned in dry_run.jobs:
        print(planned.wave, planned.job, *planned.sizing.why)

    view = grid.run(pipeline, check=True)  # raises JobError unless it succeeds
    for job in view.jobs:
        print(job.job.job.name, job.job.state, job.attempts[-1].use if job.attempts else "")

    print("words:", next(grid.logs(view.run.id, "count")) if view.jobs[1].attempts else "as before")
    print("report:", grid.report(view.run.id))
