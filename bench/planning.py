"""The planner's measurements (bench/planner.py) as rows of the page, beside what they are held against."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from bench.measure import REPOSITORY, ROUNDS, Result, at_most, row, save

AREA = "Planning"
MOST, LIMIT_MS = 100_000, 1000
HOW = """
The pure planner on a snapshot of 10,000 nodes (20 resources of 500 pods) with that many jobs waiting, all
planned at once. One class: all jobs ask for the same. 400 classes: 20 sizes for each resource. All
different: no two ask for the same. Cold: no pod is up, so deployments are brought up. 10 projects: with
shares and quotas, jobs of each at every resource. Change + plan: what a control node does all day, 200 jobs
end, 200 come, and the next 200 starts are planned while the others wait. Growth: CPU time over n log n at
100,000 jobs, relative to 1,000; at most 1 is no worse than n log n.
"""


def main() -> None:
    command = (sys.executable, "-m", "bench.planner", "--json", "--rounds", str(ROUNDS))
    done = subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True)
    save("planner", results(json.loads(done.stdout)), how=HOW)


def results(found: Mapping[str, Any]) -> list[Result]:
    """Rows of the page from what `bench.planner --json` printed."""
    times = [_time(case) for case in found["rows"]]
    return times + [
        at_most(1, AREA, f"growth of: {case['case']}", case["growth_to_n_log_n"], "x n log n")
        for case in found["growth"]
    ]


def _time(case: Mapping[str, Any]) -> Result:
    what = f"{case['case']}, {case['jobs']:,} jobs"
    note = f"slowest {case['worst_ms']:.0f} ms, CPU {case['cpu_ms']:.0f} ms"
    if case["jobs"] == MOST and case["case"].startswith("plan"):
        return at_most(LIMIT_MS, AREA, what, case["median_ms"], "ms", note=note)
    return row(AREA, what, case["median_ms"], "ms", note=note)


if __name__ == "__main__":
    main()
