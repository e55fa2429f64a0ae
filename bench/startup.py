"""Start-up times, and what an idle control node holds."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from bench.contestants import GRIDMILL, environment, short_folder
from bench.grids import Up, up
from bench.measure import Result, Series, alternate, at_most, row, save, timed
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.sdk.client import connect

AREA = "Start-up and idling"
HEAVY = ("numpy", "torch", "duckdb", "sqlalchemy")
ROUNDS, STARTS = 11, 5
SETTLE_SECONDS = 2.0
HOW = """
`gridmill --help`, `import gridmill` and Python doing nothing are started in turn, 11 rounds after one that
does not count; the import is what is left when in each round the bare Python's time is taken off. The idle
control node is `gridmill up` with its REST API on, two seconds after it first answered a command:
proportional set size (PSS) of the process and its children, median of 5 starts on fresh homes; the same after
it has run a 20-job pipeline; and after its first HTTP request, which loads what serves HTTP.
"""


def main() -> None:
    with short_folder() as folder:
        env = environment(Path(folder))
        results = [*_times(env), _heavy(env), *_idle(Path(folder), env)]
    save("startup", results, how=HOW)


def _times(env: dict[str, str]) -> list[Result]:
    def run(*command: str) -> float:
        return timed(lambda: subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL))

    measured = alternate(
        {
            "help": lambda: run(str(GRIDMILL), "--help"),
            "import": lambda: run(sys.executable, "-c", "import gridmill"),
            "bare": lambda: run(sys.executable, "-c", "pass"),
        },
        rounds=ROUNDS,
    )
    shown = Series([1000 * seconds for seconds in measured["help"].values])
    pairs = zip(measured["import"].values, measured["bare"].values, strict=True)
    imported = Series([1000 * (whole - bare) for whole, bare in pairs])
    return [
        at_most(150, AREA, "`gridmill --help`", shown.median, "ms", **shown.spread),
        at_most(60, AREA, "`import gridmill`", imported.median, "ms", **imported.spread),
    ]


def _heavy(env: dict[str, str]) -> Result:
    code = f"import json, sys, gridmill; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run((sys.executable, "-c", code), env=env, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    what = f"of {', '.join(HEAVY)}, loaded by `import gridmill`"
    return at_most(0, AREA, what, len(found), "", note=" ".join(found))


def _idle(folder: Path, env: dict[str, str]) -> list[Result]:
    fresh, used, asked = Series(), Series(), Series()
    for number in range(STARTS):
        with _api_up(folder / f"home{number}", env) as node:
            fresh.values.append(megabytes(node.pid))
            _run_jobs(folder / f"home{number}")
            used.values.append(megabytes(node.pid))
            _ask(folder / f"home{number}")
            asked.values.append(megabytes(node.pid))
    return [
        at_most(65, AREA, "idle control node, fresh", fresh.median, "MB", **fresh.spread),
        row(AREA, "idle control node, after 20 jobs", used.median, "MB", **used.spread),
        row(AREA, "idle control node, after its first HTTP request", asked.median, "MB", **asked.spread),
    ]


@contextmanager
def _api_up(home: Path, env: dict[str, str]) -> Iterator[Up]:
    with up(home, env, listen="127.0.0.1:0") as node:
        time.sleep(SETTLE_SECONDS)
        yield node


def _run_jobs(home: Path) -> None:
    jobs = tuple(Job(name=f"j{number}", command=CommandSpec(run=("true",))) for number in range(20))
    with connect(home, embed=False) as client:
        client.run(Pipeline(name="jobs", jobs=jobs), check=True)
        for deployment in client.list_deployments():
            client.grid.release(deployment.id)
    time.sleep(SETTLE_SECONDS)


def _ask(home: Path) -> None:
    url = json.loads((home / "control.json").read_text())["url"]
    with urlopen(f"{url}/healthz") as answer:
        answer.read()
    time.sleep(SETTLE_SECONDS)


def megabytes(pid: int) -> float:
    """Proportional set size of a process and all below it."""
    return sum(_pss_bytes(one) for one in _with_children(pid)) / 1e6


def _with_children(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += _with_children(int(child))
    return found


def _pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
